"""Linear maps of pictures that keep nothing of them for their gradient; differentiable as often as one asks for.

Torch's convolution keeps its input also where the weight takes no gradient, as a discriminator's in the generator's
phase, and its average pooling keeps its input for the size of it. A linear map's gradient needs neither.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0) -> Tensor:
    """As `torch.nn.functional.conv2d`; where neither weight nor bias takes a gradient, x is not kept.

    Args:
        x: [N, I, H, W].
        weight: [O, I, k, k].
        bias: [O].
    """
    learns = weight.requires_grad or (bias is not None and bias.requires_grad)
    if learns or not x.requires_grad or not torch.is_grad_enabled():
        return F.conv2d(x, weight, bias, stride, padding)
    return cast(Tensor, _Convolution.apply(x, weight, bias, stride, padding))


def mean_pool2d(x: Tensor) -> Tensor:
    """Means of 2x2 pixels, of even sides: [N, C, H, W] -> [N, C, H/2, W/2]."""
    return cast(Tensor, _MeanPool.apply(x))


class _Convolution(torch.autograd.Function):
    """x [N, I, H, W] -> [N, O, H', W'], the weight held constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.given = x.shape, stride, padding
        return F.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (weight,) = ctx.saved_tensors
        return cast(Tensor, _Adjoint.apply(gradients[0], weight, *ctx.given)), None, None, None, None


class _Adjoint(torch.autograd.Function):
    """[N, O, H', W'] -> [N, I, H, W]: the convolution's gradient in x."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, weight: Tensor, shape: torch.Size, stride: int, padding: int) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.given = stride, padding
        return cast(Tensor, conv2d_input(shape, _ordered_as(gradient, weight), gradient, stride, padding))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (weight,) = ctx.saved_tensors
        return cast(Tensor, _Convolution.apply(gradients[0], weight, None, *ctx.given)), None, None, None, None


def _ordered_as(x: Tensor, weight: Tensor) -> Tensor:
    """A weight that says of channels-last pictures that they are; the input, which else says it, is not there."""
    if x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
        return weight
    if weight.shape[2:] == (1, 1):
        return weight.flatten(1)[:, None, None].permute(0, 3, 1, 2)  # its strides are ambiguous otherwise
    return weight.contiguous(memory_format=torch.channels_last)


class _MeanPool(torch.autograd.Function):
    """[N, C, H, W] -> [N, C, H/2, W/2]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return cast(Tensor, _Spread.apply(gradients[0]))


class _Spread(torch.autograd.Function):
    """Adjoint of the means: a quarter of each pixel to each of four, [N, C, H, W] -> [N, C, 2·H, 2·W]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return F.interpolate(x * 0.25, scale_factor=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return cast(Tensor, _MeanPool.apply(gradients[0]))
