"""Affine maps of the plane as matrices [N, 3, 3], one for each picture, and the random choice whether one acts.

They map what is wanted to where it is taken from, in pixels from the picture's centre: x to the right, y down.
"""

import torch
from torch import Tensor


def scaling(x: Tensor, y: Tensor) -> Tensor:
    """Multiply x and y [N]."""
    return torch.diag_embed(torch.stack([x, y, torch.ones_like(x)], 1))


def translation(x: Tensor, y: Tensor) -> Tensor:
    """Add to x and y [N]."""
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    return torch.stack([one, zero, x, zero, one, y, zero, zero, one], 1).view(-1, 3, 3)


def rotation(angle: Tensor) -> Tensor:
    """Turn x towards y by radians [N]."""
    cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    return torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], 1).view(-1, 3, 3)


def compose(*maps: Tensor) -> Tensor:
    """Product of matrices [N, 3, 3], the last of which acts first.

    By sums of products: a GPU's matrix units might round to 10 bits, which is a pixel in 1000.
    """
    product = maps[0]
    for matrix in maps[1:]:
        product = (product[:, :, :, None] * matrix[:, None, :, :]).sum(2)
    return product


def where_active(draw: Tensor, probability: Tensor, value: Tensor, otherwise: float) -> Tensor:
    """An operation's value [N] where it acts; draw: uniform in [0, 1) [N]."""
    return torch.where(draw < probability, value, otherwise)
