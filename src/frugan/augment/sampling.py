"""Bilinear sampling and its adjoint, without autograd: whoever differentiates them says which is whose derivative.

torch 2.13 differentiates `grid_sample` twice on a CPU; whether older ones and CUDA do was not tried. Sampling is linear
in the frame, so R1 through an augmentation needs no more of torch than the forward and its first backward.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def sample(frame: Tensor, grid: Tensor) -> Tensor:
    """Values of a frame between its points, zeros outside.

    Args:
        frame: [N, C, F, F'].
        grid: x and y, from -1 at the centre of the first value to 1 at that of the last [N, H, W, 2].

    Returns:
        [N, C, H, W].
    """
    return F.grid_sample(frame, grid, align_corners=True)


def spread(values: Tensor, grid: Tensor, sides: tuple[int, int]) -> Tensor:
    """The adjoint of `sample`: values at the grid [N, C, H, W] -> frame [N, C, F, F'] of these sides."""
    frame = values.new_zeros(()).expand(*values.shape[:2], *sides)  # its shape alone is asked for
    bilinear = zeros_outside = 0
    found: tuple[Tensor, Tensor] = torch.ops.aten.grid_sampler_2d_backward(
        values, frame, grid, bilinear, zeros_outside, True, (True, False)
    )
    return found[0]
