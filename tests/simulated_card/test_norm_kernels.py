"""Kernels of batch normalisation, by Triton's interpreter on a processor: they give what torch gives."""

from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from frugan.kernels import maps, norm
from frugan.kernels.norm import Rows, by_torch, normalised
from frugan.kernels.operation import Operation, operations
from simulated_card.bf16 import rounding
from simulated_card.kernel_settings import SETTINGS
from simulated_card.other_order import in_another_order

interpreter = pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")

ORDERS = (torch.channels_last, torch.contiguous_format)
PAIRS = {each.name: (each.plain, each.start) for each in operations(norm)}
"""Operation -> the same in torch and by the kernel."""
EPS = 1e-4
NEAR = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SIDES, SMALL = st.integers(1, 67), st.integers(1, 5)
_rounded = rounding()


@dataclass(frozen=True)
class Case:
    """A map far from 0, and all that goes with it."""

    groups: int
    group: int
    channels: int
    sides: tuple[int, int]
    dtype: torch.dtype
    order: torch.memory_format
    shared: bool  # one gain for all pictures
    relu: bool

    def tensors(self) -> list[Tensor]:
        """A map [N, C, H, W], its gradient, gains and biases, in rows that lie apart."""
        size = self.groups * self.group
        generator = torch.Generator().manual_seed(size + self.channels)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        x, gradient = (
            (random(size, self.channels, *self.sides) + near).to(self.dtype).contiguous(memory_format=self.order)
            for near in (20, 0)
        )
        gains, biases = (random(1 if self.shared else size, self.channels + 3).to(self.dtype) for _ in range(2))
        return [x, gradient, gains[:, : self.channels], biases[:, : self.channels]]


CASES = st.builds(
    lambda groups, group, channels_and_sides, *others: Case(groups, group, *channels_and_sides, *others),
    st.integers(1, 3),
    st.integers(1, 3),
    # many pixels or many channels: the interpreter takes its time over each program
    st.tuples(st.integers(1, 40), st.tuples(SMALL, SIDES) | st.tuples(SIDES, SMALL))
    | st.tuples(st.just(300), st.tuples(SMALL, SMALL)),
    st.sampled_from(list(NEAR)),
    st.sampled_from(ORDERS),
    st.booleans(),
    st.booleans(),
)
LARGE = Case(2, 2, 21, (3, 5), torch.float32, torch.channels_last, shared=False, relu=True)


