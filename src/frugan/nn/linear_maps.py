"""Linear maps of pictures, differentiable as often as one asks for, that keep little of them or nothing."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract import cpu_ways
from frugan.contract.elementwise import is_wanted
from frugan.contract.layers import Penalised

# Convolutions that keep what their gradient needs, differentiable as often as one asks for.
#
# Torch's own keeps its input also where the weight takes no gradient, as a discriminator's in the generator's phase.
# Its second derivative, which penalties on a discriminator's gradient ask for, takes the gradient in the weight by a
# convolution with a kernel as large as the picture, and group by group: hundreds of kernels for 96 groups. Here each
# derivative is one operation of the kinds that every training has: a convolution, its gradient in the input or in the
# weight.


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    penalised: bool = False,
) -> Tensor:
    """Convolve like `torch.nn.functional.conv2d`, without keeping x where neither weight nor bias takes a gradient.

    Args:
        x: [N, I, H, W].
        weight: [O, I/groups, k, k].
        bias: [O].
        penalised: it will be differentiated twice. Torch's own way is better where it is not: of a block that is made
            again, nothing is that comes after the last input that is kept, and torch keeps its input first.
    """
    learns = weight.requires_grad or (bias is not None and bias.requires_grad)
    if (learns and not penalised) or not x.requires_grad or not torch.is_grad_enabled():
        return F.conv2d(x, weight, bias, stride, padding, 1, groups)
    if weight.requires_grad:  # for `is_wanted`
        weight, bias = weight.view_as(weight), None if bias is None else bias.view_as(bias)
    return cast(Tensor, _Convolution.apply(x, weight, bias, stride, padding, groups))


class Conv2d(Penalised, nn.Conv2d):
    """torch's, of the same padding on all sides, by way of `conv2d`."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H', W']."""
        padding = cast(int, self.padding[0])
        return conv2d(x, self.weight, self.bias, padding=padding, penalised=self.penalised)


class _Convolution(torch.autograd.Function):
    """x [N, I, H, W], weight [O, I/groups, k, k], bias [O] or None -> [N, O, H', W']."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, groups: int
    ) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.shape, ctx.given = x.shape, (stride, padding, groups)
        return F.conv2d(x, weight, bias, stride, padding, 1, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias, *_ = ctx.needs_input_grad
        if x is not None and not torch.is_grad_enabled():  # as torch does it, in one operation
            ways = _ways(*ctx.given)
            bias_sizes = [len(weight)] if to_bias else None
            made = torch.ops.aten.convolution_backward(
                gradient, x, weight, bias_sizes, *ways, [to_x, to_weight, to_bias]
            )
            return *made, None, None, None
        of_x = cast(Tensor, _Adjoint.apply(gradient, weight, ctx.shape, *ctx.given)) if to_x else None
        of_weight = None
        if is_wanted(ctx, 1):
            of_weight = cast(Tensor, _WeightGradient.apply(x, gradient, weight.shape, *ctx.given))
        of_bias = gradient.sum((0, 2, 3)) if is_wanted(ctx, 2) else None
        return of_x, of_weight, of_bias, None, None, None


class _Adjoint(torch.autograd.Function):
    """[N, O, H', W'], weight [O, I/groups, k, k] -> [N, I, H, W]: the convolution's gradient in x."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, weight: Tensor, shape: torch.Size, stride: int, padding: int, groups: int
    ) -> Tensor:
        ctx.save_for_backward(gradient if ctx.needs_input_grad[1] else None, weight)
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
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient, weight = ctx.saved_tensors
        of_gradient = of_weight = None
        if ctx.needs_input_grad[0]:
            of_gradient = cast(Tensor, _Convolution.apply(gradients[0], weight, None, *ctx.given))
        if is_wanted(ctx, 1):
            of_weight = cast(Tensor, _WeightGradient.apply(gradients[0], gradient, weight.shape, *ctx.given))
        return of_gradient, of_weight, None, None, None, None


class _WeightGradient(torch.autograd.Function):
    """x [N, I, H, W], [N, O, H', W'] -> [O, I/groups, k, k]: the convolution's gradient in its weight."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gradient: Tensor, shape: torch.Size, stride: int, padding: int, groups: int
    ) -> Tensor:
        ctx.save_for_backward(x, gradient)
        ctx.given = stride, padding, groups
        weight = gradient.new_empty(1).expand(shape)  # its values do not count
        made = torch.ops.aten.convolution_backward(gradient, x, weight, None, *_ways(*ctx.given), [False, True, False])
        return cast(Tensor, made[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, gradient = ctx.saved_tensors
        of_x = of_gradient = None
        if ctx.needs_input_grad[0]:
            of_x = cast(Tensor, _Adjoint.apply(gradient, gradients[0], x.shape, *ctx.given))
        if ctx.needs_input_grad[1]:
            of_gradient = cast(Tensor, _Convolution.apply(x, gradients[0], None, *ctx.given))
        return of_x, of_gradient, None, None, None, None


def _ways(
    stride: int, padding: int, groups: int = 1, transposed: bool = False
) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
    """As torch's operations take them."""
    return [stride, stride], [padding, padding], [1, 1], transposed, [0, 0], groups


