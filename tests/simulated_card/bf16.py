"""Triton's interpreter, made to round to bfloat16 as a card does: its own cuts off what bfloat16 has no room for."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch


def rounding() -> Callable[[], Iterator[None]]:
    """A fixture for a whole file."""

    @pytest.fixture(autouse=True, scope="module")
    def rounded() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(importlib.import_module("triton.runtime.interpreter"), "_convert_float", _converted)
            yield

    return rounded


def _converted(values: Any, of: Any, to: Any, _: object) -> Any:
    """Between fp32 and bfloat16."""
    given = torch.from_numpy(np.ascontiguousarray(values))
    if to.name == "bf16":
        return given.bfloat16().view(torch.int16).numpy().view(np.uint16)
    return given.view(torch.int16).view(torch.bfloat16).float().numpy()
