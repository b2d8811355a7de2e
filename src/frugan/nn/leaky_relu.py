"""Bias, leaky ReLU, gain and clamp in one operation that keeps its result and nothing else.

Source: Karras et al. 2018 (arXiv 1812.04948) and 2019 (arXiv 1912.04958). The result says by its sign and size which
slope each element took, and the next layer keeps it anyway: separate operations would keep two more tensors per layer.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor

SLOPE = 0.2
GAIN = math.sqrt(2)
"""Restores the variance that the activation takes."""


def leaky_relu(x: Tensor, bias: Tensor, *, gain: float = 1.0, clamp: float | None = None) -> Tensor:
    """clamp(√2·gain·leaky(x + bias)), differentiable as often as one asks for.

    Args:
        x: [N, C] or [N, C, H, W].
        bias: [C].
        gain: multiplies the activation's own, and the clamp.
        clamp: largest absolute value for a gain of 1; none: no limit.
    """
    return cast(Tensor, _LeakyReLU.apply(x, bias, GAIN * gain, None if clamp is None else clamp * gain))


def clamped(x: Tensor, clamp: float | None, gain: float = 1.0) -> Tensor:
    """x·gain, no larger than clamp·gain: what stands in place of an activation where there is none."""
    if gain != 1:
        x = x * gain
    return x if clamp is None else x.clamp(-clamp * gain, clamp * gain)


class _LeakyReLU(torch.autograd.Function):
    """x [N, C, ..], bias [C] -> clamp(gain·leaky(x + bias)), which is clamp(leaky(gain·x + gain·bias))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, gain: float, clamp: float | None) -> Tensor:
        scaled = (bias * gain).to(x.dtype).view(1, -1, *(1,) * (x.ndim - 2))
        made = torch.nn.functional.leaky_relu_(torch.add(scaled, x, alpha=gain), SLOPE)
        if clamp is not None:
            made.clamp_(-clamp, clamp)
        ctx.save_for_backward(made)
        ctx.gain, ctx.clamp = gain, clamp
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (made,) = ctx.saved_tensors
        to_x = cast(Tensor, _Slopes.apply(gradients[0], made, ctx.gain, ctx.clamp))
        other = [axis for axis in range(to_x.ndim) if axis != 1]
        return to_x, to_x.sum(other) if ctx.needs_input_grad[1] else None, None, None


class _Slopes(torch.autograd.Function):
    """Multiplies by each element's slope, which the result tells and which has no derivative: its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, made: Tensor, gain: float, clamp: float | None) -> Tensor:
        ctx.save_for_backward(made)
        ctx.gain, ctx.clamp = gain, clamp
        if clamp is not None:
            x = torch.ops.aten.hardtanh_backward(x, made, -clamp, clamp)  # nothing from where it was clamped
        x = torch.ops.aten.leaky_relu_backward(x, made, SLOPE, True)
        return x if math.isclose(gain, 1.0) else x.mul_(gain)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (made,) = ctx.saved_tensors
        return cast(Tensor, _Slopes.apply(gradients[0], made, ctx.gain, ctx.clamp)), None, None, None
