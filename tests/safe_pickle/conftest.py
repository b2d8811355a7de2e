"""Files that the original wrote."""

from pathlib import Path

import pytest


@pytest.fixture
def golden() -> Path:
    """Files by the original DeepFaceLab."""
    return Path(__file__).parents[1] / "golden" / "saehd"
