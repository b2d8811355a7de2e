"""Bilinear sampling with as many derivatives as one asks for.

torch 2.13 differentiates `grid_sample` twice on a CPU; whether older ones and CUDA do was not tried, and R1 through an
augmentation needs it. Sampling is linear in the frame, and nothing here differentiates in the grid: the two maps below
are each other's adjoint and need no more from torch than the forward and its first backward.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor


def sample(frame: Tensor, grid: Tensor) -> Tensor:
    """Values of a frame between its points, zeros outside.

    Args:
        frame: [N, C, F, F'].
        grid: x and y, from -1 at the centre of the first value to 1 at that of the last [N, H, W, 2]; takes no
            gradient.

    Returns:
        [N, C, H, W].
    """
    return cast(Tensor, _Sample.apply(frame, grid))


class _Sample(torch.autograd.Function):
    """Frame [N, C, F, F'] -> values at the grid [N, C, H, W]."""

    @staticmethod
    def forward(ctx: Any, frame: Tensor, grid: Tensor) -> Tensor:
        ctx.save_for_backward(grid)
        ctx.sides = frame.shape[2:]
        return F.grid_sample(frame, grid, align_corners=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (grid,) = ctx.saved_tensors
        return cast(Tensor, _Spread.apply(gradients[0], grid, ctx.sides)), None


class _Spread(torch.autograd.Function):
    """The adjoint: values at the grid [N, C, H, W] -> frame [N, C, F, F']."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, grid: Tensor, sides: torch.Size) -> Tensor:
        ctx.save_for_backward(grid)
        frame = values.new_zeros(()).expand(*values.shape[:2], *sides)  # its shape alone is asked for
        bilinear = zeros_outside = 0
        found = torch.ops.aten.grid_sampler_2d_backward(
            values, frame, grid, bilinear, zeros_outside, True, (True, False)
        )
        return cast(Tensor, found[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (grid,) = ctx.saved_tensors
        return sample(gradients[0], grid), None, None
