"""ReLU and means of 2x2 pixels in one pass over a map, as the residual blocks of discriminators have them.

Such a block makes two things of its input, its ReLU and its means, and adds means to what comes of these. Torch reads
the input twice, and takes four passes to add both gradients; here a kernel does each. The programs in
`programs.pooling` give the bits of torch's operations. They are for maps in channels-last; others go torch's way.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract.kernel import Call
from frugan.contract.ops import Ops
from frugan.contract.resampling import spread2d
from frugan.kernels.kernel import TritonKernel, some_map
from frugan.kernels.maps import MOST_WIDE, TILE, WARPS
from frugan.kernels.operation import like_second, operation

# What is to be computed, in torch's operations. Maps are [N, C, H, W], small ones [N, C, H/2, W/2], in channels-last.


def relu_beside_means(x: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU of a map, and its means."""
    return F.relu(x), _means(x)


def means_plus(x: Tensor, added: Tensor) -> Tensor:
    """Means of a map, and a small one."""
    return _means(x).add_(added)


def means_of_relu(x: Tensor) -> Tensor:
    """Means of a map's ReLU."""
    return _means(F.relu(x))


def both_slopes(gradient: Tensor, result: Tensor, of_means: Tensor) -> Tensor:
    """Gradient of a map from those of its ReLU, whose `result` tells slopes, and of its means."""
    return plain_passed_plus(gradient, result, spread2d(of_means))


def plain_passed_plus(gradient: Tensor, result: Tensor, other: Tensor) -> Tensor:
    """Gradient of a map from that of its ReLU, whose `result` tells slopes, and another one."""
    return torch.add(torch.ops.aten.threshold_backward(gradient, result, 0), other, out=torch.empty_like(result))


def means_of_relu_slopes(of_means: Tensor, x: Tensor) -> Tensor:
    """Gradient of a map, of that of the means of its ReLU."""
    return torch.empty_like(x).copy_(torch.ops.aten.threshold_backward(spread2d(of_means), x, 0))


def _means(x: Tensor) -> Tensor:
    return _small(x).copy_(F.avg_pool2d(x, 2))


