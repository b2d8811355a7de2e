"""Operations on each element that keep as little as can be for their gradient."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import cpu_ways
from frugan.torch_internals import is_node_needed, is_traced

# Gain and bias in one operation, whose backward passes over the picture as often as it must.
#
# Torch's `addcmul` multiplies the kept input by its `value` of 1 first, and then by the gradient: a pass and a
# picture's memory for nothing.


def affine(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """x·gain + bias, differentiable as often as one asks for.

    Args:
        x: [B, C, H, W].
        gain, bias: of any shapes that can be broadcast to it.
    """
    return cast(Tensor, _Affine.apply(x, gain, bias))


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, gain)
        ctx.bias_shape = bias.shape
        return torch.addcmul(_along_rows(bias, x), x, _along_rows(gain, x))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,) = gradients
        x, gain = ctx.saved_tensors
        to_x = gradient * _along_rows(gain, gradient) if ctx.needs_input_grad[0] else None
        to_gain = (gradient * x).sum_to_size(gain.shape) if ctx.needs_input_grad[1] else None
        return to_x, to_gain, gradient.sum_to_size(ctx.bias_shape) if ctx.needs_input_grad[2] else None


def _along_rows(values: Tensor, x: Tensor) -> Tensor:
    """Values of each channel, repeated for a whole row of x where that saves time: on a CPU, in half precision.

    Torch's loop over the channels of one pixel takes up to ten times as long there as one over a row of pixels.
    """
    last = torch.channels_last
    if (
        not cpu_ways.taken_in_half_for(x)
        or values.shape[1:] != (x.shape[1], 1, 1)
        or not x.is_contiguous(memory_format=last)
    ):
        return values
    return values.expand(-1, -1, 1, x.shape[3]).contiguous(memory_format=last)


def scaled_noise(noise: Tensor, strength: Tensor, dtype: torch.dtype) -> Tensor:
    """noise·strength in some precision, whose sums are fp32: [N, 1, H, W] or [H, W], scalar -> as the noise."""
    return cast(Tensor, _ScaledNoise.apply(noise, strength, dtype))


class _ScaledNoise(torch.autograd.Function):
    """In one operation each way but for the sum."""

    @staticmethod
    def forward(ctx: Any, noise: Tensor, strength: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(noise, strength)
        return torch.mul(noise, strength, out=torch.empty_like(noise, dtype=dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        noise, strength = ctx.saved_tensors
        to_noise = (gradients[0] * strength).to(noise.dtype) if ctx.needs_input_grad[0] else None
        to_strength = (gradients[0] * noise).sum() if ctx.needs_input_grad[1] else None
        return to_noise, to_strength, None


def is_wanted(ctx: Any, place: int) -> bool:
    """Whether a backward that runs has a use for the gradient of an input that takes one.

    A penalty's first gradient is of pictures alone, and torch's own operations leave weights' gradients out of it; one
    of ours is asked for them all the same. Of a leaf torch does not say it: give a view of one.

    Args:
        ctx: of the backward.
        place: of the input, among those that are tensors.
    """
    if not ctx.needs_input_grad[place]:
        return False
    node = ctx.next_functions[place][0]
    return is_traced() or hasattr(node, "variable") or is_node_needed(node)


# Bias, leaky ReLU and clamp in one operation that keeps its result and nothing else.
#
# Source: Karras et al. 2018 (arXiv 1812.04948) and 2019 (arXiv 1912.04958). The result says by its sign and size which
# slope each element took, and the next layer keeps it anyway: separate operations would keep two more tensors per
# layer. Gains come before: leaky(gain·x) is gain·leaky(x), so the working weights have them.

SLOPE = 0.2
GAIN = math.sqrt(2)
"""Restores the variance that the activation takes."""


def leaky_relu(x: Tensor, bias: Tensor, *, clamp: float | None = None) -> Tensor:
    """clamp(leaky(x + bias)), differentiable as often as one asks for.

    Args:
        x: [N, C] or [N, C, H, W].
        bias: [C].
        clamp: largest absolute value; none: no limit.
    """
    return cast(Tensor, _LeakyReLU.apply(x, bias, limit_of(clamp, x.dtype)))


def limit_of(clamp: float | None, dtype: torch.dtype) -> float | None:
    """A clamp, rounded as results are: what was held to it has no gradient, and must be told from what was not."""
    if clamp is None:
        return None
    share, exponent = math.frexp(clamp)
    digits = 1 - round(math.log2(torch.finfo(dtype).eps))
    return math.ldexp(round(math.ldexp(share, digits)), exponent - digits)


def clamped(x: Tensor, clamp: float | None) -> Tensor:
    """x, no larger than clamp: what stands in place of an activation where there is none."""
    return x if clamp is None else F.hardtanh(x, -clamp, clamp)  # whose backward is one kernel, where clamp's are five


class _LeakyReLU(torch.autograd.Function):
    """x [N, C, ..], bias [C] -> clamp(leaky(x + bias))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, clamp: float | None) -> Tensor:
        made = torch.add(x, bias.to(x.dtype).view(1, -1, *(1,) * (x.ndim - 2)))
        F.leaky_relu_(made, SLOPE)
        if clamp is not None:
            made.clamp_(-clamp, clamp)
        ctx.save_for_backward(made)
        ctx.clamp = clamp
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (made,) = ctx.saved_tensors
        to_x = cast(Tensor, _Slopes.apply(gradients[0], made, ctx.clamp))
        other = [axis for axis in range(to_x.ndim) if axis != 1]
        return to_x, to_x.sum(other) if ctx.needs_input_grad[1] else None, None


class _Slopes(torch.autograd.Function):
    """Multiplies by each element's slope, which the result tells and which has no derivative: its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, made: Tensor, clamp: float | None) -> Tensor:
        ctx.save_for_backward(made)
        ctx.clamp = clamp
        if clamp is not None:
            x = torch.ops.aten.hardtanh_backward(x, made, -clamp, clamp)  # nothing from where it was clamped
        return cast(Tensor, torch.ops.aten.leaky_relu_backward(x, made, SLOPE, True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (made,) = ctx.saved_tensors
        return cast(Tensor, _Slopes.apply(gradients[0], made, ctx.clamp)), None, None


# Normalisation of a vector by its second moment.
#
# Source: Karras et al. 2017 (arXiv 1710.10196), section 4.2, as the pixelwise feature vector normalisation.


def second_moment_norm(x: Tensor) -> Tensor:
    """[N, C] -> [N, C] with a mean square of 1."""
    return x * (x.square().mean(1, keepdim=True) + 1e-8).rsqrt()
