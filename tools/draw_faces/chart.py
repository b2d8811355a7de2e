"""A flat map of all directions, on which a head is a picture of distances from its centre.

The head's frame: millimetres from a point between the ears; x to the right of the picture, y down, z out of the face,
toward the viewer. Directions go to the map by Lambert's azimuthal projection: the face is in the middle, all of
the map is smooth but for the point straight behind, and no trigonometry is needed to look a direction up.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from frugan.faces.data.geometry import opencv

Array = NDArray[np.float32]

CELLS = 448  # side of the map; about 0.7 mm on the face
REACH = 1.85  # the map's coordinates run from -REACH to REACH; straight up, down and sideways are at sqrt(2)


def from_chart(along: Array) -> Array:
    """Return where on the map a coordinate, u or v, is, in cells."""
    return along * np.float32(CELLS / (2 * REACH)) + np.float32(CELLS / 2 - 0.5)


def grid(cells: int) -> tuple[Array, Array]:
    """Return the coordinates u, v of the map's cells, each float32 [cells, cells]."""
    line = ((np.arange(cells, dtype=np.float32) + 0.5) * (2 * REACH / cells) - REACH).astype(np.float32)
    u, v = np.meshgrid(line, line)
    return u, v


@lru_cache(maxsize=4)
def directions(cells: int) -> Array:
    """Return the unit vectors of the map's cells, float32 [3, cells, cells]; kept, hence read-only."""
    way = direction_at(*grid(cells))
    way.setflags(write=False)
    return way


def direction_at(u: Array, v: Array) -> Array:
    """Return the unit vectors at coordinates u, v of the map, [...] -> [3, ...]."""
    square = np.minimum(u * u + v * v, 3.999)  # beyond 4 is no direction
    side = np.sqrt((1 - square / 4) * square / np.maximum(u * u + v * v, 1e-12))
    return np.stack([u * side, v * side, 1 - square / 2])


def coordinates(x: Array, y: Array, z: Array, length: Array) -> tuple[Array, Array]:
    """Return u, v of points; arguments as those of `cells_of`."""
    scale = np.sqrt(2 / np.maximum(length * (length + z), 1e-3))
    return x * scale, y * scale


def cells_of(x: Array, y: Array, z: Array, length: Array) -> tuple[Array, Array]:
    """Return where on the map points lie, as cv2.remap counts: two float32 arrays in cells.

    Args:
        x: of the points in mm.
        y: of the points in mm.
        z: of the points in mm.
        length: of the points' vectors in mm.
    """
    scale = np.sqrt(2 / np.maximum(length * (length + z), 1e-3))
    scale *= CELLS / (2 * REACH)
    middle = np.float32(CELLS / 2 - 0.5)
    return x * scale + middle, y * scale + middle


def looked_up(chart: Array, cells: tuple[Array, Array]) -> Array:
    """Return what a chart, [CELLS, CELLS] or with channels behind, holds at cells, two [k, m] (linear)."""
    cv2 = opencv()
    return cv2.remap(chart, *cells, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)  # type: ignore[no-any-return]
