"""Colours of pictures: by name, what transparent ones are laid on, and which are grey."""

from typing import NewType

import numpy as np
from numpy.typing import NDArray
from PIL import ImageColor

from frugan.errors import BadInput
from frugan.wording import shown

Background = NewType("Background", str)
"""A colour as "#rrggbb"."""
WHITE, GREY = Background("#ffffff"), Background("#808080")


def background(text: str) -> Background:
    """Read the name of a colour, or "#rrggbb".

    Raises:
        BadInput: no such colour.
    """
    try:
        red, green, blue = ImageColor.getrgb(text)[:3]
    except ValueError as error:
        raise BadInput(
            f"background {shown(text)!r}: no such colour; expected a name such as black, or #rrggbb such as #808080"
        ) from error
    return Background(f"#{red:02x}{green:02x}{blue:02x}")


def is_grey(pictures: NDArray[np.uint8]) -> bool:
    """Tell whether red, green and blue are the same everywhere in uint8 [..., 3, R, R]."""
    red = pictures[..., :1, :, :]
    return bool((pictures[..., 1:, :, :] == red).all())


def luma(pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn uint8 [..., 3, R, R] grey: [..., 1, R, R].

    Luma as in ITU-R BT.601, rounded as by Pillow's conversion to "L": a grey picture keeps its values.
    """
    wide = pictures.astype(np.uint32)
    red, green, blue = (wide[..., channel, :, :] for channel in range(3))
    grey = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16  # 65536 times 0.299, 0.587, 0.114
    return np.expand_dims(grey.astype(np.uint8), -3)
