"""Kernels for many matrices at once, by Triton's interpreter on a processor: they give what torch gives."""

from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from frugan.kernels import scaling
from frugan.kernels.operation import operations
from simulated_card.bf16 import rounding
from simulated_card.kernel_settings import SETTINGS
from simulated_card.other_order import in_another_order

pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")

PAIRS = {each.name: (each.plain, each.start) for each in operations(scaling)}
"""Operation -> the same in torch and by the kernel."""
SIDES = st.integers(1, 16)
SHAPE = st.tuples(SIDES, SIDES) | st.tuples(SIDES, SIDES, st.just(3), st.integers(1, 3))
SHAPES = st.lists(SHAPE, min_size=1, max_size=3)
_rounded = rounding()


@pytest.fixture(autouse=True, scope="module")
def _small_tiles() -> Any:
    """Small matrices have several programs, with several tiles each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"SPLITS": 3, "PARTS": 4, "TILE": 32}.items():
            patch.setattr(scaling, name, value)
        patch.setattr(scaling, "BLOCKS", MappingProxyType({False: (4, 16), True: (8, 4)}))
        yield


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def cases(shapes: list[tuple[int, ...]], dtype: torch.dtype, last: bool) -> list[tuple[str, tuple[Any, ...]]]:
    """Of all operations; gradients in a precision and a layout of their own."""
    matrices = [random(*shape) for shape in shapes]
    gradients = [random(*shape).mul_(2).to(dtype) for shape in shapes]
    if last:
        gradients = [g.contiguous(memory_format=torch.channels_last) if g.ndim == 4 else g for g in gradients]
    rows, columns = (random(sum(m.flatten(1).shape[i] for m in matrices)) for i in range(2))
    return [
        ("scaling_times", (rows, matrices, False)),
        ("scaling_times", (columns, matrices, True)),
        ("scaling_divided", (matrices, random(len(shapes)).abs() + 1, dtype, last)),
        ("scaling_dots", (gradients, matrices)),
        ("scaling_carried", (gradients, rows, columns, random(len(shapes)).abs() + 1)),
    ]


@SETTINGS
@given(SHAPES, st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), st.booleans())
def test_each_gives_what_torch_gives(shapes: list[tuple[int, ...]], dtype: torch.dtype, last: bool) -> None:
    for name, values in cases(shapes, dtype, last):
        torchs, own = (call(*values) for call in PAIRS[name])
        for one, other in [(torchs, own)] if isinstance(own, Tensor) else zip(torchs, own, strict=True):
            assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
            axis = {"scaling_times": 0, "scaling_dots": 1}.get(name)  # of parts of sums
            expected, found = (x if axis is None else x.sum(axis) for x in (one, other))
            near = 1e-5 if expected.dtype == torch.float32 else torch.finfo(expected.dtype).eps
            most = max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(found, expected, rtol=near, atol=1e-5 * most)


def test_two_orders_of_programs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program reads or writes what another one writes."""
    given = cases([(5, 7, 3, 3), (20, 3), (1, 30)], torch.float16, last=True)
    forwards = [PAIRS[name][1](*values) for name, values in given]
    dims = in_another_order(monkeypatch)
    for before, (name, values) in zip(forwards, given, strict=True):
        after = PAIRS[name][1](*values)
        for one, other in [(before, after)] if isinstance(after, Tensor) else zip(before, after, strict=True):
            assert torch.equal(one, other)
        assert min(dims[:2]) > 1
