"""ReLU and means of 2x2 pixels in one pass over a map, as the residual blocks of discriminators have them.

Such a block makes two things of its input, its ReLU and its means, and adds means to what comes of these. Torch reads
the input twice, and takes four passes to add both gradients; here a kernel does each. The kernels in `pooling_kernels`
give the bits of torch's operations. They are for maps in channels-last; others go torch's way.
"""

from types import MappingProxyType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.nn.elementwise import is_traced
from frugan.nn.fused_activation import MOST_WIDE, TILE, WARPS
from frugan.nn.linear_maps import spread2d
from frugan.nn.own_operations import Operations, registered

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


def both_slopes(gradient: Tensor, made: Tensor, of_means: Tensor) -> Tensor:
    """Gradient of a map, of that of its ReLU, which was `made`, and of that of its means."""
    return passed_plus(gradient, made, spread2d(of_means))


def passed_plus(gradient: Tensor, made: Tensor, other: Tensor) -> Tensor:
    """Gradient of a map, of that of its ReLU, which was `made`, and another one."""
    return torch.add(torch.ops.aten.threshold_backward(gradient, made, 0), other, out=torch.empty_like(made))


def means_of_relu_slopes(of_means: Tensor, x: Tensor) -> Tensor:
    """Gradient of a map, of that of the means of its ReLU."""
    return torch.empty_like(x).copy_(torch.ops.aten.threshold_backward(spread2d(of_means), x, 0))


def _means(x: Tensor) -> Tensor:
    return _small(x).copy_(F.avg_pool2d(x, 2))


# The same in the kernels.


