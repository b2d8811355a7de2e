"""The random change of shape of a training sample: a bent grid, a turn, a scale, a shift and a mirror image.

Source: DeepFaceLab's behaviour, whose draws are kept bit for bit: numpy's RandomState is a frozen generator (NEP 19).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frugan.data.faces.opencv import opencv

Picture = NDArray[np.float32]

_ROTATION_DEGREES = 10.0
_SCALE = 1.15
_SHIFT = 0.05  # sides of the picture
_FLIPS_IN_TEN = 4
_BEND = 0.24  # cells
_NOISE_LIMIT = 2.5  # standard deviations


@dataclass(frozen=True, eq=False)
class Warp:
    """One draw, for pictures of side `size`.

    Attributes:
        size: pixels.
        map_x: float32 [size, size]: where a pixel of the bent picture comes from; y comes from its transpose.
        affine: float64 [2, 3]: turn, scale and shift, from the old picture to the new one.
        flip: mirror left to right, after all else.
    """

    size: int
    map_x: NDArray[np.float32]
    affine: NDArray[np.float64]
    flip: bool

    def bend_picture(self, picture: Picture) -> Picture:
        """Return a picture, float32 [size, size, 3], with its grid bent; black where nothing comes from inside."""
        cv2 = opencv()
        map_y = np.ascontiguousarray(self.map_x.T)
        bent: Picture = cv2.remap(picture, self.map_x, map_y, cv2.INTER_CUBIC)
        return bent

    def move_picture(self, picture: Picture) -> Picture:
        """Return a picture, float32 [size, size, 3], turned, scaled, shifted and perhaps mirrored; borders repeat."""
        cv2 = opencv()
        size = (self.size, self.size)
        return self._mirrored(
            cv2.warpAffine(picture, self.affine, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        )

    def move_mask(self, mask: Picture) -> Picture:
        """Return a mask, float32 [size, size], moved as `move_picture` does; 0 beyond its borders."""
        cv2 = opencv()
        return self._mirrored(cv2.warpAffine(mask, self.affine, (self.size, self.size), flags=cv2.INTER_LINEAR))

    def _mirrored(self, picture: Picture) -> Picture:
        mirrored: Picture = opencv().flip(picture, 1) if self.flip else picture
        return mirrored


def draw_warp(size: int, seed: int, random: np.random.RandomState, *, may_flip: bool) -> Warp:
    """Draw one change of shape.

    Args:
        size: side of the pictures in pixels, a multiple of 16.
        seed: of the sample; the bent grid has a stream of its own.
        random: seeded with `seed`, for all but the grid; it may be drawn from further.
        may_flip: draw also whether to mirror, which happens 4 times in 10.

    Raises:
        BadInput: OpenCV is not installed.
    """
    cv2 = opencv()
    rotation = random.uniform(-_ROTATION_DEGREES, _ROTATION_DEGREES)
    scale = random.uniform(1 / _SCALE, _SCALE)
    shift_x = random.uniform(-_SHIFT, _SHIFT)
    shift_y = random.uniform(-_SHIFT, _SHIFT)
    flip = may_flip and bool(random.randint(10) < _FLIPS_IN_TEN)
    affine = cv2.getRotationMatrix2D((size // 2, size // 2), rotation, scale)
    affine[:, 2] += (shift_x * size, shift_y * size)
    return Warp(size, _bent_grid(size, np.random.RandomState(seed)), affine, flip)


def _bent_grid(size: int, random: np.random.RandomState) -> NDArray[np.float32]:
    """Return where the bent picture's pixels come from along x, float32 [size, size].

    The displacements along y are the transpose: the two are mirror images of each other, not independent.
    """
    cv2 = opencv()
    cell = (size // 2, size // 4, size // 8)[random.randint(3)]
    count = size // cell + 1
    # rounded to float32, as the original's: else the last bit of the map differs
    noise = _limited_normal(2 * (count - 2) ** 2, random).reshape(2, count - 2, count - 2) * np.float32(cell * _BEND)
    grid = np.tile(np.linspace(0, size, count), (count, 1))  # [count, count]
    grid[1:-1, 1:-1] += noise[0]
    grid[1:-1, 1:-1] += noise[1].T
    wide = cv2.resize(grid, (size + cell, size + cell))
    half = cell // 2
    return np.ascontiguousarray(wide[half : half + size, half : half + size], np.float32)


def _limited_normal(count: int, random: np.random.RandomState) -> NDArray[np.float32]:
    """Return `count` normal numbers without those beyond ±2.5, divided by 2.5: within ±1."""
    kept = np.empty(0)
    while len(kept) < count:
        drawn = random.standard_normal(count)
        kept = np.concatenate([kept, drawn[np.abs(drawn) <= _NOISE_LIMIT]])
    return (kept[:count] / _NOISE_LIMIT).astype(np.float32)
