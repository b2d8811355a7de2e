"""ADA: many operations, each of which acts on a picture with the same probability, which training may steer.

Source: Karras et al. 2020 (arXiv 2006.06676), section 2 and appendix B.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from frugan.augment import blits, colour, corruptions, filtering, geometry
from frugan.augment.affine import compose
from frugan.augment.resampling import resample

UNIFORMS = (
    blits.UNIFORMS,
    geometry.UNIFORMS,
    colour.UNIFORMS,
    filtering.UNIFORMS,
    corruptions.NOISE_UNIFORMS,
    corruptions.CUTOUT_UNIFORMS,
)
NORMALS = (geometry.NORMALS, colour.NORMALS, filtering.NORMALS, corruptions.NOISE_NORMALS)


@dataclass(frozen=True)
class Ada:
    """The pipeline.

    Each operation has columns of its own among the random numbers, whichever operations are chosen.

    Attributes:
        operations: which of "blit", "geometry", "colour", "filter", "noise" and "cutout".
    """

    operations: Sequence[str]
    uniforms: ClassVar[int] = sum(UNIFORMS)
    normals: ClassVar[int] = sum(NORMALS)

    @property
    def noisy(self) -> bool:
        """Whether it takes a normal number for every value of a picture."""
        return "noise" in self.operations

    def __call__(
        self, pictures: Tensor, uniforms: Tensor, normals: Tensor, probability: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Change pictures.

        Args:
            pictures: [N, C, H, W] in [-1, 1], fp32; 1 or 3 channels, sides of at least 8 pixels.
            uniforms: in [0, 1), [N, 29].
            normals: [N, 12].
            probability: of each operation, a scalar; from 1 on all of them act.
            noise: normal numbers [N, C, H, W], where it is `noisy`.
        """
        sides = pictures.shape[2:]
        blit, geometric, coloured, filtered, noised, cut = uniforms.split(UNIFORMS, 1)
        of_geometry, of_colour, of_filter, of_noise = normals.split(NORMALS, 1)
        maps = []
        if "blit" in self.operations:
            maps.append(blits.inverse_blits(blit, probability, *sides))
        if "geometry" in self.operations:
            maps.append(geometry.inverse_geometry(geometric, of_geometry, probability, *sides))
        if maps:
            pictures = resample(pictures, compose(*maps))
        if "colour" in self.operations:
            pictures = colour.change_colours(pictures, coloured, of_colour, probability)
        if "filter" in self.operations:
            pictures = filtering.filter_bands(pictures, filtered, of_filter, probability)
        if self.noisy:
            assert noise is not None
            pictures = corruptions.add_noise(pictures, noised, of_noise, noise, probability)
        if "cutout" in self.operations:
            pictures = corruptions.cut_out(pictures, cut, probability)
        return pictures