def start_relu_beside_means(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `relu_beside_means`."""
    if x.dtype == torch.float64:  # which tests have, and no training
        return relu_beside_means(x)
    made, means = torch.empty_like(x), _small(x)
    _start("pool", (x, made, x, means), RELU=False, KEEPS=True, ADDS=False)
    return made, means


def start_means_plus(x: Tensor, added: Tensor) -> Tensor:
    """As `means_plus`."""
    if x.dtype == torch.float64:
        return means_plus(x, added)
    made = _small(x)
    _start("pool", (x, x, added, made), RELU=False, KEEPS=False, ADDS=True)
    return made


def start_means_of_relu(x: Tensor) -> Tensor:
    """As `means_of_relu`."""
    if x.dtype == torch.float64:
        return means_of_relu(x)
    made = _small(x)
    _start("pool", (x, x, x, made), RELU=True, KEEPS=False, ADDS=False)
    return made


def start_both_slopes(gradient: Tensor, made: Tensor, of_means: Tensor) -> Tensor:
    """As `both_slopes`."""
    if made.dtype == torch.float64:
        return both_slopes(gradient, made, of_means)
    to_x = torch.empty_like(made)
    _start("unpool", (gradient, made, of_means, to_x), BOTH=True)
    return to_x


def start_passed_plus(gradient: Tensor, made: Tensor, other: Tensor) -> Tensor:
    """As `passed_plus`."""
    if made.dtype == torch.float64:
        return passed_plus(gradient, made, other)
    from frugan.nn import pooling_kernels as kernels  # noqa: PLC0415  (Triton may be missing)

    to_x = torch.empty_like(made)
    if to_x.numel():
        programs = -(-to_x.numel() // TILE)
        kernels.pass_and_add[programs,](gradient, made, other, to_x, to_x.numel(), TILE, num_warps=WARPS)
    return to_x


def start_means_of_relu_slopes(of_means: Tensor, x: Tensor) -> Tensor:
    """As `means_of_relu_slopes`."""
    if x.dtype == torch.float64:
        return means_of_relu_slopes(of_means, x)
    to_x = torch.empty_like(x)
    _start("unpool", (x, x, of_means, to_x), BOTH=False)
    return to_x


def tile(channels: int) -> tuple[int, int]:
    """Small pixels and channels of a program."""
    wide = min(1 << max(0, channels - 1).bit_length(), MOST_WIDE)
    return TILE // wide, wide


def _start(name: str, maps: tuple[Tensor, Tensor, Tensor, Tensor], **constants: bool) -> None:
    """A kernel over tiles of a small map."""
    from frugan.nn import pooling_kernels as kernels  # noqa: PLC0415

    samples, channels, height, width = maps[0].shape
    pixels = samples * (height // 2) * (width // 2)
    if pixels and channels:
        block_p, block_c = tile(channels)
        grid = (-(-pixels // block_p), -(-channels // block_c))
        getattr(kernels, name)[grid](*maps, pixels, width // 2, channels, **constants, **_blocks(block_p, block_c))


def _blocks(block_p: int, block_c: int) -> dict[str, int]:
    return {"BLOCK_P": block_p, "BLOCK_C": block_c, "num_warps": WARPS}


def _small(x: Tensor, *_: object) -> Tensor:
    """Room for means."""
    samples, channels, height, width = x.shape
    room = x.new_empty(samples, height // 2, width // 2, channels)
    return room.permute(0, 3, 1, 2)


# As operations of torch's.


def _like(_: Tensor, made: Tensor, *__: object) -> Tensor:
    return torch.empty_like(made)


def _relu_beside_means_like(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), _small(x)


_SLOPES = "Tensor gradient, Tensor made"
OPERATIONS: Operations = MappingProxyType(
    {
        "pooled_beside_relu(Tensor x) -> (Tensor, Tensor)": (
            relu_beside_means,
            start_relu_beside_means,
            _relu_beside_means_like,
        ),
        "pooled_plus(Tensor x, Tensor added) -> Tensor": (means_plus, start_means_plus, _small),
        "pooled_relu(Tensor x) -> Tensor": (means_of_relu, start_means_of_relu, _small),
        f"pooled_beside_relu_slopes({_SLOPES}, Tensor of_means) -> Tensor": (both_slopes, start_both_slopes, _like),
        f"passed_plus({_SLOPES}, Tensor other) -> Tensor": (passed_plus, start_passed_plus, _like),
        "pooled_relu_slopes(Tensor of_means, Tensor x) -> Tensor": (
            means_of_relu_slopes,
            start_means_of_relu_slopes,
            _like,
        ),
    }
)
_LIBRARY = registered(OPERATIONS)
_operations = torch.ops.frugan


# What layers call, for maps in channels-last; differentiable as often as one asks, a second time by torch's operations.


def usable(x: Tensor, kernels: frozenset[str]) -> bool:
    """Whether these operations are to be taken for a map: it has their layout, and no compiler joins operations."""
    return "pooling" in kernels and not is_traced() and x.is_contiguous(memory_format=torch.channels_last)


def relu_and_means(x: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU of a map of even sides, and means of 2x2 of its pixels: [N, C, H, W] -> the same, and [N, C, H/2, W/2]."""
    made, means = _ReluAndMeans.apply(x)
    return made, means


def relu_and_itself(x: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU of a map, and the map for something else, whose gradients are added in one pass: [N, C, H, W] twice."""
    made, same = _ReluAndItself.apply(x)
    return made, same


def means_and(x: Tensor, added: Tensor, kept: Tensor) -> Tensor:
    """Means of 2x2 pixels and what is added to them.

    Args:
        x: [N, C, H, W].
        added: [N, C, H/2, W/2].
        kept: what a backward needs anyway. It is asked for first, so that a block that is recomputed is so before there
            is a gradient as large as x.

    Returns:
        [N, C, H/2, W/2].
    """
    return cast(Tensor, _MeansAnd.apply(_laid_out(x), _laid_out(added), kept))


def relu_means(x: Tensor) -> Tensor:
    """Means of 2x2 pixels of a map's ReLU, which is not kept: [N, C, H, W] -> [N, C, H/2, W/2]."""
    return cast(Tensor, _MeansOfRelu.apply(_laid_out(x)))


def _laid_out(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


class _ReluAndMeans(torch.autograd.Function):
    """Keeps the ReLU and nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        made, means = _operations.pooled_beside_relu(x)
        ctx.save_for_backward(made)
        ctx.set_materialize_grads(False)
        return made, means

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensor | None:
        (made,) = ctx.saved_tensors
        gradient, of_means = gradients
        if torch.is_grad_enabled() or gradient is None or of_means is None:
            return _sum_of(_passed(gradient, made), None if of_means is None else spread2d(of_means))
        given = _laid_out(gradient), made, _laid_out(of_means)
        return cast(Tensor, _operations.pooled_beside_relu_slopes(*given))


class _ReluAndItself(torch.autograd.Function):
    """The same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        made = F.relu(x)
        ctx.save_for_backward(made)
        ctx.set_materialize_grads(False)
        return made, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensor | None:
        (made,) = ctx.saved_tensors
        gradient, other = gradients
        if torch.is_grad_enabled() or gradient is None or other is None:
            return _sum_of(_passed(gradient, made), other)
        given = _laid_out(gradient), made, _laid_out(other)
        return cast(Tensor, _operations.passed_plus(*given))


class _MeansAnd(torch.autograd.Function):
    """Keeps what is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(kept)
        return cast(Tensor, _operations.pooled_plus(x, added))

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
        return cast(Tensor, _operations.pooled_relu(x))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor | None:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _passed(spread2d(gradients[0]), x.detach())
        return cast(Tensor, _operations.pooled_relu_slopes(_laid_out(gradients[0]), x))


def _spread_in_one_pass(x: Tensor) -> Tensor:
    """A quarter of each pixel to each of four, without a gradient; dimensions stand in memory's order."""
    samples, channels, height, width = x.shape
    last = x.permute(0, 2, 3, 1)[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
    return (last * 0.25).reshape(samples, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)


def _passed(gradient: Tensor | None, made: Tensor) -> Tensor | None:
    """Through the ReLU."""
    return None if gradient is None else torch.ops.aten.threshold_backward(gradient, made, 0)


def _sum_of(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
