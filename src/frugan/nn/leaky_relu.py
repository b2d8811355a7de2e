"""Bias, leaky ReLU and clamp in one operation that keeps its result and nothing else.

Source: Karras et al. 2018 (arXiv 1812.04948) and 2019 (arXiv 1912.04958). The result says by its sign and size which
slope each element took, and the next layer keeps it anyway: separate operations would keep two more tensors per layer.
Gains come before: leaky(gain·x) is gain·leaky(x), so the working weights have them.
"""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

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
    return cast(Tensor, _LeakyReLU.apply(x, bias, clamp))


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
