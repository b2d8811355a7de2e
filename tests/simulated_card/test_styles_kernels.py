"""Kernels for styles of all layers at once, by Triton's interpreter on a processor: they give what torch gives."""

from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from frugan.kernels import styles as kernels
from frugan.kernels.operation import Operation, operations
from frugan.kernels.styles import modulations
from simulated_card.kernel_settings import SETTINGS
from simulated_card.other_order import in_another_order

pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")

PAIRS = {each.name: (each.plain, each.start) for each in operations(kernels)}
"""Operation -> the same in torch and by the kernel."""
SIDES = st.integers(1, 13)


@pytest.fixture(autouse=True, scope="module")
def _small_tiles() -> Any:
    """Small matrices have several programs, with several tiles each."""
    sizes = {"multiply": (2, 4, 8), "give_back": (2, 4, 8), "outer": (4, 8)}
    words = ("BLOCK_R", "BLOCK_O", "BLOCK_I")
    blocks = {name: dict(zip(words[-len(of) :], of, strict=True)) for name, of in sizes.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "BLOCKS", MappingProxyType(blocks))
        yield


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def cases(count: int, inputs: int, styles: int, outputs: list[int], covered: bool) -> list[tuple[str, tuple[Any, ...]]]:
    """Of all operations: layers that take one of some styles each, the first two the same one; and flat rows."""
    at = sorted(i % styles for i in range(len(outputs)))
    matrices, biases = [random(each, inputs) for each in outputs], [random(each) for each in outputs]
    x, y = random(count * styles * inputs), random(count * sum(outputs))
    by_style = (count, [place * inputs for place in at], styles * inputs)
    ends = [count * inputs * i for i in range(len(outputs) + 1)]
    flat, size = random(ends[-1] + 5), ends[-1] + (0 if covered else 5)
    of_layers = (count, ends[:-1], 0)
    widths, scaled = outputs, [i % 3 != 1 for i in range(len(outputs))]
    sides = (outputs, [inputs] * len(outputs))
    divisors = random(len(outputs), count).abs() + 1
    return [
        ("styles_products", (x, matrices, biases, *by_style)),
        ("styles_products", (flat, matrices, [], *of_layers)),
        ("styles_given_back", (y, matrices, *by_style, x.numel())),
        ("styles_given_back", (y, matrices, *of_layers, size)),
        ("styles_outers", (y, x, *sides, *by_style, True)),
        ("styles_outers", (y, flat, *sides, *of_layers, False)),
        ("styles_over_largest", (y, None, widths, scaled, count)),
        ("styles_over_largest", (y, divisors, widths, scaled, count)),
    ]


@SETTINGS
@given(st.integers(1, 5), SIDES, st.integers(1, 3), st.lists(SIDES, min_size=1, max_size=4), st.booleans())
def test_each_gives_what_torch_gives(count: int, inputs: int, styles: int, outputs: list[int], covered: bool) -> None:
    for name, values in cases(count, inputs, styles, outputs, covered):
        torchs, own = (call(*values) for call in PAIRS[name])
        for one, other in [(torchs, own)] if isinstance(own, Tensor) else zip(torchs, own, strict=True):
            assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def test_a_row_with_no_number_has_none_and_zeros_stay() -> None:
    x = torch.tensor([1.0, float("nan"), -3.0, 0.0, 0.0, 0.0, 2.0, -4.0, 1.0, float("inf"), 1.0, 1.0])
    for call in PAIRS["styles_over_largest"]:
        made, found = call(x, None, [3], [True], 4)
        assert made.view(4, 3)[0].isnan().all()
        assert found[0, 0].isnan()
        assert torch.equal(made.view(4, 3)[1:3], torch.tensor([[0.0, 0.0, 0.0], [0.5, -1.0, 0.25]]))
        assert made[9].isnan()


def test_two_orders_of_programs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program reads or writes what another one writes."""
    calls = cases(3, 10, 2, [5, 3, 9], covered=True)
    forwards = [PAIRS[name][1](*values) for name, values in calls]
    dims = in_another_order(monkeypatch)
    for before, (name, values) in zip(forwards, calls, strict=True):
        after = PAIRS[name][1](*values)
        for one, other in [(before, after)] if isinstance(after, Tensor) else zip(before, after, strict=True):
            assert torch.equal(one, other)
        assert min(dims[:2]) > 1


def test_derivatives_against_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients, and what a penalty on them gives; in float64 by torch."""
    monkeypatch.setattr(Operation, "__call__", Operation.by_kernel)
    widths, outputs = (9, 5, 20), (6, 11)
    exact = [random(3, 2, 10), *(random(each, 10) for each in widths), *(random(each) for each in widths)]
    exact += [random(of, width).square() for of, width in zip(outputs, widths, strict=False)]
    sides = []
    for dtype in (torch.float32, torch.float64):
        leaves = [each.to(dtype, copy=True).requires_grad_() for each in exact]
        affines = list(zip(leaves[1:4], leaves[4:7], (0, 1, 1), strict=True))
        made = modulations(leaves[0], affines, leaves[7:], [dtype] * 3, 1e-2)
        flat = torch.cat([each.flatten() for part in made for each in part])
        (first,) = torch.autograd.grad(flat.square().sum() / 9, leaves[:1], create_graph=True)
        sides.append([flat, first, *torch.autograd.grad(first.square().sum(), leaves)])
    for own, torchs in zip(*sides, strict=True):
        most = float(torchs.detach().abs().max())
        torch.testing.assert_close(own.double(), torchs, rtol=1e-4, atol=1e-4 * most)
