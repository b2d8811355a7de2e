"""The kernels themselves, by Triton's interpreter on a processor: they give what stands beside them in torch."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from frugan.contract.ops import PLAIN, Ops
from frugan.kernels import activation, maps, modulation
from frugan.kernels.operation import Operation, operations
from frugan.nn.modulated import modulated_conv2d
from frugan.setup.ops import kernel_names, ops_of
from simulated_card.bf16 import rounding
from simulated_card.other_order import in_another_order

interpreter = pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ORDERS = (torch.channels_last, torch.contiguous_format)
SIDES = st.integers(1, 67)
SMALL = st.integers(1, 5)
MAP = (2, 21, 3, 4)
SETTINGS = settings(report_multiple_bugs=False, phases=[Phase.explicit, Phase.generate])
"""A case says all there is to know: to look for a smaller one takes minutes here."""
MAPS = {"unscaled_twice": 2}
"""Operation -> how many maps it gives, if not one."""
NEAR = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
PAIRS = {each.name: (each.plain, each.start) for each in operations(activation, modulation)}
"""Operation -> the same in torch and by the kernel."""


_rounded = rounding()


@dataclass(frozen=True)
class Case:
    """A map, with numbers at the clamp among others, and all that goes with it."""

    size: int
    channels: int
    sides: tuple[int, int]
    dtype: torch.dtype
    order: torch.memory_format
    noise: torch.dtype | None  # of it; None: as the map
    shared: bool  # one picture of noise for all
    clamp: float | None

    def tensors(self) -> list[Tensor]:
        """A map [N, C, H, W], its gradient, factors, noise, its strength and a bias; noise is a part of something."""
        generator = torch.Generator().manual_seed(self.size + self.channels)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).mul_(4).round_().div_(4).to(self.dtype)

        noise = random(1 if self.shared else self.size, 2, *self.sides)[:, 1:].to(self.noise or self.dtype)
        x, gradient = (
            random(self.size, self.channels, *self.sides).contiguous(memory_format=self.order) for _ in range(2)
        )
        strength = torch.tensor(0.3)
        return [x, gradient, random(self.size, self.channels), noise, strength, random(self.channels)]


CASES = st.builds(
    Case,
    st.integers(0, 3),
    st.integers(1, 40) | st.just(300),
    st.tuples(SMALL, SIDES) | st.tuples(SIDES, SMALL),
    st.sampled_from(DTYPES),
    st.sampled_from(ORDERS),
    st.sampled_from([None, torch.float32, torch.float16]),
    st.booleans(),
    st.sampled_from([None, 0.75, 0.7]),
)


def run(name: str, *values: Any) -> None:
    """Hold one kernel to torch: maps to the bit, sums and what follows a product to the last one."""
    torchs, own = ([made] if isinstance(made := call(*values), Tensor) else made for call in PAIRS[name])
    near = NEAR[values[0].dtype]
    for at, (one, other) in enumerate(zip(torchs, own, strict=True)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.stride() == other.stride() or not one.numel()
        if at < MAPS.get(name, 1) and not (name == "styled_leaky_relu" and one.dtype == torch.float32):
            assert torch.equal(one, other)
        elif one.numel():  # sums are in rows, which are added up
            # many numbers of both signs end near 0, and are rounded on the way there by what they had come to
            most = max(1.0, float(one.abs().max()), values[0].numel() ** 0.5 / 16)
            torch.testing.assert_close(one.sum(0), other.sum(0), rtol=near, atol=near * most)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small map has several programs, with several tiles each where they sum."""
    for name, value in {"TILE": 64, "MOST_WIDE": 16, "MOST_PROGRAMS": 8, "LEAST_SUMMED": 8}.items():
        monkeypatch.setattr(maps, name, value)
    for order in ORDERS:
        grid = maps.grid_of(torch.empty(MAP).contiguous(memory_format=order), apart=True, summed=True)
        assert min(grid.rows // grid.pictures, grid.blocks, grid.loops) > 1


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations start the kernels, on a processor too."""
    monkeypatch.setattr(Operation, "__call__", Operation.by_kernel)


def biased_leaky_relu(x: Tensor, bias: Tensor, *, clamp: float, ops: Ops) -> Tensor:
    return ops.leaky_relu(x, bias, clamp)


def styled_leaky_relu(*tensors: Tensor, clamp: float, ops: Ops) -> Tensor:
    x, factors, noise, strength, bias = tensors
    return ops.styled_leaky_relu(x, factors, noise, strength, bias, clamp)


def convolved(x: Tensor, factors: Tensor, *, clamp: float, ops: Ops) -> Tensor:
    """Modulation and a 1x1 convolution."""
    weight = torch.linspace(-1, 1, 4 * x.shape[1], dtype=x.dtype).view(4, -1, 1, 1)
    return modulated_conv2d(x, weight, factors, ops=ops).repeat(1, 6, 1, 1)[:, : x.shape[1]].clamp(-clamp, clamp)


@pytest.mark.parametrize("order", ORDERS)
def test_derivatives_against_float64(order: torch.memory_format, small_tiles: None, by_kernels: None) -> None:
    """Gradients, and what a penalty on them gives, where a program has several tiles."""
    torch.manual_seed(1)
    shapes = (MAP, MAP[:2], (2, 1, 3, 4), (), (21,))
    exact = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    weights = torch.randn(shapes[0], dtype=torch.float64)
    for call, chosen in ((styled_leaky_relu, (0, 1, 2, 3, 4)), (biased_leaky_relu, (0, 4)), (convolved, (0, 1))):
        sides = []
        for dtype, ops in ((torch.float32, ops_of(kernel_names())), (torch.float64, PLAIN)):
            leaves = [exact[i].to(dtype, copy=True).requires_grad_() for i in chosen]
            leaves[0] = leaves[0].detach().contiguous(memory_format=order).requires_grad_()
            made = call(*leaves, clamp=1.5, ops=ops)
            plain = torch.autograd.grad((made * weights.to(dtype)).sum(), leaves, retain_graph=True)
            sides.append([made, *plain])
            for of in (leaves[:1], leaves[:2]):  # in the second place what has the channels
                first = torch.autograd.grad((made.square() * weights.to(dtype)).sum(), of, create_graph=True)
                penalty = torch.stack([each.square().mean() for each in first]).sum()
                second = torch.autograd.grad(penalty, leaves, retain_graph=True)
                sides[-1] += [*first, *second]
        for own, torchs in zip(*sides, strict=True):
            torch.testing.assert_close(own.double(), torchs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ORDERS)
def test_two_orders_of_programs_give_the_same_bits(
    order: torch.memory_format, small_tiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program reads or writes what another one writes."""
    torch.manual_seed(2)
    x, gradient = (torch.randn(MAP).contiguous(memory_format=order) for _ in range(2))
    factors, noise, bias = torch.randn(2, 21), torch.randn(2, 1, 3, 4), torch.randn(21)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("leaky_relu", (x, bias, 1.0)),
        ("leaky_relu_slopes", (gradient, x, 1.0, True)),
        ("styled_leaky_relu", (x, factors, noise, torch.tensor(0.3), bias, 1.0)),
        ("styled_leaky_relu_slopes", (gradient, x, x, factors, noise, 1.0)),
        ("unscaled", (gradient, x, factors)),
        ("unscaled_twice", (gradient, x, x, factors, gradient, factors, 1.0)),
        ("added_up", (torch.randn(10, 21), torch.randn(10, 21), torch.randn(30), 2, torch.float16)),
    ]
    forwards = [PAIRS[name][1](*values) for name, values in calls]
    dims = in_another_order(monkeypatch)
    for before, (name, values) in zip(forwards, calls, strict=True):
        after = PAIRS[name][1](*values)
        for one, other in zip(*((x,) if isinstance(x, Tensor) else x for x in (before, after)), strict=True):
            assert torch.equal(one, other)
    assert max(dims) > 1


