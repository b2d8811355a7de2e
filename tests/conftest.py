"""Nothing that a test prepares may land in the home folder; hypothesis makes a quarter of its usual examples."""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings

from limits import Limit, place_of

# before anything imports torch: a training forked from a test would wait for ever for threads that it did not inherit
os.environ.setdefault("OMP_NUM_THREADS", "1")

# "long" is `--hypothesis-profile long`, as `make test-long` has it; no deadline, as a busy machine is no fault
settings.register_profile("short", max_examples=25, deadline=None)
settings.register_profile("long", max_examples=100, deadline=None)
settings.load_profile("short")


def pytest_collection_finish() -> None:
    """Modules and collected tests stay: garbage is looked for among what tests make, not in torch each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _what_stays() -> None:
    """So does what was imported or cached since: training that runs out of memory looks for garbage each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _base_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    # not by `mktemp`, which looks at all that the tests before have left to find the next number: 5 ms a test
    base = tmp_path_factory.getbasetemp() / f"base-{uuid4().hex}"
    monkeypatch.setenv("FRUGAN_BASE", str(base))
    others = ("INCEPTION", "INCEPTION_TORCHVISION", "DINOV2", "CLIP", "MIRROR")
    for name in ("PREPARED", "RUNS", "MOMENTS", "CACHE", *others):
        monkeypatch.delenv(f"FRUGAN_{name}", raising=False)
    return base


@pytest.fixture
def said() -> list[str]:
    """Lines that something says: `say=said.append`."""
    return []


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Change one of the limits for a test."""

    def change(name: str, value: object) -> None:
        monkeypatch.setattr(*place_of(name), value)

    return change


@pytest.fixture
def bf16_units(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Let this processor have units for bf16, or none, whatever it has."""

    def let(there: bool) -> None:
        for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
            monkeypatch.setattr(f"torch.cpu.{name}", lambda: there)

    return let


@pytest.fixture
def predictions_by(monkeypatch: pytest.MonkeyPatch, limit: Limit) -> Callable[[Callable[..., Any]], None]:
    """Take predictions from something else than a run of the step; a helping process would not know of it."""

    def take(predict: Callable[..., Any]) -> None:
        monkeypatch.setattr("frugan.planning.predictions.predict", predict)
        limit("seconds that a helper saves", 1e9)

    return take


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this computer have no driver of cards, whatever it has."""
    from frugan.doctor.cards import Driver  # noqa: PLC0415  (other tests do without torch)

    monkeypatch.setattr("frugan.doctor.machine.ask_driver", lambda: Driver(found=False))
