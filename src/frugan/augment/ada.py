"""ADA: many operations, each of which acts on a picture with the same probability, which training may steer.

Source: Karras et al. 2020 (arXiv 2006.06676), section 2 and appendix B.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from frugan.augment import blits, colour, geometry
from frugan.augment.affine import compose
from frugan.augment.resampling import resample


@dataclass(frozen=True)
class Ada:
    """The pipeline.

    Each operation has columns of its own among the random numbers, whichever operations are chosen.

    Attributes:
        operations: which of "blit", "geometry" and "colour".
    """

    operations: Sequence[str]
    uniforms: ClassVar[int] = blits.UNIFORMS + geometry.UNIFORMS + colour.UNIFORMS
    normals: ClassVar[int] = geometry.NORMALS + colour.NORMALS

    def __call__(self, pictures: Tensor, uniforms: Tensor, normals: Tensor, probability: Tensor) -> Tensor:
        """Change pictures.

        Args:
            pictures: [N, C, H, W] in [-1, 1], fp32; 1 or 3 channels, sides of at least 8 pixels.
            uniforms: in [0, 1), [N, 21].
            normals: [N, 7].
            probability: of each operation, a scalar; from 1 on all of them act.
        """
        sides = pictures.shape[2:]
        blit, geometric, coloured = uniforms.split([blits.UNIFORMS, geometry.UNIFORMS, colour.UNIFORMS], 1)
        geometric_normals, coloured_normals = normals.split([geometry.NORMALS, colour.NORMALS], 1)
        maps = []
        if "blit" in self.operations:
            maps.append(blits.inverse_blits(blit, probability, *sides))
        if "geometry" in self.operations:
            maps.append(geometry.inverse_geometry(geometric, geometric_normals, probability, *sides))
        if maps:
            pictures = resample(pictures, compose(*maps))
        if "colour" in self.operations:
            pictures = colour.change_colours(pictures, coloured, coloured_normals, probability)
        return pictures
