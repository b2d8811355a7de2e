"""Linear maps of pictures, differentiable any number of times, that keep little or nothing for their gradient."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract import cpu_ways
from frugan.contract.elementwise import is_wanted
from frugan.contract.layers import Penalised

# Convolutions that keep only what their gradient needs.
#
# Torch's own keeps its input even where the weight takes no gradient, like a discriminator's in the generator's phase.
# For its second derivative, which penalties on a discriminator's gradient need, it computes the weight's gradient by a
# convolution with a kernel as large as the picture, and group by group: hundreds of kernels for 96 groups. Here each
# derivative is one operation of the kinds that every training has: a convolution, its gradient in the input, or its
# gradient in the weight.


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
        penalised: the convolution will be differentiated twice. Where it is not, torch's own is better: when a block
            is recomputed, nothing after the last kept input is computed, and torch keeps its input first.
    """
    learns = weight.requires_grad or (bias is not None and bias.requires_grad)
    if (learns and not penalised) or not x.requires_grad or not torch.is_grad_enabled():
        return F.conv2d(x, weight, bias, stride, padding, 1, groups)
    if weight.requires_grad:  # for `is_wanted`
        weight, bias = weight.view_as(weight), None if bias is None else bias.view_as(bias)
    return cast(Tensor, _Convolution.apply(x, weight, bias, stride, padding, groups))


