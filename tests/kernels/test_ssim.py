"""Structural dissimilarity by operations of our own: what torch's give, its derivatives, and what it moves."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from frugan.contract.dssim import C1, C2, bands, dssim, window
from frugan.contract.ops import PLAIN
from frugan.kernels import ssim
from frugan.kernels.ssim import Dssim, by_torch, mean_dssim
from frugan.stepmemory.work import WorkCounter

SIZES = (4, 7)


def pictures(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    a, b = (torch.rand(shape, dtype=torch.float64, generator=generator).to(dtype) for _ in range(2))
    return a.requires_grad_(), b.requires_grad_()


def likened(a: Tensor, b: Tensor, *, plain: bool = False) -> Tensor:
    """By windows of both sizes."""
    dtype = torch.promote_types(a.dtype, torch.float32)
    blurs = [bands(a.shape[2:], window(size, a.device, dtype), 0) for size in SIZES]
    if plain:
        return by_torch(a.to(dtype), b.to(dtype), blurs, (C1, C2))
    return mean_dssim(a, b, blurs, (C1, C2))


def both(call: Any, tensors: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Result, gradients, and gradients of a penalty on these, by our operations and by torch's."""
    sides = []
    for plain in (False, True):
        made = call(*tensors, plain=plain)
        weights = torch.linspace(-1, 2, made.numel(), dtype=made.dtype).view_as(made)
        alone = torch.autograd.grad((made * weights).sum(), wanted, retain_graph=True)
        first = torch.autograd.grad((made.square() * weights).sum(), wanted, create_graph=True)
        penalty = torch.stack([each.float().square().sum() for each in first]).sum()
        sides.append([made, *alone, *first, *torch.autograd.grad(penalty, wanted)])
    return list(zip(*sides, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(2, 3, 19, 23), (1, 1, 7, 7), (3, 2, 9, 7)])
def test_it_is_what_torch_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = pictures(*shape, dtype=dtype)
    near = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3}[dtype]

    for wanted in ((a, b), (a,), (b,)):
        for own, torchs in both(likened, (a, b), wanted):
            torch.testing.assert_close(own, torchs, rtol=near, atol=near)
    expected = (dssim(a, b, 4) + dssim(a, b, 7)) / 2
    torch.testing.assert_close(likened(a, b), expected, rtol=near, atol=near)
    assert likened(a, b).dtype == torch.promote_types(dtype, torch.float32)


def test_derivatives() -> None:
    assert torch.autograd.gradcheck(likened, pictures(1, 2, 8, 9))
    assert torch.autograd.gradgradcheck(likened, pictures(1, 1, 7, 8), fast_mode=True)


def test_pictures_that_are_made_of_each_other() -> None:
    """Each one's part of the gradient is its own, in a gradient of the gradient too."""
    (a, _) = pictures(1, 2, 8, 8)
    for own, torchs in both(lambda x, plain: likened(x, x.square(), plain=plain), [a], [a]):
        torch.testing.assert_close(own, torchs)


def test_what_lies_otherwise_and_where_there_is_nothing() -> None:
    a, b = (each.transpose(2, 3) for each in pictures(2, 3, 9, 12))
    torch.testing.assert_close(likened(a, b), likened(a, b, plain=True))
    assert likened(a[:0], b[:0]).shape == (0, 3)


def test_without_a_gradient_nothing_is_made_for_one() -> None:
    a, b = pictures(2, 3, 9, 12)
    with torch.no_grad():
        torch.testing.assert_close(likened(a, b), likened(a, b, plain=True))
    means = torch.empty(4, 2, 3, 5, 5, device="meta")
    assert torch.ops.frugan.ssim_likeness(means, C1, C2, False, False)[1].numel() == 0


def test_without_data_it_is_of_the_same_shapes_and_strides() -> None:
    a, b = (each.detach() for each in pictures(2, 3, 9, 12))
    means = ssim.moments(a, b)
    spread = ssim.likeness(means, C1, C2, True, True)[1]
    given: dict[str, tuple[Any, ...]] = {
        "ssim_moments": (a, b),
        "ssim_likeness": (means, C1, C2, True, False),
        "ssim_gathered": (spread, 3, a, b, a.new_ones(6)),
    }
    for name, values in given.items():
        operation = getattr(torch.ops.frugan, name)
        found, expected = (
            operation(*(each.to(device) if isinstance(each, Tensor) else each for each in values))
            for device in ("meta", "cpu")
        )
        pairs = [(found, expected)] if isinstance(found, Tensor) else list(zip(found, expected, strict=True))
        for one, other in pairs:
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def test_each_map_moves_once() -> None:
    a = torch.empty(2, 3, 256, 256, device="meta")
    means, spread = a.new_empty(4, *a.shape), a.new_empty(3, *a.shape)
    cases: dict[str, tuple[int, tuple[Any, ...]]] = {
        "ssim_moments": (2 + 4, (a, torch.empty_like(a))),
        "ssim_likeness": (4 + 3, (means, C1, C2, False, True)),
        "ssim_gathered": (3 + 2 + 1, (spread, 2, a, torch.empty_like(a), a.new_empty(6))),
    }
    for name, (maps, values) in cases.items():
        with WorkCounter() as counter:
            getattr(torch.ops.frugan, name)(*values)
        assert counter.work.operations == 1
        assert maps <= counter.work.bytes_moved / a.nbytes < maps + 0.01, name


@pytest.mark.parametrize("shape", [(1, 1), (6, 469 * 469), (6, 491 * 491), (3000, 64 * 64), (1, 2048 * 2048)])
def test_programs_cover_a_plane(shape: tuple[int, int]) -> None:
    planes, pixels = shape
    chunk = ssim.loops_of(planes, pixels) * ssim.TILE
    chunks = ssim.chunks_of(planes, pixels)
    assert chunks * chunk >= pixels > (chunks - 1) * chunk
    assert planes * chunks <= 2 * max(ssim.MOST_PROGRAMS, planes)


def test_a_face_loss_is_what_it_is_without() -> None:
    a, b = pictures(2, 3, 19, 23, dtype=torch.float32)
    mask = torch.linspace(0, 1, 23)
    for name, values in {"dssim": (a, b, SIZES, 10.0), "mean_square": (a, b), "masked_error": (a, b, mask)}.items():
        torch.testing.assert_close(getattr(Dssim(), name)(*values), getattr(PLAIN, name)(*values))
