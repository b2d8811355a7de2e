"""Corruptions: noise on every pixel, and a square that is cut out.

Source: Karras et al. 2020 (arXiv 2006.06676), appendix B: the operations and how far each goes.
"""

import torch
from torch import Tensor

from frugan.augment.affine import where_active

NOISE_UNIFORMS = 1
NOISE_NORMALS = 1
NOISE = 0.1
"""Standard deviation of the noise's own standard deviation, of which the absolute value counts; pictures lie in
[-1, 1]."""
CUTOUT_UNIFORMS = 3
CUTOUT = 0.5
"""Side of the square, as a share of the picture's."""


def add_noise(pictures: Tensor, uniforms: Tensor, normals: Tensor, noise: Tensor, probability: Tensor) -> Tensor:
    """Add white noise.

    Args:
        pictures: [N, C, H, W].
        uniforms: in [0, 1) [N, 1].
        normals: how strong [N, 1].
        noise: normal numbers [N, C, H, W].
    """
    strength = where_active(uniforms[:, 0], probability, NOISE * normals[:, 0].abs(), 0)  # [N]
    return pictures + noise.to(pictures.dtype) * strength.to(pictures.dtype)[:, None, None, None]


def cut_out(pictures: Tensor, uniforms: Tensor, probability: Tensor) -> Tensor:
    """Set a square to 0, whose centre may lie anywhere.

    Args:
        pictures: [N, C, H, W].
        uniforms: in [0, 1) [N, 3]: column and row of the centre, and whether it acts.
    """
    column, row, acts = uniforms.unbind(1)  # [N] each
    half = where_active(acts, probability, torch.full_like(acts, CUTOUT / 2), 0)
    down, right = (
        (_places(side, pictures) - centre[:, None]).abs() >= half[:, None]  # [N, side]
        for centre, side in ((row, pictures.shape[2]), (column, pictures.shape[3]))
    )
    return pictures * (down[:, None, :, None] | right[:, None, None, :])


def _places(side: int, like: Tensor) -> Tensor:
    """Centres of the pixels, as shares of the side [side]."""
    return (torch.arange(side, device=like.device) + 0.5) / side
