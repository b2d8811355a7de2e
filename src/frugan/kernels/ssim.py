"""Structural dissimilarity in four passes over the pictures and what their blurs make of them, gradient included.

Torch's own operations take some 60 passes forward and 90 more backward. The blurs stay products of matrices, of all
that is to be blurred at once; what stands between them is an operation each, whose program is in
`programs.ssim`. They give what torch's operations give up to the last bits, as these sums and products are rounded
differently.

The gradient's part before the adjoint of the blur is found while its values are at hand, and kept: three maps or four.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract.dssim import C1, C2, bands, window
from frugan.contract.kernel import Call
from frugan.contract.ops import Ops
from frugan.kernels.kernel import TritonKernel, some_map
from frugan.kernels.operation import operation

TILE = 1024
"""Numbers that a program works on at once: 16 bytes for each of its threads."""
WARPS = 8
MOST_PROGRAMS = 1024
"""That write sums, about: a few for each multiprocessor."""

Blur = tuple[Tensor, Tensor]
"""Matrices [H, H'] and [W, W'] that make of x [.., H, W] the blurred downᵀ·x·across [.., H', W']."""


def loops_of(planes: int, pixels: int) -> int:
    """Tiles of a plane that a program adds up, one behind the other."""
    return max(1, -(-pixels // TILE) * planes // MOST_PROGRAMS)


def chunks_of(planes: int, pixels: int) -> int:
    """Programs that add up a plane."""
    return -(-pixels // (TILE * loops_of(planes, pixels)))


# What is to be computed, in torch's operations. Planes are [B, C, H, W], contiguous, of fp32 or more.


def moments(a: Tensor, b: Tensor) -> Tensor:
    """Stack what is blurred: a, b, a·b, a² + b² [4, B, C, H, W]."""
    return torch.stack([a, b, a * b, torch.addcmul(a.square(), b, b)])


def likeness(means: Tensor, c1: float, c2: float, to_a: bool, to_b: bool) -> tuple[Tensor, Tensor]:
    """A quarter of SSIM, from blurred moments [4, B, C, H, W].

    Args:
        means: the moments.
        c1, c2: SSIM's constants.
        to_a, to_b: what slopes are wanted of.

    Returns:
        Sums over pixels [B·C, chunks], and slopes [.., B, C, H, W] with respect to the blurs of a·b, of a² + b², then
        of a and of b as far as they are wanted; 0 of them where neither is.
    """
    a, b, crosses, squares_of_both = means.unbind()
    product, squares = a * b, torch.addcmul(a.square(), b, b)
    luminance, structure = product + c1 / 2, crosses - product + c2 / 2
    brightness, spread = squares + c1, squares_of_both - squares + c2
    share = (brightness * spread).reciprocal()
    alike = luminance * structure * share
    sums, slopes = _likeness_like(means, c1, c2, to_a, to_b)
    sums.zero_()
    if sums.numel():
        sums[:, 0] = alike.sum((2, 3)).flatten()
    if to_a or to_b:
        slopes[0], slopes[1] = luminance * share, -alike / spread
        crossed, direct = (structure - luminance) * share, 2 * alike * (1 / spread - 1 / brightness)
        if to_a:
            slopes[2] = b * crossed + a * direct
        if to_b:
            slopes[-1] = a * crossed + b * direct
    return sums, slopes


def gathered(spread: Tensor, place: int, mine: Tensor, other: Tensor, weights: Tensor) -> Tensor:
    """Gradient of one picture.

    Args:
        spread: slopes, through the adjoint of the blur [.., B, C, H, W].
        place: of this picture's own among them.
        mine, other: this picture and the one that it is compared with [B, C, H, W].
        weights: of each plane [B·C].
    """
    whole = spread[place] + other * spread[0] + 2 * mine * spread[1]
    return whole * weights.view(*mine.shape[:2], 1, 1)


def _moments_like(a: Tensor, _: Tensor) -> Tensor:
    return a.new_empty(4, *a.shape)


def _likeness_like(means: Tensor, _: float, __: float, to_a: bool, to_b: bool) -> tuple[Tensor, Tensor]:
    shape = means.shape[1:]
    planes, pixels = shape[:2].numel(), shape[2:].numel()
    wanted = 2 + to_a + to_b if to_a or to_b else 0
    return means.new_empty(planes, chunks_of(planes, pixels)), means.new_empty(wanted, *shape)


def _gathered_like(spread: Tensor, place: int, mine: Tensor, other: Tensor, weights: Tensor) -> Tensor:
    return torch.empty_like(mine)


# The same by kernels.


@operation("ssim_moments(Tensor a, Tensor b) -> Tensor", plain=moments, like=_moments_like)
def ssim_moments(a: Tensor, b: Tensor) -> Tensor:
    from frugan.kernels.programs import ssim as programs

    result, count = _moments_like(a, b), a.numel()
    if count:
        programs.moments[(-(-count // TILE),)](a, b, result, count, BLOCK=TILE, num_warps=WARPS)
    return result


@operation(
    "ssim_likeness(Tensor means, float c1, float c2, bool to_a, bool to_b) -> (Tensor, Tensor)",
    plain=likeness,
    like=_likeness_like,
)
def ssim_likeness(means: Tensor, c1: float, c2: float, to_a: bool, to_b: bool) -> tuple[Tensor, Tensor]:
    from frugan.kernels.programs import ssim as programs

    sums, slopes = _likeness_like(means, c1, c2, to_a, to_b)
    if sums.numel():
        planes, pixels = len(sums), means.shape[-2:].numel()
        constants = {"TO_A": to_a, "TO_B": to_b, "BLOCK": TILE, "num_warps": WARPS}
        numbers = (pixels, planes * pixels, loops_of(planes, pixels), c1 / 2, c2 / 2)
        programs.likeness[tuple(sums.shape)](means, slopes, sums, *numbers, **constants)
    return sums, slopes


@operation(
    "ssim_gathered(Tensor spread, int place, Tensor mine, Tensor other, Tensor weights) -> Tensor",
    plain=gathered,
    like=_gathered_like,
)
def ssim_gathered(spread: Tensor, place: int, mine: Tensor, other: Tensor, weights: Tensor) -> Tensor:
    from frugan.kernels.programs import ssim as programs

    result, planes, pixels = torch.empty_like(mine), len(weights), mine.shape[-2:].numel()
    if result.numel():
        arguments = (spread, spread[place], mine, other, weights, result, pixels, mine.numel())
        programs.gather[planes, -(-pixels // TILE)](*arguments, BLOCK=TILE, num_warps=WARPS)
    return result


# Differentiable as often as one asks.


def mean_dssim(a: Tensor, b: Tensor, blurs: Sequence[Blur], constants: tuple[float, float]) -> Tensor:
    """(1 - SSIM) / 2 of each sample and channel; the mean over several windows.

    Args:
        a, b: [B, C, H, W] in [0, 1].
        blurs: what each window's blur is, in the dtype of the result.
        constants: SSIM's C1 and C2.

    Returns:
        [B, C], fp32 or more.
    """
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    a, b = a.to(dtype).contiguous(), b.to(dtype).contiguous()
    return cast(Tensor, _Dssim.apply(a, b, constants, *(matrix for blur in blurs for matrix in blur)))


def by_torch(a: Tensor, b: Tensor, blurs: Sequence[Blur], constants: tuple[float, float]) -> Tensor:
    """Compute `mean_dssim` of pictures in the dtype of the blurs, in operations that torch differentiates."""
    c1, c2 = constants
    rows, total = moments(a, b), torch.zeros((), dtype=a.dtype, device=a.device)
    for down, across in blurs:
        mean_a, mean_b, crosses, squares_of_both = (down.T @ (rows @ across)).unbind()
        product, squares = mean_a * mean_b, torch.addcmul(mean_a.square(), mean_b, mean_b)
        alike = (product + c1 / 2) * (crosses - product + c2 / 2)
        total = total + (alike / ((squares + c1) * (squares_of_both - squares + c2))).mean((2, 3))
    return (1 - 4 / len(blurs) * total) / 2


class _Dssim(torch.autograd.Function):
    """Keeps both pictures and the slopes, unless what is asked for is to be differentiated in its turn."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, constants: tuple[float, float], *matrices: Tensor) -> Tensor:
        rows = ssim_moments(a, b)
        blurs = list(zip(matrices[::2], matrices[1::2], strict=True))
        kept, total = [], None
        for down, across in blurs:
            means = down.T @ (rows @ across)  # [4, B, C, H', W']
            sums, slopes = ssim_likeness(means, *constants, *ctx.needs_input_grad[:2])
            share = means.shape[3:].numel() * len(blurs)
            total = sums.sum(1) / share if total is None else torch.add(total, sums.sum(1), alpha=1 / share)
            kept.append(slopes)
        ctx.save_for_backward(a, b, *kept, *matrices)
        ctx.constants = constants
        assert total is not None
        return (1 - 4 * total).view(a.shape[:2]) / 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        a, b, *kept = ctx.saved_tensors
        windows = len(kept) // 3
        blurs = list(zip(kept[windows::2], kept[windows + 1 :: 2], strict=True))
        no_more = [None] * (1 + 2 * windows)
        if torch.is_grad_enabled():
            pair = a.view_as(a), b.view_as(b)  # one may be made of the other: that is the caller's to follow
            wanted = [x for x, wants in zip(pair, ctx.needs_input_grad, strict=False) if wants]
            result = by_torch(*pair, blurs, ctx.constants)
            found = iter(torch.autograd.grad(result, wanted, gradients[0], create_graph=True))
            to_a, to_b = (next(found) if wants else None for wants in ctx.needs_input_grad[:2])
            return to_a, to_b, *no_more
        whole: Tensor | None = None
        for slopes, (down, across) in zip(kept[:windows], blurs, strict=True):
            rows = (down @ slopes).flatten(0, -2)  # [..·B·C·H, W']
            back = across.T * (-2 / (slopes.shape[3:].numel() * windows))  # [W', W]
            whole = torch.mm(rows, back) if whole is None else whole.addmm_(rows, back)
        assert whole is not None
        spread, weights = whole.view(-1, *a.shape), gradients[0].flatten().contiguous()
        to_a, to_b = (
            ssim_gathered(spread, place, mine, other, weights) if wants else None
            for wants, place, mine, other in zip(
                ctx.needs_input_grad, (2, len(spread) - 1), (a, b), (b, a), strict=False
            )
        )
        return to_a, to_b, *no_more


class Dssim(TritonKernel):
    """Structural dissimilarity, and other losses of the same pictures in fewer passes, where bits may change."""

    timed = (2, 3, 512, 512)  # pictures: as many as a face loss takes at once

    def dssim(self, a: Tensor, b: Tensor, sizes: Sequence[int], weight: float) -> Tensor:
        dtype = torch.promote_types(a.dtype, torch.float32)
        blurs = [bands(a.shape[-2:], window(size, a.device, dtype), 0) for size in sizes]
        return weight * mean_dssim(a, b, blurs, (C1, C2)).mean()

    def mean_square(self, a: Tensor, b: Tensor) -> Tensor:
        return F.mse_loss(a, b)  # whose backward is one pass

    def masked_error(self, x: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return ((x - target) * mask).abs().mean()  # three passes fewer

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """Two pictures in [0, 1], one a little unlike the other."""
        x = some_map(shape, dtype, layout, device)
        return _compare, [x.sigmoid(), (x + x.flip(1) / 8).sigmoid()]


def _compare(a: Tensor, b: Tensor, *, ops: Ops) -> Tensor:
    """In windows of which one is even."""
    return ops.dssim(a, b, (5, 6), 1.0)
