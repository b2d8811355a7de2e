"""Grey pictures: which ones are, and how coloured ones become so."""

import numpy as np
from numpy.typing import NDArray


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