class Conv2d(Penalised, nn.Conv2d):
    """Torch's layer with equal padding on all sides, computed by `conv2d`."""

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
        ctx.shape, ctx.options = x.shape, (stride, padding, groups)
        return F.conv2d(x, weight, bias, stride, padding, 1, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias, *_ = ctx.needs_input_grad
        if x is not None and not torch.is_grad_enabled():  # one operation for all, as in torch
            options = _torch_options(*ctx.options)
            bias_sizes = [len(weight)] if to_bias else None
            all_three = torch.ops.aten.convolution_backward(
                gradient, x, weight, bias_sizes, *options, [to_x, to_weight, to_bias]
            )
            return *all_three, None, None, None
        of_x = cast(Tensor, _Adjoint.apply(gradient, weight, ctx.shape, *ctx.options)) if to_x else None
        of_weight = None
        if is_wanted(ctx, 1):
            of_weight = cast(Tensor, _WeightGradient.apply(x, gradient, weight.shape, *ctx.options))
        of_bias = gradient.sum((0, 2, 3)) if is_wanted(ctx, 2) else None
        return of_x, of_weight, of_bias, None, None, None


class _Adjoint(torch.autograd.Function):
    """[N, O, H', W'], weight [O, I/groups, k, k] -> [N, I, H, W]: the convolution's gradient in x."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, weight: Tensor, shape: torch.Size, stride: int, padding: int, groups: int
    ) -> Tensor:
        ctx.save_for_backward(gradient if ctx.needs_input_grad[1] else None, weight)
        ctx.options = stride, padding, groups
        # By a transposed convolution: torch's `conv2d_input` passes a contiguous dummy for the input, and on cuDNN the
        # gradient and its result would be copied to that layout and back.
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
            of_gradient = cast(Tensor, _Convolution.apply(gradients[0], weight, None, *ctx.options))
        if is_wanted(ctx, 1):
            of_weight = cast(Tensor, _WeightGradient.apply(gradients[0], gradient, weight.shape, *ctx.options))
        return of_gradient, of_weight, None, None, None, None


class _WeightGradient(torch.autograd.Function):
    """x [N, I, H, W], [N, O, H', W'] -> [O, I/groups, k, k]: the convolution's gradient in its weight."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gradient: Tensor, shape: torch.Size, stride: int, padding: int, groups: int
    ) -> Tensor:
        ctx.save_for_backward(x, gradient)
        ctx.options = stride, padding, groups
        weight = gradient.new_empty(1).expand(shape)  # only its shape counts
        options = _torch_options(*ctx.options)
        _, of_weight, _ = torch.ops.aten.convolution_backward(gradient, x, weight, None, *options, [False, True, False])
        return cast(Tensor, of_weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, gradient = ctx.saved_tensors
        of_x = of_gradient = None
        if ctx.needs_input_grad[0]:
            of_x = cast(Tensor, _Adjoint.apply(gradient, gradients[0], x.shape, *ctx.options))
        if ctx.needs_input_grad[1]:
            of_gradient = cast(Tensor, _Convolution.apply(x, gradients[0], None, *ctx.options))
        return of_x, of_gradient, None, None, None, None


def _torch_options(
    stride: int, padding: int, groups: int = 1, transposed: bool = False
) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
    """Options of a convolution in the order in which torch's operations take them."""
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
    """Gradients of a convolution in x and in its weight, differentiable any number of times.

    Args:
        gradient: gradient of the convolution's result.
        x: the convolution's input.
        weight: the convolution's weight.
        wanted: whether the gradient in x is wanted, and that in the weight.
        stride: of the convolution.
        padding: of the convolution.
        transposed: whether it is a transposed convolution.
    """
    if not torch.is_grad_enabled():
        options = _torch_options(stride, padding, transposed=transposed)
        in_x, in_weight, _ = torch.ops.aten.convolution_backward(gradient, x, weight, None, *options, [*wanted, False])
        return in_x, in_weight
    of_x = of_weight = None
    if wanted[0]:
        of_x = (
            _Convolution.apply(gradient, weight, None, stride, padding, 1)
            if transposed
            else _Adjoint.apply(gradient, weight, x.shape, stride, padding, 1)
        )
    if wanted[1]:
        large, small = (gradient, x) if transposed else (x, gradient)
        of_weight = _WeightGradient.apply(large, small, weight.shape, stride, padding, 1)
    return cast(tuple[Tensor | None, Tensor | None], (of_x, of_weight))


def ordered_like(x: Tensor, weight: Tensor) -> Tensor:
    """Lay out pictures and their gradients in channels-last if a weight larger than 1x1 is; else leave them.

    Torch convolves in either layout, and 1x1 weights are in both. So contiguous pictures, and their gradients, stay
    contiguous along skips: at every larger convolution they are laid out anew, and sums of both layouts are slow.

    Args:
        x: [N, C, H, W].
        weight: [O, I, k, k].
    """
    if weight.is_contiguous() or not weight.is_contiguous(memory_format=torch.channels_last):
        return x
    return cast(Tensor, _ChannelsLast.apply(x))


class _ChannelsLast(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return cast(Tensor, _ChannelsLast.apply(gradients[0]))


def _ordered_as(x: Tensor, weight: Tensor) -> Tensor:
    """Lay out a weight like pictures: a transposed convolution has no input that tells torch their layout."""
    if x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
        return weight
    if weight.shape[2:] == (1, 1):
        return weight.flatten(1)[:, None, None].permute(0, 3, 1, 2)  # the strides are ambiguous otherwise
    return weight.contiguous(memory_format=torch.channels_last)


# A 3x3 convolution of a picture doubled by nearest neighbours, without the doubled picture.
#
# Each output sees only 2x2 pixels of the picture, each of them once or more. So the whole is a transposed convolution
# of stride 2, whose 4x4 kernel holds sums of the weights: 16 products instead of 36, and a quarter of the memory.


def upsampled_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Double the side and convolve: [N, I, H, W], [O, I, 3, 3], [O] -> [N, O, 2·H, 2·W].

    Small pictures of many channels really are doubled: there the sums of weights would take more than they save. The
    choice does not depend on the number of samples, so neither does the rounding.
    """
    if not sums_weights(x.shape[2] * x.shape[3], weight):
        return F.conv2d(F.interpolate(x, scale_factor=2), weight, bias, padding=1)
    return F.conv_transpose2d(x, _sums(weight), bias, stride=2, padding=1)


def sums_weights(pixels: int, weight: Tensor) -> bool:
    """Whether a picture of so many pixels is doubled by sums of the weights [O, I, 3, 3]."""
    return pixels >= len(weight)


def _sums(weight: Tensor) -> Tensor:
    """Sums over windows of 2x2 of the flipped weights, padded with zeros: [O, I, 3, 3] -> [I, O, 4, 4]."""
    last = weight.is_contiguous(memory_format=torch.channels_last)
    turned = weight.flip((2, 3)).transpose(0, 1)
    turned = turned.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    return F.avg_pool2d(turned, 2, stride=1, padding=1, divisor_override=1)


# Means of 2x2 pixels after a 3x3 convolution, without the map in between.
#
# Both are one convolution of stride 2, whose 4x4 kernel holds means of the weights: 16 products instead of 36, and a
# quarter of the memory.


def folds_means(pixels: int, weight: Tensor) -> bool:
    """Whether means after a 3x3 convolution are worth folding into it.

    For small maps of many channels they are not: there the means of weights take more than they save. The choice does
    not depend on the number of samples, so neither does the rounding.

    Args:
        pixels: of the map that is convolved.
        weight: [O, I, 3, 3].
    """
    return pixels >= 4 * len(weight)


def pooled_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, *, penalised: bool = False) -> Tensor:
    """Convolve and take means of 2x2: [N, I, H, W] of even sides, [O, I, 3, 3], [O] -> [N, O, H/2, W/2].

    Args:
        penalised: see `conv2d`.
    """
    means = F.avg_pool2d(weight, 2, stride=1, padding=1)  # [O, I, 4, 4]; zeros around the weights count
    return conv2d(x, means, bias, stride=2, padding=1, penalised=penalised)


def plus_doubled(x: Tensor, small: Tensor) -> Tensor:
    """Add the doubled `small` [N, C, H, W] to x [N, C, 2·H, 2·W]."""
    return cast(Tensor, _PlusDoubled.apply(x, small))


def plus_doubled_in_one_pass(x: Tensor, small: Tensor) -> Tensor:
    """Add a doubled map in one pass of a card, without a gradient.

    The views have their dimensions in the order of memory: a compiler may lay out a result in the order of its
    dimensions, and would then copy pictures back to channels-last for the next convolution.
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
    """Sum with a doubled map whose backward is one pass; torch's own strides through memory."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, small: Tensor) -> Tensor:
        if cpu_ways.taken_for(x):  # there the single pass takes 2 to 6 times as long as these two
            return F.interpolate(small, scale_factor=2).add_(x)
        return plus_doubled_in_one_pass(x, small)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], F.avg_pool2d(gradients[0], 2, divisor_override=1)  # sums