def _small(x: Tensor, *_: object) -> Tensor:
    """Room for means."""
    samples, channels, height, width = x.shape
    room = x.new_empty(samples, height // 2, width // 2, channels)
    return room.permute(0, 3, 1, 2)


def _relu_beside_means_like(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), _small(x)


# The same by kernels.

_SLOPES = "Tensor gradient, Tensor result"


@operation("pooled_beside_relu(Tensor x) -> (Tensor, Tensor)", plain=relu_beside_means, like=_relu_beside_means_like)
def pooled_beside_relu(x: Tensor) -> tuple[Tensor, Tensor]:
    result, means = torch.empty_like(x), _small(x)
    _start("pool", (x, result, x, means), RELU=False, KEEPS=True, ADDS=False)
    return result, means


@operation("pooled_plus(Tensor x, Tensor added) -> Tensor", plain=means_plus, like=_small)
def pooled_plus(x: Tensor, added: Tensor) -> Tensor:
    result = _small(x)
    _start("pool", (x, x, added, result), RELU=False, KEEPS=False, ADDS=True)
    return result


@operation("pooled_relu(Tensor x) -> Tensor", plain=means_of_relu, like=_small)
def pooled_relu(x: Tensor) -> Tensor:
    result = _small(x)
    _start("pool", (x, x, x, result), RELU=True, KEEPS=False, ADDS=False)
    return result


@operation(f"pooled_beside_relu_slopes({_SLOPES}, Tensor of_means) -> Tensor", plain=both_slopes, like=like_second)
def pooled_beside_relu_slopes(gradient: Tensor, result: Tensor, of_means: Tensor) -> Tensor:
    to_x = torch.empty_like(result)
    _start("unpool", (gradient, result, of_means, to_x), BOTH=True)
    return to_x


@operation(f"passed_plus({_SLOPES}, Tensor other) -> Tensor", plain=plain_passed_plus, like=like_second)
def passed_plus(gradient: Tensor, result: Tensor, other: Tensor) -> Tensor:
    from frugan.kernels.programs import pooling as programs

    to_x = torch.empty_like(result)
    if to_x.numel():
        grid = (-(-to_x.numel() // TILE),)
        programs.pass_and_add[grid](gradient, result, other, to_x, to_x.numel(), TILE, num_warps=WARPS)
    return to_x


@operation("pooled_relu_slopes(Tensor of_means, Tensor x) -> Tensor", plain=means_of_relu_slopes, like=like_second)
def pooled_relu_slopes(of_means: Tensor, x: Tensor) -> Tensor:
    to_x = torch.empty_like(x)
    _start("unpool", (x, x, of_means, to_x), BOTH=False)
    return to_x


def tile(channels: int) -> tuple[int, int]:
    """Small pixels and channels of a program."""
    wide = min(1 << max(0, channels - 1).bit_length(), MOST_WIDE)
    return TILE // wide, wide


def _start(name: str, maps: tuple[Tensor, Tensor, Tensor, Tensor], **constants: bool) -> None:
    """A kernel over tiles of a small map."""
    from frugan.kernels.programs import pooling as programs

    samples, channels, height, width = maps[0].shape
    pixels = samples * (height // 2) * (width // 2)
    if pixels and channels:
        block_p, block_c = tile(channels)
        grid = (-(-pixels // block_p), -(-channels // block_c))
        getattr(programs, name)[grid](*maps, pixels, width // 2, channels, **constants, **_blocks(block_p, block_c))


def _blocks(block_p: int, block_c: int) -> dict[str, int]:
    return {"BLOCK_P": block_p, "BLOCK_C": block_c, "num_warps": WARPS}


# For maps in channels-last; differentiable as often as one asks, a second time by torch's operations.


def _laid_out(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


class _ReluAndMeans(torch.autograd.Function):
    """Keeps the ReLU and nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        result, means = pooled_beside_relu(x)
        ctx.save_for_backward(result)
        ctx.set_materialize_grads(False)
        return result, means

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensor | None:
        (result,) = ctx.saved_tensors
        gradient, of_means = gradients
        if torch.is_grad_enabled() or gradient is None or of_means is None:
            return _sum_of(_passed(gradient, result), None if of_means is None else spread2d(of_means))
        return pooled_beside_relu_slopes(_laid_out(gradient), result, _laid_out(of_means))


class _ReluAndItself(torch.autograd.Function):
    """Keeps the ReLU and nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        result = F.relu(x)
        ctx.save_for_backward(result)
        ctx.set_materialize_grads(False)
        return result, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensor | None:
        (result,) = ctx.saved_tensors
        gradient, other = gradients
        if torch.is_grad_enabled() or gradient is None or other is None:
            return _sum_of(_passed(gradient, result), other)
        return passed_plus(_laid_out(gradient), result, _laid_out(other))


class _MeansAnd(torch.autograd.Function):
    """Keeps what is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(kept)
        return pooled_plus(x, added)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        _ = ctx.saved_tensors
        (gradient,) = gradients
        to_x = spread2d(gradient) if torch.is_grad_enabled() else _spread_in_one_pass(_laid_out(gradient))
        return to_x, gradient, None


class _MeansOfRelu(torch.autograd.Function):
    """Keeps what it is given, which shows what the ReLU passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return pooled_relu(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor | None:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _passed(spread2d(gradients[0]), x.detach())
        return pooled_relu_slopes(_laid_out(gradients[0]), x)


def _spread_in_one_pass(x: Tensor) -> Tensor:
    """A quarter of each pixel to each of four, without a gradient; dimensions stand in memory's order."""
    samples, channels, height, width = x.shape
    last = x.permute(0, 2, 3, 1)[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
    return (last * 0.25).reshape(samples, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)


def _passed(gradient: Tensor | None, result: Tensor) -> Tensor | None:
    """Through the ReLU."""
    return None if gradient is None else torch.ops.aten.threshold_backward(gradient, result, 0)


def _sum_of(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _fits(x: Tensor) -> bool:
    """Whether a map has the kernels' layout."""
    return x.is_contiguous(memory_format=torch.channels_last)


class Pooling(TritonKernel):
    """ReLU and means, for maps in channels-last."""

    def relu_and_means(self, x: Tensor) -> tuple[Tensor, Callable[[], Tensor], Tensor | None]:
        if not _fits(x):
            return super().relu_and_means(x)
        activated, means = _ReluAndMeans.apply(x)
        return activated, lambda: means, activated

    def relu_and_itself(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not _fits(x):
            return super().relu_and_itself(x)
        activated, same = _ReluAndItself.apply(x)
        return activated, same

    def means_plus(self, x: Tensor, skip: Callable[[], Tensor], kept: Tensor) -> Tensor:
        if not _fits(x):
            return super().means_plus(x, skip, kept)
        return cast(Tensor, _MeansAnd.apply(_laid_out(x), _laid_out(skip()), kept))

    def relu_means(self, x: Tensor) -> Callable[[], Tensor]:
        return partial(_MeansOfRelu.apply, x) if _fits(x) else super().relu_means(x)

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """A map of even sides."""
        even = (*shape[:2], *(side + side % 2 for side in shape[2:]))
        return _residual, [some_map(even, dtype, layout, device)]


def _residual(x: Tensor, *, ops: Ops) -> Tensor:
    """All that blocks of discriminators make of their input, without convolutions."""
    activated, same = ops.relu_and_itself(x)
    activated, means, kept = ops.relu_and_means(activated - same / 2)
    return ops.means_plus(activated, means, activated if kept is None else kept) - ops.relu_means(same)() / 2
