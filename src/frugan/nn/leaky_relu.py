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
    x = x + bias.to(x.dtype).view(1, -1, *(1,) * (x.ndim - 2))
    return cast(Tensor, _LeakyReLU.apply(x, GAIN * gain, None if clamp is None else clamp * gain))


def clamped(x: Tensor, clamp: float | None, gain: float = 1.0) -> Tensor:
    """x·gain, no larger than clamp·gain: what stands in place of an activation where there is none."""
    if gain != 1:
        x = x * gain
    return x if clamp is None else x.clamp(-clamp * gain, clamp * gain)


class _LeakyReLU(torch.autograd.Function):
    """Forward: [..] -> [..]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: float, clamp: float | None) -> Tensor:
        made = torch.nn.functional.leaky_relu(x, SLOPE).mul_(gain)
        if clamp is not None:
            made.clamp_(-clamp, clamp)
        ctx.save_for_backward(made)
        ctx.gain, ctx.clamp = gain, clamp
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (made,) = ctx.saved_tensors
        return cast(Tensor, _Slopes.apply(gradients[0], made, ctx.gain, ctx.clamp)), None, None


class _Slopes(torch.autograd.Function):
    """Multiplies by each element's slope, which the result tells and which has no derivative: its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, made: Tensor, gain: float, clamp: float | None) -> Tensor:
        ctx.save_for_backward(made)
        ctx.gain, ctx.clamp = gain, clamp
        # torch's own backward operations look at the result and make nothing on the way
        moved = torch.ops.aten.leaky_relu_backward(x, made, SLOPE, True).mul_(gain)
        found = moved if clamp is None else torch.ops.aten.hardtanh_backward(moved, made, -clamp, clamp)
        return cast(Tensor, found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (made,) = ctx.saved_tensors
        return cast(Tensor, _Slopes.apply(gradients[0], made, ctx.gain, ctx.clamp)), None, None, None
