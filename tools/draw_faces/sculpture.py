"""A head without hair and expression: ellipsoids, balls and rods, melted into one another.

Each part is a distance to its surface (negative inside), as in I. Quilez, "Distance functions"; smooth minima
join them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from frugan.faces.data.geometry import opencv
from tools.draw_faces.chart import CELLS, Array, directions
from tools.draw_faces.person import Bones

Point = tuple[float, float, float]
Distance = Callable[[Array, Array, Array], Array]

_OUTSIDE_MM = 200.0
_BAKED_CELLS = 288


@dataclass(frozen=True, eq=False)
class Bare:
    """A head without hair and expression: how far its skin is in every direction, mm, float32 [CELLS, CELLS]."""

    radius: Array

    @staticmethod
    @lru_cache(maxsize=4)
    def of(bones: Bones) -> "Bare":
        """Return the head with those bones; kept, for it is the same in all frames."""
        cv2 = opencv()
        baked = reach(lambda x, y, z: _head(bones, x, y, z), _BAKED_CELLS)
        # ears stand out too steeply for the chart
        x, _, z = directions(_BAKED_CELLS)
        sides = np.clip(3 * np.abs(x) - 2 * z - 1.9, 0, 1)
        baked = cv2.GaussianBlur(baked, (0, 0), 0.8) * (1 - sides) + cv2.GaussianBlur(baked, (0, 0), 1.8) * sides
        return Bare(cv2.resize(baked, (CELLS, CELLS), interpolation=cv2.INTER_CUBIC))


def reach(distance: Distance, cells: int, steps: int = 22) -> Array:
    """Return how far a body reaches in every direction, mm, float32 [cells, cells].

    Args:
        distance: to its surface from points x, y, z.
        cells: side of the map.
        steps: toward the surface, from outside.
    """
    x, y, z = directions(cells)
    radius = np.full(x.shape, _OUTSIDE_MM, np.float32)
    for _ in range(steps):
        radius -= np.float32(0.95) * distance(x * radius, y * radius, z * radius)
    return radius


def ellipsoid(x: Array, y: Array, z: Array, centre: Point, radii: Point) -> Array:
    """Return about the distance to an ellipsoid (to first order near its surface)."""
    scaled = [(axis - c) / r for axis, c, r in zip((x, y, z), centre, radii, strict=True)]
    norm = np.sqrt(sum(s * s for s in scaled))
    slope = np.sqrt(sum((s / r) ** 2 for s, r in zip(scaled, radii, strict=True)))
    return np.asarray(norm * (norm - 1) / np.maximum(slope, 1e-6), np.float32)


def rod(x: Array, y: Array, z: Array, start: Point, end: Point, radii: tuple[float, float]) -> Array:
    """Return about the distance to a straight rod with round ends, whose radius goes from one to another."""
    along = [b - a for a, b in zip(start, end, strict=True)]
    place = sum((axis - a) * d for axis, a, d in zip((x, y, z), start, along, strict=True))
    share = np.clip(place / sum(d * d for d in along), 0, 1)
    away = [axis - a - share * d for axis, a, d in zip((x, y, z), start, along, strict=True)]
    return np.asarray(np.sqrt(sum(a * a for a in away)) - (radii[0] + share * (radii[1] - radii[0])), np.float32)


def melt(first: Array, second: Array, soft: float) -> Array:
    """Return the union of two bodies, whose seam is filled over about `soft` mm."""
    share = np.clip(0.5 + (second - first) / (2 * soft), 0, 1)
    return np.asarray(second + (first - second) * share - soft * share * (1 - share), np.float32)


def carve(body: Array, tool: Array, soft: float) -> Array:
    """Return a body without what is inside another, the edge rounded over about `soft` mm."""
    return -melt(-body, tool, soft)


def _head(bones: Bones, x: Array, y: Array, z: Array) -> Array:
    side = np.abs(x)
    w, tall = bones.width, bones.length
    body = ellipsoid(x, y, z, (0, -46, -20), (75 * w, 88, 88))  # skull
    body = melt(body, ellipsoid(x, y, z, (0, -52, 10), (62 * w, 54, 50)), 14)  # forehead
    body = melt(body, ellipsoid(x, y, z, (0, 4, 3), (bones.face, 79 * tall, 56)), 14)  # middle of the face
    jaw = rod(side, y, z, (bones.jaw, 36 * tall, 2), (bones.chin, 66 * tall, 36 + bones.chin_forward), (10, 13))
    body = melt(body, jaw, 22)
    body = melt(body, ellipsoid(x, y, z, (0, 68 * tall, 43 + bones.chin_forward), (bones.chin + 10, 13, 15)), 14)
    cheek = (bones.face - 22, -8, 28 + bones.cheek)
    body = melt(body, ellipsoid(side, y, z, cheek, (20, 19, 19)), 18)
    body = melt(body, rod(side, y, z, (0, -52, 42 + bones.brow), (36, -54, 37 + bones.brow), (12, 10)), 14)
    body = carve(body, ellipsoid(side, y, z, (31, -34, 68), (19, 13, 15)), 14)  # sockets
    body = melt(body, ellipsoid(x, y, z, (0, 34 * tall, 42), (30, 25, 20)), 16)  # muzzle
    body = melt(body, _nose(bones, x, y, z), 7)
    ear = ellipsoid(side, y, z, (74 * w, -19, -14), (9.5, 27, 14))
    ear = carve(ear, ellipsoid(side, y, z, (83 * w, -19, -9), (5, 18, 8)), 3)
    return melt(body, ear, 4)


def _nose(bones: Bones, x: Array, y: Array, z: Array) -> Array:
    side = np.abs(x)
    drop, out = bones.nose_drop, bones.nose_length
    tip = (0.0, -5 + drop, 73 + out)
    body = rod(x, y, z, (0, -44, 47 + bones.bridge), (0, -12 + drop, 69 + out), (6, 8))
    flank = rod(side, y, z, (3, -36, 46 + bones.bridge), (9, 0 + drop, 58 + out * 0.5), (6, 9))
    body = melt(body, flank, 8)
    body = melt(body, ellipsoid(x, y, z, tip, (bones.nose_tip + 1, bones.nose_tip, bones.nose_tip)), 7)
    wing = (bones.nose_width - 5.5, 2.5 + drop * 0.7, 61 + 0.5 * out)
    body = melt(body, ellipsoid(side, y, z, wing, (5.5, 6.5, 9)), 5)
    below = rod(x, y, z, (0, 3 + drop, 68 + out), (0, 9, 56), (5, 6))
    return melt(body, below, 6)
