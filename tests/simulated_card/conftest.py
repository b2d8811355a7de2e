"""Simulated cards in the process of a test, and kernels that are interpreted there."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from api.small_grids import small_grids
from cli.calling import frugan

# Triton asks on its import, and again later, whether it interprets kernels or compiles them
os.environ["TRITON_INTERPRET"] = "1"

__all__ = ["frugan", "small_grids"]

INSTALLED = Path(__file__).parent / "installed"


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """New cards, as words of the environment say: `cards(SIMCARD_COUNT=2)`. One of 8 GiB is there from the first.

    Torch knows the device from the first test on to the end of the process.
    """
    torchs = torch.Generator
    monkeypatch.syspath_prepend(str(INSTALLED))
    device = importlib.import_module("simcard.device")
    torch.Generator = torchs  # type: ignore[misc]  # whose place the first import takes for good
    monkeypatch.setattr(torch, "Generator", device.Generator)

    def begin(**environment: object) -> Any:
        device.CARDS.begin({name: str(value) for name, value in environment.items()})
        return device.CARDS

    begin()
    return begin
