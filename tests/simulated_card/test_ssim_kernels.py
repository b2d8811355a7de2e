"""Kernels of structural dissimilarity, by Triton's interpreter on a processor: they give what torch gives."""

from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from frugan.contract.dssim import C1, C2, bands, window
from frugan.kernels import ssim
from frugan.kernels.operation import Operation, operations
from frugan.kernels.ssim import by_torch, mean_dssim
from simulated_card.other_order import in_another_order

pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")

SETTINGS = settings(report_multiple_bugs=False, phases=[Phase.explicit, Phase.generate])
PAIRS = {each.name: (each.plain, each.start) for each in operations(ssim)}
"""Operation -> the same in torch and by the kernel."""
SIDES = st.integers(1, 67)
PLANES = st.tuples(st.integers(0, 3), st.integers(1, 4))


def planes(count: int, *shape: int) -> list[Tensor]:
    """Random pictures, which are like each other so that variances are small."""
    generator = torch.Generator().manual_seed(sum(shape))
    first = torch.rand(shape, generator=generator)
    return [first, *(first + torch.rand(shape, generator=generator) / 4 for _ in range(count - 1))]


def run(name: str, *values: Any) -> None:
    """Hold one kernel to torch."""
    torchs, own = ([made] if isinstance(made := call(*values), Tensor) else made for call in PAIRS[name])
    for at, (one, other) in enumerate(zip(torchs, own, strict=True)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.stride() == other.stride() or not one.numel()
        expected, found = (x.sum(1) if name == "ssim_likeness" and at == 0 else x for x in (one, other))
        most = max([1.0, *expected.abs().flatten().tolist()])  # sums are in rows, which are added up
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * most)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plane has several programs, with several tiles each where they sum."""
    for name, value in {"TILE": 16, "MOST_PROGRAMS": 8}.items():
        monkeypatch.setattr(ssim, name, value)
    assert min(ssim.loops_of(4, 99), ssim.chunks_of(4, 99)) > 1


@SETTINGS
@given(PLANES, st.tuples(SIDES, SIDES), st.booleans(), st.booleans())
def test_each_gives_what_torch_gives(size: tuple[int, int], sides: tuple[int, int], to_a: bool, to_b: bool) -> None:
    a, b = planes(2, *size, *sides)
    run("ssim_moments", a, b)
    means = torch.stack([a, b, a * b + 0.01, a * a + b * b + 0.1])
    run("ssim_likeness", means, C1, C2, to_a, to_b)
    for place in (2, 3):
        run("ssim_gathered", means, place, a, b, torch.linspace(-1, 2, size[0] * size[1]))


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations start the kernels, on a processor too."""
    monkeypatch.setattr(Operation, "__call__", Operation.by_kernel)


@pytest.mark.parametrize("sides", [(9, 11), (12, 8), (31, 31)])
def test_derivatives_against_float64(sides: tuple[int, int], small_tiles: None, by_kernels: None) -> None:
    """Gradients, and what a penalty on them gives, where a program has several tiles."""
    ends = []
    for dtype, call in ((torch.float32, mean_dssim), (torch.float64, by_torch)):
        a, b = (each.to(dtype).requires_grad_() for each in planes(2, 2, 2, *sides))
        blurs = [bands(sides, window(size, a.device, dtype), 0) for size in (3, 8)]
        made = call(a, b, blurs, (C1, C2))
        weights = torch.linspace(-1, 2, made.numel(), dtype=dtype).view_as(made)
        plain = torch.autograd.grad((made * weights).sum(), (a, b), retain_graph=True)
        (first,) = torch.autograd.grad((made * weights).sum(), b, create_graph=True)
        ends.append([made, *plain, first, *torch.autograd.grad(first.square().sum(), (a, b))])
    for own, exact in zip(*ends, strict=True):
        torch.testing.assert_close(own.double(), exact, rtol=1e-3, atol=1e-4 * float(exact.detach().abs().amax()))


def test_two_orders_of_programs_give_the_same_bits(small_tiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program reads or writes what another one writes."""
    a, b, c, d = planes(4, 2, 2, 9, 11)
    means, weights = torch.stack([a, b, c, d]), torch.linspace(-1, 2, 4)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("ssim_moments", (a, b)),
        ("ssim_likeness", (means, C1, C2, True, True)),
        ("ssim_gathered", (means, 3, a, b, weights)),
    ]
    forwards = [PAIRS[name][1](*values) for name, values in calls]
    dims = in_another_order(monkeypatch)
    for before, (name, values) in zip(forwards, calls, strict=True):
        after = PAIRS[name][1](*values)
        for one, other in zip(*((x,) if isinstance(x, Tensor) else x for x in (before, after)), strict=True):
            assert torch.equal(one, other)
    assert max(dims) > 1
