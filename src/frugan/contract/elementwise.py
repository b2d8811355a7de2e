"""Elementwise operations that keep as little as possible for their gradient."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import cpu_ways
from frugan.torch_internals import is_node_needed, is_traced

# Gain and bias in one operation, whose backward passes over the picture no more often than it must.
#
# Torch's `addcmul` first multiplies the kept input by its `value` of 1, and then by the gradient: a pass over the
# picture, and the memory of one, for nothing.


def affine(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """x·gain + bias, differentiable as often as one asks for.

    Args:
        x: [B, C, H, W].
        gain: of any shape that can be broadcast to x.
        bias: likewise.
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
    """noise·strength in `dtype`, with sums in fp32: [N, 1, H, W] or [H, W], and a scalar -> the noise's shape."""
    return cast(Tensor, _ScaledNoise.apply(noise, strength, dtype))


class _ScaledNoise(torch.autograd.Function):
    """One operation forward, and one backward besides the sum."""

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
    """Whether the running backward pass has a use for the gradient of an input that takes one.

    A penalty's first gradient is that of pictures alone. Torch's own operations then leave out the weights' gradients,
    but a `torch.autograd.Function` is asked for them all the same. Torch does not tell it of leaves: pass a view.

    Args:
        ctx: context of the function.
        place: position of the input among those that are tensors.
    """
    if not ctx.needs_input_grad[place]:
        return False
    node = ctx.next_functions[place][0]
    return is_traced() or hasattr(node, "variable") or is_node_needed(node)


# Bias, leaky ReLU and clamp in one operation that keeps its result and nothing else.
#
# Source: Karras et al. 2018 (arXiv 1812.04948) and 2019 (arXiv 1912.04958). Sign and size of the result tell which
# slope each element took, and the next layer keeps the result anyway: separate operations would keep two more tensors
# per layer. Gains come before: leaky(gain·x) is gain·leaky(x), so they are part of the working weights.

SLOPE = 0.2
GAIN = math.sqrt(2)
"""Factor that restores the variance which the activation takes away."""


def leaky_relu(x: Tensor, bias: Tensor, *, clamp: float | None = None) -> Tensor:
    """clamp(leaky(x + bias)), differentiable as often as one asks for.

    Args:
        x: [N, C] or [N, C, H, W].
        bias: [C].
        clamp: largest absolute value; None: no limit.
    """
    return cast(Tensor, _LeakyReLU.apply(x, bias, limit_of(clamp, x.dtype)))


def limit_of(clamp: float | None, dtype: torch.dtype) -> float | None:
    """A clamp rounded to `dtype`, as results are: clamped elements equal it exactly, by which they have no gradient."""
    if clamp is None:
        return None
    share, exponent = math.frexp(clamp)
    digits = 1 - round(math.log2(torch.finfo(dtype).eps))
    return math.ldexp(round(math.ldexp(share, digits)), exponent - digits)


def clamped(x: Tensor, clamp: float | None) -> Tensor:
    """x limited to ±clamp, for layers without an activation."""
    return x if clamp is None else F.hardtanh(x, -clamp, clamp)  # whose backward is one kernel, where clamp's are five


class _LeakyReLU(torch.autograd.Function):
    """x [N, C, ..], bias [C] -> clamp(leaky(x + bias))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, clamp: float | None) -> Tensor:
        activated = torch.add(x, bias.to(x.dtype).view(1, -1, *(1,) * (x.ndim - 2)))
        F.leaky_relu_(activated, SLOPE)
        if clamp is not None:
            activated.clamp_(-clamp, clamp)
        ctx.save_for_backward(activated)
        ctx.clamp = clamp
        return activated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (activated,) = ctx.saved_tensors
        to_x = cast(Tensor, _Slopes.apply(gradients[0], activated, ctx.clamp))
        other = [axis for axis in range(to_x.ndim) if axis != 1]
        return to_x, to_x.sum(other) if ctx.needs_input_grad[1] else None, None


class _Slopes(torch.autograd.Function):
    """Multiplies each element by its slope, which `activated` tells; linear in x, so it is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activated: Tensor, clamp: float | None) -> Tensor:
        ctx.save_for_backward(activated)
        ctx.clamp = clamp
        if clamp is not None:
            x = torch.ops.aten.hardtanh_backward(x, activated, -clamp, clamp)  # zero where it was clamped
        return cast(Tensor, torch.ops.aten.leaky_relu_backward(x, activated, SLOPE, True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (activated,) = ctx.saved_tensors
        return cast(Tensor, _Slopes.apply(gradients[0], activated, ctx.clamp)), None, None


# Normalisation of a vector by its second moment.
#
# Source: Karras et al. 2017 (arXiv 1710.10196), section 4.2, there called pixelwise feature vector normalisation.


def second_moment_norm(x: Tensor) -> Tensor:
    """[N, C] -> [N, C] with a mean square of 1."""
    return x * (x.square().mean(1, keepdim=True) + 1e-8).rsqrt()