def gradients_of_convolution(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    wanted: tuple[bool, bool],
    *,
    stride: int,
    padding: int,
    transposed: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of a convolution in x and in its weight, differentiable as often as one asks for.

    Args:
        gradient: of its result.
        x, weight: as it was given them.
        wanted: which of both are.
        stride, padding, transposed: of the convolution.
    """
    if not torch.is_grad_enabled():
        ways = _ways(stride, padding, transposed=transposed)
        made = torch.ops.aten.convolution_backward(gradient, x, weight, None, *ways, [*wanted, False])
        return made[0], made[1]
    of_x = of_weight = None
    if wanted[0]:
        given = (stride, padding, 1)
        of_x = (
            _Convolution.apply(gradient, weight, None, *given)
            if transposed
            else _Adjoint.apply(gradient, weight, x.shape, *given)
        )
    if wanted[1]:
        large, small = (gradient, x) if transposed else (x, gradient)
        of_weight = _WeightGradient.apply(large, small, weight.shape, stride, padding, 1)
    return cast(tuple[Tensor | None, Tensor | None], (of_x, of_weight))


def ordered_like(x: Tensor, weight: Tensor) -> Tensor:
    """Pictures, and all gradients of them, in channels-last, if a weight of more than one place is; else as they are.

    Torch convolves in either order, and 1x1 weights are in both. So pictures that come in the other one keep it along
    skips, and so do gradients: at every larger convolution they are laid out anew, and sums of both orders are slow.

    Args:
        x: [N, C, H, W].
        weight: [O, I, k, k].
    """
    if weight.is_contiguous() or not weight.is_contiguous(memory_format=torch.channels_last):
        return x
    return cast(Tensor, _ChannelsLast.apply(x))


class _ChannelsLast(torch.autograd.Function):
    """[N, C, H, W] -> the same values."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return cast(Tensor, _ChannelsLast.apply(gradients[0]))


def _ordered_as(x: Tensor, weight: Tensor) -> Tensor:
    """A weight that says of channels-last pictures that they are; the input, which else says it, is not there."""
    if x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
        return weight
    if weight.shape[2:] == (1, 1):
        return weight.flatten(1)[:, None, None].permute(0, 3, 1, 2)  # its strides are ambiguous otherwise
    return weight.contiguous(memory_format=torch.channels_last)


# A 3x3 convolution of a picture doubled by nearest neighbours, without the doubled picture.
#
# Each output sees only 2x2 of the pixels that were given, each of them once or more. So it is a transposed convolution
# of stride 2, whose 4x4 kernel holds sums of the weights: 16 products where there were 36, and a quarter of the memory.


def upsampled_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Double the side and convolve: [N, I, H, W], [O, I, 3, 3], [O] -> [N, O, 2·H, 2·W].

    Small pictures of many channels are doubled: there the sums of weights would take more than they save. Which way is
    taken does not depend on the number of samples, so neither does the rounding.
    """
    if not sums_weights(x.shape[2] * x.shape[3], weight):
        return F.conv2d(F.interpolate(x, scale_factor=2), weight, bias, padding=1)
    return F.conv_transpose2d(x, _sums(weight), bias, stride=2, padding=1)


def sums_weights(pixels: int, weight: Tensor) -> bool:
    """Whether a picture of so many pixels is doubled by sums of the weights [O, I, 3, 3]."""
    return pixels >= len(weight)


def _sums(weight: Tensor) -> Tensor:
    """Sums over windows of 2x2 of the turned weights, zeros around them: [O, I, 3, 3] -> [I, O, 4, 4]."""
    last = weight.is_contiguous(memory_format=torch.channels_last)
    turned = weight.flip((2, 3)).transpose(0, 1)
    turned = turned.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    return F.avg_pool2d(turned, 2, stride=1, padding=1, divisor_override=1)


# Means of 2x2 pixels of what a 3x3 convolution makes, without the map that they are of.
#
# They are one convolution of stride 2, whose 4x4 kernel holds means of the weights: 16 products where there were 36,
# and a quarter of the memory.


def folds_means(pixels: int, weight: Tensor) -> bool:
    """Whether means after a 3x3 convolution are worth folding into it.

    Small maps of many channels are not: there the means of weights take more than they save. Which way is taken does
    not depend on the number of samples, so neither does the rounding.

    Args:
        pixels: of the map that is convolved.
        weight: [O, I, 3, 3].
    """
    return pixels >= 4 * len(weight)


def pooled_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, *, penalised: bool = False) -> Tensor:
    """Convolve and take means of 2x2: [N, I, H, W] of even sides, [O, I, 3, 3], [O] -> [N, O, H/2, W/2].

    Args:
        penalised: as for `conv2d`.
    """
    means = F.avg_pool2d(weight, 2, stride=1, padding=1)  # [O, I, 4, 4], zeros around counted
    return conv2d(x, means, bias, stride=2, padding=1, penalised=penalised)


def plus_doubled(x: Tensor, small: Tensor) -> Tensor:
    """Add to a picture another one of half its side, doubled: [N, C, 2·H, 2·W], [N, C, H, W] -> [N, C, 2·H, 2·W]."""
    return cast(Tensor, _PlusDoubled.apply(x, small))


def plus_doubled_in_one_pass(x: Tensor, small: Tensor) -> Tensor:
    """Add a doubled map in one pass of a card, without a gradient.

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
