"""DiffAugment: colour, translation and cutout, on every picture that the discriminator sees.

Source: Zhao et al. 2020 (arXiv 2006.10738), section 4 and appendix, for the operations and their strengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

BRIGHTNESS = 0.5
"""Largest shift of all values, which lie in [-1, 1]."""
SATURATION = (0.0, 2.0)
"""Range of the factor on differences from grey."""
CONTRAST = (0.5, 1.5)
"""Range of the factor on differences from the picture's mean."""
TRANSLATION = 0.125
"""Largest shift, as a share of the side; pixels from outside the picture are 0, a middle grey."""
CUTOUT = 0.5
"""Side of the square that is set to 0, as a share of the picture's side."""


@dataclass(frozen=True)
class DiffAugment:
    """DiffAugment's pipeline of operations."""

    operations: Sequence[str]  # some of "colour", "translation" and "cutout"
    uniforms: ClassVar[int] = 7  # uniform numbers for each picture
    normals: ClassVar[int] = 0  # normal numbers for each picture
    noisy: ClassVar[bool] = False  # whether a normal number is needed for every value of a picture

    def __call__(
        self, pictures: Tensor, uniforms: Tensor, normals: Tensor, probability: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Change pictures.

        Args:
            pictures: [N, C, H, W] in [-1, 1], fp32.
            uniforms: in [0, 1), [N, 7].
            normals: not used, [N, 0].
            probability: not used: every operation always acts.
            noise: not used.
        """
        brightness, saturation, contrast, down, right, row, column = uniforms.unbind(1)  # [N] each
        if "colour" in self.operations:
            pictures = _colour(pictures, brightness, saturation, contrast)
        if "translation" in self.operations:
            pictures = _translate(pictures, down, right)
        if "cutout" in self.operations:
            pictures = _cut_out(pictures, row, column)
        return pictures


def _colour(pictures: Tensor, brightness: Tensor, saturation: Tensor, contrast: Tensor) -> Tensor:
    """Change the brightness, then the saturation, then the contrast."""

    def within(share: Tensor, bounds: tuple[float, float]) -> Tensor:
        return (bounds[0] + share * (bounds[1] - bounds[0]))[:, None, None, None]

    pictures = pictures + within(brightness, (-BRIGHTNESS, BRIGHTNESS))
    if pictures.shape[1] > 1:  # a grey picture has no saturation
        grey = pictures.mean(1, keepdim=True)  # [N, 1, H, W]
        pictures = torch.lerp(grey, pictures, within(saturation, SATURATION))
    mean = pictures.mean((1, 2, 3), keepdim=True)  # [N, 1, 1, 1]
    return torch.lerp(mean, pictures, within(contrast, CONTRAST))


def _translate(pictures: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Shift pictures by whole pixels."""
    count, channels, height, width = pictures.shape
    for share, dimension, side in ((down, 2, height), (right, 3, width)):
        most = round(TRANSLATION * side)
        shift = (share * (2 * most + 1)).floor().long() - most  # [N], in -most .. most
        index = torch.arange(side, device=pictures.device) + (most - shift)[:, None]  # [N, side]
        sizes = [count, channels, height, width]
        index = index.view(count, 1, side, 1) if dimension == 2 else index.view(count, 1, 1, side)
        pictures = F.pad(pictures, (0, 0, most, most) if dimension == 2 else (most, most))
        pictures = pictures.gather(dimension, index.expand(sizes))  # [N, C, H, W]
    return pictures


def _cut_out(pictures: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Set a square to 0, whose centre may lie anywhere in the picture."""
    outside = []
    for centre, side in ((row, pictures.shape[2]), (column, pictures.shape[3])):
        places = torch.arange(side, device=pictures.device) + 0.5
        outside.append((places - centre[:, None] * side).abs() >= CUTOUT * side / 2)  # [N, side]
    kept = outside[0][:, None, :, None] | outside[1][:, None, None, :]  # [N, 1, H, W]
    return pictures * kept
