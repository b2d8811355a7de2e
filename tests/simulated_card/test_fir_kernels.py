"""Kernels of filters, by Triton's interpreter on a processor: they give what torch's convolutions give."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from frugan.contract.ops import PLAIN, Ops
from frugan.contract.resampling import Geometry
from frugan.kernels import activation, fir, maps
from frugan.kernels.operation import Operation, operations
from frugan.nn.fir import downsample2d, filtered_leaky_relu, fir_filter, upfirdn2d, upsample2d
from frugan.setup.ops import kernel_names, ops_of
from simulated_card.bf16 import rounding
from simulated_card.kernel_settings import SETTINGS
from simulated_card.other_order import in_another_order

pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ORDERS = (torch.channels_last, torch.contiguous_format)
NEAR = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
PAIRS = {each.name: (each.plain, each.start) for each in operations(activation, fir)}
"""Operation -> the same in torch and by the kernel."""
_rounded = rounding()


@dataclass(frozen=True)
class Case:
    """A map, and a filter that is the same from no side."""

    size: int
    channels: int
    sides: tuple[int, int]
    taps: tuple[int, int]
    padding: tuple[int, int, int, int]
    dtype: torch.dtype
    order: torch.memory_format

    def tensors(self, up: int, down: int) -> tuple[Tensor, Tensor, tuple[int, int, int, int]]:
        """Such a map, its filter, and paddings with which something is left to make."""
        numbers = torch.Generator().manual_seed(self.channels)
        x = torch.randn(self.size, self.channels, *self.sides, generator=numbers).to(self.dtype)
        x0, x1, y0, y1 = self.padding
        more = [max(0, taps - side * up - before - after) for taps, side, before, after in
                ((self.taps[1], self.sides[1], x0, x1), (self.taps[0], self.sides[0], y0, y1))]  # fmt: skip
        taps = torch.randn(self.taps, generator=numbers).to(self.dtype)
        return x.contiguous(memory_format=self.order), taps, (x0, x1 + more[0], y0, y1 + more[1])


PADDING = st.integers(-1, 4)
CASES = st.builds(
    Case,
    st.integers(1, 2),
    st.integers(2, 12),
    st.tuples(st.integers(2, 5), st.integers(2, 19)) | st.tuples(st.integers(2, 19), st.integers(2, 5)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(PADDING, PADDING, PADDING, PADDING),
    st.sampled_from(DTYPES),
    st.sampled_from(ORDERS),
)


ONE_PIXEL = Case(1, 12, (3, 4), (3, 4), (-1, 1, 1, -1), torch.float32, torch.contiguous_format)
"""Is made of it: in both layouts at once."""
ENLARGED = Case(2, 5, (3, 4), (4, 3), (2, 1, 1, 3), torch.float32, torch.channels_last)
"""Three times: a tap's turn is not the same from either end, as it is at twice the size."""


