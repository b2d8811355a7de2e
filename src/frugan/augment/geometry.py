"""Geometry: scale, rotation, change of proportions, and shifts by fractions of a pixel.

Source: Karras et al. 2020 (arXiv 2006.06676), appendix B: the operations and how far each goes.
"""

import math

import torch
from torch import Tensor

from frugan.augment.affine import compose, rotation, scaling, translation, where_active

UNIFORMS = 7
NORMALS = 4
SCALE = 0.2
"""Standard deviation of a factor's binary logarithm, of the size and of the proportions."""
SHIFT = 0.125
"""Standard deviation of a shift, as a share of the side."""


def inverse_geometry(uniforms: Tensor, normals: Tensor, probability: Tensor, height: int, width: int) -> Tensor:
    """Where pixels are taken from [N, 3, 3], of uniforms in [0, 1) [N, 7] and normals [N, 4]."""
    before, after, scales, turns_before, stretches, turns_after, shifts = uniforms.unbind(1)  # [N] each
    scale, stretch, right, down = normals.unbind(1)
    # Two rotations, about the stretch: one or both act with the probability of one operation.
    of_one = 1 - (1 - probability).clamp_min(0).sqrt()
    inverse_scale = torch.exp2(where_active(scales, probability, -SCALE * scale, 0))
    inverse_stretch = torch.exp2(where_active(stretches, probability, -SCALE * stretch, 0))
    return compose(
        scaling(inverse_scale, inverse_scale),
        rotation(where_active(turns_before, of_one, (before * 2 - 1) * math.pi, 0)),
        scaling(inverse_stretch, inverse_stretch.reciprocal()),
        rotation(where_active(turns_after, of_one, (after * 2 - 1) * math.pi, 0)),
        translation(
            where_active(shifts, probability, -SHIFT * width * right, 0),
            where_active(shifts, probability, -SHIFT * height * down, 0),
        ),
    )
