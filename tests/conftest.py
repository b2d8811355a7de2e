"""Nothing that a test prepares may land in the home folder; hypothesis makes a quarter of its usual examples."""

import gc
import os
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import settings

# before anything imports torch: a training forked from a test would wait for ever for threads that it did not inherit
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("short", max_examples=25)
settings.register_profile("long", max_examples=100)  # `--hypothesis-profile long`, as `make test-long` has it
settings.load_profile("short")


def pytest_collection_finish() -> None:
    """Modules and collected tests stay: garbage is looked for among what tests make, not in torch each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _base_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    # not by `mktemp`, which looks at all that the tests before have left to find the next number: 5 ms a test
    base = tmp_path_factory.getbasetemp() / f"base-{uuid4().hex}"
    monkeypatch.setenv("FRUGAN_BASE", str(base))
    for name in ("PREPARED", "RUNS", "MOMENTS", "CACHE"):
        monkeypatch.delenv(f"FRUGAN_{name}", raising=False)
    return base
