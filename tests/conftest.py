"""Nothing that a test prepares may land in the home folder."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _base_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path_factory.mktemp("base")
    monkeypatch.setenv("FRUGAN_BASE", str(base))
    for name in ("PREPARED", "RUNS", "MOMENTS", "CACHE"):
        monkeypatch.delenv(f"FRUGAN_{name}", raising=False)
    return base