def same(name: str, *values: Any, near: float, rows: int | None = None, most: float = 1e-3) -> Any:
    """Hold one kernel to torch, and give what it gave.

    Args:
        rows: how many, one after the other, are to be added up before.
        most: what results are differences of, where that is more than they are.
    """
    torchs, own = (call(*values) for call in PAIRS[name])
    for one, other in [(torchs, own)] if isinstance(own, Tensor) else zip(torchs, own, strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
        pair = (one, other) if rows is None else (x.unflatten(1, (-1, rows)).sum(2) for x in (one, other))
        expected, found = (x.float() for x in pair)
        torch.testing.assert_close(found, expected, rtol=near, atol=near * max(float(expected.abs().max()), most))
    return own


def check(case: Case) -> None:
    """All kernels, each with what the one before it gave."""
    x, gradient, gains, biases = case.tensors()
    near = NEAR[case.dtype]
    if (count := case.group * x.shape[2:].numel()) == 1:
        return  # one number has no deviation
    of = Rows.of(x, case.groups)
    rows = PAIRS["norm_moments"][1](x, case.groups)
    way = (case.groups, of.grid.pixels, of.chunk, EPS, False)
    found = same("norm_statistics", rows, *way, near=1e-4)
    exact = x.double().unflatten(0, (case.groups, -1)).transpose(1, 2).flatten(2)  # [groups, C, numbers]
    torch.testing.assert_close(found[0].double(), exact.mean(2), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(found[2].double(), exact.var(2), rtol=1e-4, atol=1e-5)
    biased = PAIRS["norm_statistics"][1](rows, *way[:-1], True)
    torch.testing.assert_close(biased[2], found[2] * ((count - 1) / count))
    same("norm_applied", x, found, gains, biases, case.relu, near=near)
    given = (gradient, x, found, gains, biases)
    of_each = maps.grid_of(x, apart=True, summed=True).rows // len(x)
    sums = same("norm_slopes", *given, case.relu, near=1e-4, rows=of_each)
    totals = same("norm_gathered", sums, gains, len(x), case.groups, near=near)[2]
    most = float(gradient.float().abs().max() * gains.float().abs().max() * found[1].max())
    same("norm_unapplied", *given, totals, case.relu, near=near, most=most)


@SETTINGS
@given(CASES)
def test_each_gives_what_torch_gives(case: Case) -> None:
    check(case)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small map has several programs, with several tiles each where they sum, and several rows of sums."""
    for name, value in {"TILE": 64, "MOST_WIDE": 16, "MOST_PROGRAMS": 8, "LEAST_SUMMED": 8}.items():
        monkeypatch.setattr(maps, name, value)
    of_rows = MappingProxyType({"BLOCK_R": 2, "BLOCK_C": 8, "num_warps": 4})
    monkeypatch.setattr(norm, "OF_ROWS", of_rows)
    grid = Rows.of(LARGE.tensors()[0], LARGE.groups).grid
    assert min(grid.rows // LARGE.groups, grid.blocks, grid.loops) > 1


@pytest.mark.parametrize(
    ("order", "shared", "relu"),
    [
        # any two of them together in each way; all three in each only in long tests
        pytest.param(ORDERS[order], shared, relu, marks=pytest.mark.long if (order + shared + relu) % 2 else [])
        for order, shared, relu in product((0, 1), (False, True), (False, True))
    ],
)
def test_maps_of_several_programs(order: torch.memory_format, shared: bool, relu: bool, small_tiles: None) -> None:
    check(replace(LARGE, order=order, shared=shared, relu=relu))


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations start the kernels, on a processor too."""
    monkeypatch.setattr(Operation, "__call__", Operation.by_kernel)


@pytest.mark.parametrize(
    ("order", "shared"),
    [
        (ORDERS[0], False),
        (ORDERS[1], True),
        pytest.param(ORDERS[0], True, marks=pytest.mark.long),
        pytest.param(ORDERS[1], False, marks=pytest.mark.long),
    ],
)
def test_derivatives_against_float64(
    order: torch.memory_format, shared: bool, small_tiles: None, by_kernels: None
) -> None:
    """Gradients, and what a penalty on them gives, where a program has several tiles."""
    case = replace(LARGE, order=order, shared=shared)
    x, weights, gains, biases = (each.double() for each in case.tensors())
    ends = []
    for dtype in (torch.float32, torch.float64):
        leaves = [each.to(dtype, copy=True).requires_grad_() for each in (x, gains, biases)]
        if dtype == torch.float32:
            made, _ = normalised(leaves[0], leaves[1], leaves[2], groups=2, eps=EPS, biased=False, relu=True)
        else:
            made = by_torch(leaves[0], leaves[1], leaves[2], 2, EPS, relu=True)
        plain = torch.autograd.grad((made * weights.to(dtype)).sum(), leaves, retain_graph=True)
        (first,) = torch.autograd.grad((made.square() * weights.to(dtype)).sum(), leaves[0], create_graph=True)
        ends.append([made, *plain, first, *torch.autograd.grad(first.square().sum(), leaves)])
    for own, exact in zip(*ends, strict=True):
        most = float(exact.detach().abs().max())
        torch.testing.assert_close(own.double(), exact, rtol=1e-3, atol=1e-4 * most)


@pytest.mark.parametrize("order", ORDERS)
def test_two_orders_of_programs_give_the_same_bits(
    order: torch.memory_format, small_tiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program reads or writes what another one writes."""
    x, gradient, gains, biases = replace(LARGE, order=order).tensors()
    of, start = Rows.of(x, 2), {name: kernel for name, (_, kernel) in PAIRS.items()}
    rows = start["norm_moments"](x, 2)
    way = (2, of.grid.pixels, of.chunk, EPS, False)
    found = start["norm_statistics"](rows, *way)
    sums = start["norm_slopes"](gradient, x, found, gains, biases, True)
    made = start["norm_gathered"](sums, gains, 4, 2)
    calls: list[tuple[str, tuple[Any, ...], Any]] = [
        ("norm_moments", (x, 2), rows),
        ("norm_statistics", (rows, *way), found),
        ("norm_slopes", (gradient, x, found, gains, biases, True), sums),
        ("norm_gathered", (sums, gains, 4, 2), made),
    ]
    for name, values in (("applied", (x, found)), ("unapplied", (gradient, x, found))):
        others = (gains, biases, *((made[2],) if name == "unapplied" else ()), True)
        calls.append((f"norm_{name}", (*values, *others), start[f"norm_{name}"](*values, *others)))
    dims = in_another_order(monkeypatch)
    for name, values, before in calls:
        after = start[name](*values)
        for one, other in zip(*((x,) if isinstance(x, Tensor) else x for x in (before, after)), strict=True):
            assert torch.equal(one, other), name
        assert max(dims) > 1


def test_what_is_not_a_number_stays_so() -> None:
    """A training that diverges must be seen to."""
    x = torch.full((2, 3, 4, 4), float("nan"))
    found, ones = torch.ones(3, 1, 3), torch.ones(2, 3)
    assert PAIRS["norm_applied"][1](x, found, ones, ones, True).isnan().all()
    assert PAIRS["norm_slopes"][1](x, x, found, ones, ones, True).isnan().all()
