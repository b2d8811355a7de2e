"""How a picture becomes a square of the set's resolution."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frugan.data.background import WHITE, Background
from frugan.errors import BadInput

Resample = Literal["bilinear", "lanczos"]

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "lanczos": Image.Resampling.LANCZOS}
MOST_RESOLUTION = 8192


@dataclass(frozen=True)
class Fitting:
    """Centre-crop to the short side, then resize: the rule of BigGAN-PyTorch's preparation, whose filter is bilinear.

    Both filters widen with the reduction (Pillow), so nothing aliases.

    Attributes:
        resolution: side of the result in pixels.
        resample: "bilinear" | "lanczos".
        allow_upscale: whether pictures smaller than `resolution` may be enlarged.
        background: what transparent pictures are laid on, before all else.

    Raises:
        BadInput: a resolution or filter that does not exist.
    """

    resolution: int
    resample: Resample = "bilinear"
    allow_upscale: bool = False
    background: Background = WHITE

    def __post_init__(self) -> None:
        if not 1 <= self.resolution <= MOST_RESOLUTION:
            raise BadInput(f"resolution {self.resolution}: expected 1 to {MOST_RESOLUTION} pixels; try 128")
        if self.resample not in FILTERS:
            raise BadInput(f"resample {self.resample!r}: expected one of {', '.join(get_args(Resample))}")

    def __call__(self, picture: Image.Image) -> NDArray[np.uint8]:
        """Return uint8 [3, resolution, resolution] of an RGB picture; pixels are untouched where the size fits."""
        width, height = picture.size
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        if width != height:
            picture = picture.crop((left, top, left + side, top + side))
        if side != self.resolution:
            picture = picture.resize((self.resolution, self.resolution), FILTERS[self.resample])
        return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))  # [3, R, R]
