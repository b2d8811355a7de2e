"""Simulated cards in the process of a test, and kernels that are interpreted there."""

import importlib
import os
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.calling import frugan
from training.small_grids import small_grids

# Triton asks on its import, and again later, whether it interprets kernels or compiles them
os.environ["TRITON_INTERPRET"] = "1"

__all__ = ["frugan", "small_grids"]

INSTALLED = Path(__file__).parent / "installed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Skips what the interpreter of one version of Triton cannot run, and nothing else."""
    try:
        yield
    except Exception as error:
        triton, numpy = version("triton"), version("numpy")
        if triton.startswith("3.6.") and "only 0-dimensional arrays can be converted" in str(error):
            pytest.skip(f"Triton {triton}'s interpreter runs loops with NumPy below 2.4 alone; this is NumPy {numpy}")
        raise


@pytest.fixture(scope="session", autouse=True)
def simulated() -> Any:
    """The module of the device, which torch takes before the first backward pass of a process or not at all.

    So whichever test a process begins with, be it one of kernels alone, the device is there first.
    """
    torchs = torch.Generator
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(INSTALLED))
        device = importlib.import_module("simcard.device")
    torch.Generator = torchs  # type: ignore[misc]  # whose place the first import takes for good
    return device


@pytest.fixture
def a_cards_bits(simulated: Any) -> Iterator[None]:
    """Whatever a processor computes has the bits that the simulated card would give it: what still differs is a fault
    of where and when things are done. (How far a processor's own numbers are away: `test_arithmetic.py`.)"""
    with simulated.ComputesAsACard():
        yield


@pytest.fixture
def cards(simulated: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """New cards, as words of the environment say: `cards(SIMCARD_COUNT=2)`. One of 8 GiB is there from the first.

    Torch knows the device from the first test on to the end of the process.
    """
    monkeypatch.syspath_prepend(str(INSTALLED))
    monkeypatch.setattr(torch, "Generator", simulated.Generator)

    def begin(**environment: object) -> Any:
        simulated.CARDS.begin({name: str(value) for name, value in environment.items()})
        return simulated.CARDS

    begin()
    return begin
