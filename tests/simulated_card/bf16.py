"""Triton's interpreter, made to round to bfloat16 as a card does: its own cuts off what bfloat16 has no room for.

It also multiplies matrices of bfloat16 as if their bits were whole numbers: here they are made fp32 before.
"""

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
            interpreter = importlib.import_module("triton.runtime.interpreter")
            multiply = interpreter.InterpreterBuilder.create_dot

            def create_dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
                return multiply(builder, *(_in_fp32(interpreter, each) for each in (a, b)), *rest)

            patch.setattr(interpreter, "_convert_float", _converted)
            patch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
            yield

    return rounded


def _in_fp32(interpreter: Any, matrix: Any) -> Any:
    """A matrix of the interpreter's."""
    if matrix.dtype.scalar.name != "bf16":
        return matrix
    values = torch.from_numpy(np.ascontiguousarray(matrix.data)).view(torch.int16).view(torch.bfloat16).float().numpy()
    return interpreter.TensorHandle(values, importlib.import_module("triton.language").float32)


def _converted(values: Any, of: Any, to: Any, _: object) -> Any:
    """Between fp32 and bfloat16."""
    given = torch.from_numpy(np.ascontiguousarray(values))
    if to.name == "bf16":
        return given.bfloat16().view(torch.int16).numpy().view(np.uint16)
    return given.view(torch.int16).view(torch.bfloat16).float().numpy()