@SETTINGS
@given(CASES, st.booleans(), st.sampled_from([0.2, 1.0]))
def test_bias_and_activation(case: Case, sums: bool, slope: float) -> None:
    x, gradient, _, _, _, bias = case.tensors()
    run("leaky_relu", x, bias, case.clamp, slope)
    made = activation.activated(x, bias, case.clamp, slope)
    run("leaky_relu_slopes", gradient, made, case.clamp, sums, slope)


@SETTINGS
@given(CASES, st.booleans())
@example(Case(2, 3, (4, 5), torch.float32, torch.contiguous_format, None, False, None), True)  # noise read at a stride
def test_with_a_style(case: Case, noisy: bool) -> None:
    x, gradient, factors, noise, strength, bias = case.tensors()
    drawn = noise if noisy else None
    run("styled_leaky_relu", x, factors, drawn, strength, bias, case.clamp)
    made = modulation.activated_with_style(x, factors, drawn, strength, bias, case.clamp)
    run("styled_leaky_relu_slopes", gradient, made, x, factors, drawn, case.clamp)
    run("unscaled", gradient, x, factors)


@SETTINGS
@given(CASES, st.booleans(), st.sampled_from([(True, True), (True, False), (False, True)]))
def test_gradients_of_gradients(case: Case, sloped: bool, there: tuple[bool, bool]) -> None:
    """Of a product, and of a styled activation."""
    x, gradient, factors, _, _, bias = case.tensors()
    made = modulation.activated_with_style(x, factors, None, None, bias, case.clamp) if sloped else None
    of_x, of_factors = (each if given else None for each, given in zip((x.neg(), factors.flip(0)), there, strict=True))
    run("unscaled_twice", gradient, made, x, factors, of_x, of_factors, case.clamp)


@SETTINGS
@given(
    st.integers(0, 3),
    st.integers(0, 70),
    st.integers(0, 40) | st.just(300),
    st.integers(0, 9) | st.integers(1020, 3000),
    st.sampled_from([(True, True, True), (True, False, False), (False, True, False), (False, True, True)]),
    st.sampled_from(DTYPES),
)
def test_rows_of_sums(
    pictures: int, rows: int, channels: int, count: int, there: tuple[bool, bool, bool], dtype: torch.dtype
) -> None:
    """All together, those of each picture, either alone, and numbers beside them."""
    each = (torch.randn(rows, channels), torch.randn(pictures * rows, channels), torch.randn(count))
    given_them = [one if is_there else None for one, is_there in zip(each, there, strict=True)]
    torchs, own = (call(*given_them, pictures, dtype) for call in PAIRS["added_up"])
    for one, other in zip(torchs, own, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        torch.testing.assert_close(one, other, rtol=NEAR[dtype], atol=NEAR[dtype])


@SETTINGS
@given(st.lists(st.integers(0, 70), min_size=2, max_size=2), st.sampled_from(DTYPES))
def test_vectors(shape: list[int], dtype: torch.dtype) -> None:
    x, bias = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    run("leaky_relu", x, bias, 0.75)
    run("leaky_relu_slopes", torch.ones_like(x), activation.activated(x, bias, 0.75), 0.75, True)
