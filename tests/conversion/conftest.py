"""Tests that train draw small grids; those of DeepFaceLab's files share a run."""

from pathlib import Path

import pytest

from conversion.leras_models import narrow_faces
from conversion.leras_runs import train_small
from training.small_grids import small_grids

__all__ = ["narrow_faces", "small_grids"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, narrow_faces: None) -> Path:
    """A run of two real steps."""
    run = tmp_path_factory.mktemp("trained") / "two_steps"
    train_small(run, 2)
    return run
