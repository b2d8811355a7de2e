"""Linear maps of pictures, differentiable as often as one asks for, that keep little of them or nothing."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from frugan.contract import cpu_ways

# Linear maps of pictures that keep nothing of them for their gradient; differentiable as often as one asks for.
#
# Torch's convolution keeps its input also where the weight takes no gradient, as a discriminator's in the generator's
# phase, and its average pooling keeps its input for the size of it. A linear map's gradient needs neither.


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0, groups: int = 1
) -> Tensor:
    """As `torch.nn.functional.conv2d`; where neither weight nor bias takes a gradient, x is not kept.

    Args:
        x: [N, I, H, W].
        weight: [O, I/groups, k, k].
        bias: [O].
    """
    learns = weight.requires_grad or (bias is not None and bias.requires_grad)
    if learns or not x.requires_grad or not torch.is_grad_enabled():
        return F.conv2d(x, weight, bias, stride, padding, 1, groups)
    return cast(Tensor, _Convolution.apply(x, weight, bias, stride, padding, groups))


def grouped_conv2d(x: Tensor, weight: Tensor, *, padding: int, groups: int) -> Tensor:
    """As `conv2d` without a bias, where a weight that learns is differentiated twice.

    Torch's own second derivative of a convolution in groups goes group by group, which for 96 groups are hundreds of
    kernels; here each derivative is one convolution in groups.
    """
    if groups == 1 or not weight.requires_grad or not x.requires_grad or not torch.is_grad_enabled():
        return conv2d(x, weight, padding=padding, groups=groups)
    return cast(Tensor, _Grouped.apply(x, weight, padding, groups))


def mean_pool2d(x: Tensor) -> Tensor:
    """Means of 2x2 pixels, of even sides: [N, C, H, W] -> [N, C, H/2, W/2]."""
    return cast(Tensor, _MeanPool.apply(x))


class _Convolution(torch.autograd.Function):
    """x [N, I, H, W] -> [N, O, H', W'], the weight held constant."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, groups: int
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.given = x.shape, stride, padding, groups
        return F.conv2d(x, weight, bias, stride, padding, 1, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (weight,) = ctx.saved_tensors
        return cast(Tensor, _Adjoint.apply(gradients[0], weight, *ctx.given)), None, None, None, None, None


class _Adjoint(torch.autograd.Function):
    """[N, O, H', W'] -> [N, I, H, W]: the convolution's gradient in x."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, weight: Tensor, shape: torch.Size, stride: int, padding: int, groups: int
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.given = stride, padding, groups
        # By a transposed convolution: torch's `conv2d_input` gives a dummy in contiguous order for the input, and on
        # cuDNN the gradient, and what comes of it, would be copied to that order and back.
        rest = [
            side - ((out - 1) * stride - 2 * padding + kernel)
            for side, out, kernel in zip(shape[2:], gradient.shape[2:], weight.shape[2:], strict=True)
        ]
        ordered = _ordered_as(gradient, weight)
        return F.conv_transpose2d(gradient, ordered, None, stride, padding, rest, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (weight,) = ctx.saved_tensors
        return cast(Tensor, _Convolution.apply(gradients[0], weight, None, *ctx.given)), None, None, None, None, None


class _Grouped(torch.autograd.Function):
    """x [N, I, H, W], weight [O, I/groups, k, k] -> [N, O, H', W'], both of which may learn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: int, groups: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.given = padding, groups
        return F.conv2d(x, weight, None, 1, padding, 1, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = cast(Tensor, _GroupedAdjoint.apply(gradients[0], weight, *ctx.given))
        if ctx.needs_input_grad[1]:
            to_weight = cast(Tensor, _WeightGradient.apply(x, gradients[0], weight.shape, *ctx.given))
        return to_x, to_weight, None, None


class _GroupedAdjoint(torch.autograd.Function):
    """[N, O, H', W'], weight [O, I/groups, k, k] -> [N, I, H, W]: the convolution's gradient in x."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, weight: Tensor, padding: int, groups: int) -> Tensor:
        ctx.save_for_backward(gradient, weight)
        ctx.given = padding, groups
        return F.conv_transpose2d(gradient, _ordered_as(gradient, weight), None, 1, padding, 0, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        gradient, weight = ctx.saved_tensors
        to_gradient = to_weight = None
        if ctx.needs_input_grad[0]:
            to_gradient = cast(Tensor, _Grouped.apply(gradients[0], weight, *ctx.given))
        if ctx.needs_input_grad[1]:
            to_weight = cast(Tensor, _WeightGradient.apply(gradients[0], gradient, weight.shape, *ctx.given))
        return to_gradient, to_weight, None, None


class _WeightGradient(torch.autograd.Function):
    """x [N, I, H, W], [N, O, H', W'] -> [O, I/groups, k, k]: the convolution's gradient in its weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor, shape: torch.Size, padding: int, groups: int) -> Tensor:
        ctx.save_for_backward(x, gradient)
        ctx.given = padding, groups
        return cast(Tensor, conv2d_weight(x, shape, gradient, 1, padding, 1, groups))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x, gradient = ctx.saved_tensors
        to_x = to_gradient = None
        if ctx.needs_input_grad[0]:
            to_x = cast(Tensor, _GroupedAdjoint.apply(gradient, gradients[0], *ctx.given))
        if ctx.needs_input_grad[1]:
            to_gradient = cast(Tensor, _Grouped.apply(x, gradients[0], *ctx.given))
        return to_x, to_gradient, None, None, None


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
        if cpu_ways.taken_for(x):  # as `plus_doubled`
            return F.interpolate(x * 0.25, scale_factor=2)
        return spread_in_one_pass(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return cast(Tensor, _MeanPool.apply(gradients[0]))


def spread_in_one_pass(x: Tensor) -> Tensor:
    """A quarter of each pixel to each of four as a card does it, without a gradient; dimensions in memory's order."""
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        samples, channels, height, width = x.shape
        last = x.permute(0, 2, 3, 1)[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
        return (last * 0.25).view(samples, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)
    return (x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2) * 0.25).flatten(4).flatten(2, 3)


# A 3x3 convolution of a picture doubled by nearest neighbours, without the doubled picture.
#
# Each output sees only 2x2 of the pixels that were given, each of them once or more. So it is a transposed convolution
# of stride 2, whose 4x4 kernel holds sums of the weights: 16 products where there were 36, and a quarter of the memory.


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
    """The same as a card adds it, without a gradient.

    Dimensions stand in the order of memory: a compiler may lay out a result in the order of its dimensions, and would
    copy pictures back to channels-last for the next convolution.
    """
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        last, small_last = x.permute(0, 2, 3, 1), small.permute(0, 2, 3, 1)
        samples, height, width, channels = small_last.shape
        twos = last.view(samples, height, 2, width, 2, channels)
        return torch.add(twos, small_last[:, :, None, :, None]).view(last.shape).permute(0, 3, 1, 2)
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
