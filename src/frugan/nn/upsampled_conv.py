"""A 3x3 convolution of a picture doubled by nearest neighbours, without the doubled picture.

Each output sees only 2x2 of the pixels that were given, each of them once or more. So it is a transposed convolution
of stride 2, whose 4x4 kernel holds sums of the weights: 16 products where there were 36, and a quarter of the memory.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import cpu_ways


def upsampled_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Double the side and convolve: [N, I, H, W], [O, I, 3, 3], [O] -> [N, O, 2·H, 2·W].

    Small pictures of many channels are doubled: there the sums of weights would take more than they save. Which way is
    taken does not depend on the number of samples, so neither does the rounding.
    """
    if x.shape[2] * x.shape[3] < len(weight):
        return F.conv2d(F.interpolate(x, scale_factor=2), weight, bias, padding=1)
    return F.conv_transpose2d(x, _sums(weight), bias, stride=2, padding=1)


def _sums(weight: Tensor) -> Tensor:
    """Sums over windows of 2x2 of the turned weights, zeros around them: [O, I, 3, 3] -> [I, O, 4, 4]."""
    last = weight.is_contiguous(memory_format=torch.channels_last)
    turned = weight.flip((2, 3)).transpose(0, 1)
    turned = turned.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    return F.avg_pool2d(turned, 2, stride=1, padding=1, divisor_override=1)


def plus_doubled(x: Tensor, small: Tensor) -> Tensor:
    """Add to a picture another one of half its side, doubled: [N, C, 2·H, 2·W], [N, C, H, W] -> [N, C, 2·H, 2·W]."""
    return cast(Tensor, _PlusDoubled.apply(x, small))


def plus_doubled_in_one_pass(x: Tensor, small: Tensor) -> Tensor:
    """The same as a card adds it, without a gradient."""
    samples, channels, height, width = small.shape
    twos = x.view(samples, channels, height, 2, width, 2)
    return torch.add(twos, small[:, :, :, None, :, None]).view(x.shape)


class _PlusDoubled(torch.autograd.Function):
    """Its backward is one pass: torch sums over windows by an operation that strides through memory."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, small: Tensor) -> Tensor:
        if cpu_ways.taken_for(x):  # there the one pass takes 2 to 6 times as long as these two
            return F.interpolate(small, scale_factor=2).add_(x)
        return plus_doubled_in_one_pass(x, small)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], F.avg_pool2d(gradients[0], 2, divisor_override=1)  # sums
