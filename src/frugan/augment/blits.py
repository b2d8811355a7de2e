"""Pixel blits: mirror, quarter turns and shifts by whole pixels.

Source: Karras et al. 2020 (arXiv 2006.06676), appendix B: the operations and how far each goes.
"""

import math

import torch
from torch import Tensor

from frugan.augment.affine import compose, rotation, scaling, translation, where_active

UNIFORMS = 7
SHIFT = 0.125
"""Largest shift, as a share of the side."""


def inverse_blits(uniforms: Tensor, probability: Tensor, height: int, width: int) -> Tensor:
    """Where pixels are taken from [N, 3, 3], of uniforms in [0, 1) [N, 7] and pictures of these sides."""
    mirror, mirrors, turn, turns, right, down, shifts = uniforms.unbind(1)  # [N] each
    mirrored = where_active(mirrors, probability, (mirror * 2).floor(), 0)
    quarters = where_active(turns, probability, (turn * 4).floor(), 0)
    to_right, to_bottom = (
        where_active(shifts, probability, ((share * 2 - 1) * SHIFT * side).round(), 0)
        for share, side in ((right, width), (down, height))
    )
    return compose(
        scaling(1 - 2 * mirrored, torch.ones_like(mirrored)),
        rotation(quarters * (math.pi / 2)),
        translation(-to_right, -to_bottom),
    )
