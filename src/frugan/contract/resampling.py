"""Resampling of maps by a finite filter, by means of 2x2 pixels, and by the adjoints of these.

The adjoint of each operation is an operation of the same kind, so that nothing but a filter is kept, whatever the order
of the derivative: torch's convolutions would keep their input for the gradient of a filter that takes none, and its
pooling keeps the input just for its size.
"""

from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import cpu_ways

Padding = tuple[int, int, int, int]
"""Zeros before and after in x, before and after in y; negative numbers cut samples off."""


@dataclass(frozen=True)
class Geometry:
    """Upsampling, padding and downsampling around a filter."""

    up: int  # each sample becomes one sample and `up` - 1 zeros
    down: int  # one of `down` samples is kept
    padding: Padding  # applied after upsampling

    @property
    def transposed(self) -> bool:
        """Whether torch computes it by a transposed convolution, which needs no zeros put in."""
        return self.up > 1 and self.down == 1

    def adjoint(self, inputs: torch.Size, outputs: torch.Size, taps: torch.Size) -> "Geometry":
        """Geometry of the adjoint of an operation from [.., H, W] to [.., H', W'] with a filter [T, T']."""
        padding: list[int] = []
        for axis, before in ((-1, self.padding[0]), (-2, self.padding[2])):
            end = inputs[axis] * self.up - outputs[axis] * self.down + before - self.up + 1
            padding += [taps[axis] - before - 1, end]
        return Geometry(self.down, self.up, cast(Padding, tuple(padding)))


def filter_map(x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Upsample, pad, filter and downsample without a gradient: [N, C, H, W] -> [N, C, H', W'].

    Args:
        kernel: [T, T'], flipped already unless `geometry.transposed`.
    """
    up, down, (x0, x1, y0, y1) = geometry.up, geometry.down, geometry.padding
    channels = x.shape[1]
    height, width = kernel.shape
    transposed = geometry.transposed
    if transposed and cpu_ways.taken_in_half_for(x):
        # There a transposed convolution of one channel at a time takes 20 to 50 times as long as putting in zeros.
        kernel, transposed = kernel.flip((0, 1)), False
    weight = kernel.expand(channels, 1, height, width)
    if transposed:
        # Torch computes all places that the filter reaches; those beside the padded map are cut off.
        tall, wide = (side * up for side in x.shape[2:])
        left, top = width - 1 - x0, height - 1 - y0
        right = (wide - up + width) - left - (wide + x0 + x1 - width + 1)
        bottom = (tall - up + height) - top - (tall + y0 + y1 - height + 1)
        if left == right >= 0 and top == bottom >= 0:
            return F.conv_transpose2d(x, weight, stride=up, padding=(top, left), groups=channels)
        whole = F.conv_transpose2d(x, weight, stride=up, groups=channels)
        return F.pad(whole, (-left, -right, -top, -bottom))
    if up > 1:
        size = (x.shape[0], x.shape[2] * up, x.shape[3] * up, channels)
        spread = x.new_zeros(size).permute(0, 3, 1, 2)  # channels last, as pictures are kept
        spread[:, :, ::up, ::up] = x
        x = spread
    if x0 == x1 >= 0 and y0 == y1 >= 0:
        return F.conv2d(x, weight, stride=down, padding=(y0, x0), groups=channels)
    return F.conv2d(F.pad(x, (x0, x1, y0, y1)), weight, stride=down, groups=channels)


class Filters(Protocol):
    """Filters maps by a kernel, or by `filter_map`."""

    def fir(self, x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
        """[N, C, H, W] -> [N, C, H', W'], without a gradient."""


def upfirdn2d(x: Tensor, kernel: Tensor, other: Tensor, geometry: Geometry, by: Filters) -> Tensor:
    """Filter a map, differentiable any number of times: [N, C, H, W] -> [N, C, H', W'].

    Args:
        kernel: filter [T, T'] as torch's operation takes it.
        other: the filter as the adjoint's operation takes it [T, T'].
    """
    return cast(Tensor, _UpFirDown.apply(x, kernel, other, geometry, by))


class _UpFirDown(torch.autograd.Function):
    """The gradient is the operation itself, with the adjoint's geometry and both filters exchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, other: Tensor, geometry: Geometry, by: Filters) -> Tensor:
        ctx.save_for_backward(kernel, other)
        filtered = by.fir(x, kernel, geometry)
        ctx.back, ctx.by = geometry.adjoint(x.shape, filtered.shape, kernel.shape), by
        ctx.set_materialize_grads(False)
        return filtered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        kernel, other = ctx.saved_tensors
        to_x = None if gradients[0] is None else upfirdn2d(gradients[0], other, kernel, ctx.back, ctx.by)
        return to_x, None, None, None, None


def mean_pool2d(x: Tensor) -> Tensor:
    """Means of 2x2 pixels of a map of even sides: [N, C, H, W] -> [N, C, H/2, W/2]."""
    return cast(Tensor, _MeanPool.apply(x))


def spread2d(x: Tensor) -> Tensor:
    """Adjoint of `mean_pool2d`, a quarter of each pixel to each of four: [N, C, H, W] -> [N, C, 2·H, 2·W]."""
    return cast(Tensor, _Spread.apply(x))


class _MeanPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return spread2d(gradients[0])


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return F.interpolate(x * 0.25, scale_factor=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return mean_pool2d(gradients[0])
