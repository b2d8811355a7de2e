"""Colour: brightness, contrast, inverted luma, rotated hue and saturation.

Source: Karras et al. 2020 (arXiv 2006.06676), appendix B: the operations and how far each goes.
"""

import math

import torch
from torch import Tensor

from frugan.augment.affine import where_active

UNIFORMS = 7
NORMALS = 3
BRIGHTNESS = 0.2
"""Standard deviation of what is added to all values, which lie in [-1, 1]."""
CONTRAST = 0.5
SATURATION = 1.0
"""Standard deviations of a factor's binary logarithm."""


def change_colours(pictures: Tensor, uniforms: Tensor, normals: Tensor, probability: Tensor) -> Tensor:
    """Change colours.

    Every operation acts on a pixel's mean over the channels, its luma, or on what is left without it, or on both alike;
    so all of them together are one factor for the luma and a scaled rotation about the grey axis for the rest.

    Args:
        pictures: [N, 1 or 3, H, W] in [-1, 1]; a grey one has nothing but luma.
        uniforms: in [0, 1) [N, 7].
        normals: [N, 3].
    """
    invert, hue, brightens, contrasts, inverts, turns, saturates = uniforms.unbind(1)  # [N] each
    brightness, contrast, saturation = normals.unbind(1)
    offset = where_active(brightens, probability, BRIGHTNESS * brightness, 0)
    gain = torch.exp2(where_active(contrasts, probability, CONTRAST * contrast, 0))
    luma = gain * where_active(inverts, probability, 1 - 2 * (invert * 2).floor(), 1)
    if pictures.shape[1] == 1:
        return (pictures + _spread(offset, pictures)) * _spread(luma, pictures)
    chroma = gain * torch.exp2(where_active(saturates, probability, SATURATION * saturation, 0))
    angle = where_active(turns, probability, (hue * 2 - 1) * math.pi, 0)
    matrix = _about_grey(luma, chroma, angle).to(pictures.dtype)
    added = (luma * offset).to(pictures.dtype)[:, None, None]
    return torch.baddbmm(added, matrix, pictures.flatten(2)).view_as(pictures)


def _about_grey(luma: Tensor, chroma: Tensor, angle: Tensor) -> Tensor:
    """Multiply what lies along the grey axis and what lies across it, and turn the latter about it [N, 3, 3].

    A matrix that commutes with turns about (1, 1, 1) has three different entries, each a third of the rows' cycle.
    """
    along, cos, sin = luma / 3, chroma * angle.cos() / 3, chroma * angle.sin() / math.sqrt(3)
    same, before, after = along + 2 * cos, along - cos - sin, along - cos + sin  # [N] each
    return torch.stack([same, before, after, after, same, before, before, after, same], 1).view(-1, 3, 3)


def _spread(values: Tensor, pictures: Tensor) -> Tensor:
    """[N] -> [N, 1, 1, 1]."""
    return values.to(pictures.dtype)[:, None, None, None]