@pytest.fixture(autouse=True, scope="module")
def _small_tiles() -> Any:
    """A small map has several programs, with several tiles each where they sum."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TILE": 256, "MOST_WIDE": 16, "MOST_PROGRAMS": 8, "LEAST_SUMMED": 8}.items():
            patch.setattr(maps, name, value)
        yield


def run(name: str, *values: Any) -> None:
    """Hold one kernel to torch."""
    torchs, own = ([made] if isinstance(made := call(*values), Tensor) else made for call in PAIRS[name])
    near = NEAR[values[0].dtype]
    for at, (one, other) in enumerate(zip(torchs, own, strict=True)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        pair = (one.sum(0), other.sum(0)) if at else (one, other)  # sums are in rows, which are added up
        most = max(1.0, float(pair[0].abs().max()) if pair[0].numel() else 0.0)
        torch.testing.assert_close(*pair, rtol=near, atol=near * most)


@SETTINGS
@example(ONE_PIXEL, (1, 1))
@example(ENLARGED, (3, 1))
@given(CASES, st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)]))
def test_a_filter(case: Case, ways: tuple[int, int]) -> None:
    x, taps, padding = case.tensors(*ways)
    run("fir", x, taps, *ways, padding)
    made = PAIRS["fir"][1](x, taps, *ways, padding)
    assert maps.is_channels_last(made) or case.order == torch.contiguous_format


@SETTINGS
@example(ONE_PIXEL, None, True)
@given(CASES, st.sampled_from([None, 0.75, 0.7]), st.booleans())
def test_what_is_activated_and_its_gradients(case: Case, clamp: float | None, sums: bool) -> None:
    x, taps, padding = case.tensors(1, 1)
    bias = torch.linspace(-1, 1, case.channels).to(case.dtype)
    run("fir_leaky_relu", x, bias, taps, padding, clamp)
    run("fir_sloped", x.flip(1), x, bias, taps, padding, clamp)
    gradient = PAIRS["fir"][0](x, taps, 1, 1, padding)
    back = Geometry(1, 1, padding).adjoint(x.shape, gradient.shape, taps.shape).padding
    gradient = maps.laid_out_like(gradient, x)
    run("fir_leaky_relu_slopes", gradient, x, bias, taps.flip((0, 1)), back, clamp, sums)


def test_nothing_is_made_of_no_pictures() -> None:
    for x in (torch.empty(0, 3, 5, 4), torch.empty(0, 3, 5, 4).contiguous(memory_format=torch.channels_last)):
        run("fir", x, torch.ones(4, 4), 2, 1, (2, 1, 2, 1))
        run("fir_leaky_relu", x, torch.ones(3), torch.ones(4, 4), (2, 1, 2, 1), 0.5)
        run("fir_leaky_relu_slopes", x, x, torch.ones(3), torch.ones(4, 4), (2, 1, 2, 1), 0.5, True)


def layers(x: Tensor, bias: Tensor, *, ops: Ops) -> Tensor:
    """Filters as layers have them."""
    # the same from no side, and few: each tap takes the interpreter its time
    taps, short = fir_filter((1, 3, 2)), fir_filter((1, 3))
    made = filtered_leaky_relu(x, bias, taps, padding=(2, 2, 2, 2), clamp=1.5, ops=ops)
    made = upfirdn2d(downsample2d(made, short, ops=ops), short, flip=True, gain=3, ops=ops)
    return upsample2d(made, short, ops=ops)


@pytest.mark.parametrize("order", ORDERS)
def test_derivatives_against_float64(order: torch.memory_format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients, and what a penalty on them gives, where a program has several tiles."""
    monkeypatch.setattr(Operation, "__call__", Operation.by_kernel)
    torch.manual_seed(1)
    exact, sides = [torch.randn(2, 21, 4, 3, dtype=torch.float64), torch.randn(21, dtype=torch.float64)], []
    for dtype, ops in ((torch.float32, ops_of(kernel_names())), (torch.float64, PLAIN)):
        leaves = [each.to(dtype, copy=True) for each in exact]
        leaves[0] = leaves[0].contiguous(memory_format=order)
        leaves = [each.requires_grad_() for each in leaves]
        made = layers(*leaves, ops=ops)
        plain = torch.autograd.grad(made.square().sum(), leaves, retain_graph=True)
        first = torch.autograd.grad(made.square().sum(), leaves, create_graph=True)
        penalty = first[0].square().sum() + first[1].square().sum()
        sides.append([made, *plain, *first, *torch.autograd.grad(penalty, leaves)])
    for own, torchs in zip(*sides, strict=True):
        torch.testing.assert_close(own.double(), torchs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ORDERS)
def test_two_orders_of_programs_give_the_same_bits(order: torch.memory_format, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program reads or writes what another one writes."""
    torch.manual_seed(2)
    x, bias, taps = torch.randn(2, 21, 3, 4).contiguous(memory_format=order), torch.randn(21), torch.randn(2, 3)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("fir", (x, taps, 2, 1, (2, 1, 2, 1))),
        ("fir_leaky_relu", (x, bias, taps, (2, 1, 2, 1), 1.0)),
        ("fir_sloped", (x, x, bias, taps, (2, 1, 2, 1), 1.0)),
        ("fir_leaky_relu_slopes", (x, x, bias, taps, (2, 1, 2, 1), 1.0, True)),
    ]
    forwards = [PAIRS[name][1](*values) for name, values in calls]
    dims = in_another_order(monkeypatch)
    for before, (name, values) in zip(forwards, calls, strict=True):
        after = PAIRS[name][1](*values)
        pairs = [(before, after)] if isinstance(after, Tensor) else zip(before, after, strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    assert max(dims) > 1
