"""Masks as polygons: outlines to include and to exclude that fill to the same pixels."""

import numpy as np
from numpy.typing import NDArray

from frugan.faces.data.face import Polygon
from frugan.faces.data.geometry import opencv

Mask = NDArray[np.uint8]
"""0 or 1, [H, W]."""


def outlines(mask: Mask) -> tuple[Polygon, ...]:
    """Return polygons that XSeg's labels fill to exactly this mask: outlines of its parts, and of the holes in them.

    What lies inside a hole cannot be included again, since excluding wins: such a hole is cut into parts that go round.
    """
    cv2 = opencv()
    polygons = [Polygon(True, points) for points in _around(mask)]
    filled = np.zeros_like(mask)
    for polygon in polygons:
        cv2.fillPoly(filled, [polygon.points.astype(np.int32)], 1)
    return (*polygons, *(Polygon(False, points) for points in _pieces((filled & (1 - mask)).astype(np.uint8))))


def _around(mask: Mask) -> list[NDArray[np.float32]]:
    """The outer outline of each part, whose pixels belong to it, [n, 2]."""
    cv2 = opencv()
    found, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    return [line[:, 0].astype(np.float32) for line in found]


def _pieces(region: Mask) -> list[NDArray[np.float32]]:
    """Outlines that fill to a region and nothing else; parts that go round something are cut through its middle."""
    cv2 = opencv()
    pieces: list[NDArray[np.float32]] = []
    number, labels = cv2.connectedComponents(region, connectivity=8)
    for label in range(1, number):
        part = (labels == label).astype(np.uint8)
        lines = _around(part)
        filled = cv2.fillPoly(np.zeros_like(part), [lines[0].astype(np.int32)], 1)
        if (filled == part).all():
            pieces += lines
            continue
        rows = np.flatnonzero((filled != part).any(axis=1))
        middle = int(rows[len(rows) // 2])
        upper, lower = part.copy(), part.copy()
        upper[middle + 1 :], lower[: middle + 1] = 0, 0
        if not lower.any() or not upper.any():  # one row alone
            upper[:], lower[:] = 0, part
            lower[:, ::2], upper[:, ::2] = 0, part[:, ::2]
        pieces += _pieces(upper) + _pieces(lower)
    return pieces
