"""The face seen straight from the front as a flat sheet, on which features are painted in mm."""

import numpy as np
from numpy.typing import NDArray

from frugan.data.faces.drawn.chart import Array
from frugan.data.faces.opencv import opencv

LEFT, TOP, WIDTH, HEIGHT = -95.0, -140.0, 190.0, 260.0  # mm
_FRACTION_BITS = 6


class Canvas:
    """One sheet of floats.

    Args:
        fineness: pixels per mm.
        start: pixels to paint over, float32 [HEIGHT * fineness, WIDTH * fineness] or with channels; zeros by default.
    """

    def __init__(self, fineness: float, start: Array | None = None) -> None:
        self.fineness = fineness
        shape = (round(HEIGHT * fineness), round(WIDTH * fineness))
        self.pixels: Array = np.zeros(shape, np.float32) if start is None else start

    def paint(self, polygon: Array, value: float | Array, soft: float = 0.0, strength: float = 1.0) -> None:
        """Mix a colour into a polygon's inside.

        Args:
            polygon: [n, 2] in mm.
            value: float or [channels].
            soft: standard deviation of the edge's blur in mm.
            strength: share of the new colour, 0 to 1.
        """
        mask, box = self._mask(polygon, soft)
        if mask.size:
            mask *= np.float32(strength)
            part = self.pixels[box]
            weight = mask if part.ndim == 2 else mask[..., None]
            part += weight * (np.float32(1) * value - part)

    def add(self, polygon: Array, value: float, soft: float = 0.0) -> None:
        """Add a value inside a polygon; arguments as those of `paint`."""
        mask, box = self._mask(polygon, soft)
        if mask.size:
            self.pixels[box] += mask * np.float32(value)

    def stroke(self, line: Array, width: float, value: float | Array, soft: float = 0.0, strength: float = 1.0) -> None:
        """Mix a colour into a line of some width; other arguments as those of `paint`."""
        self.paint(ribbon(line, width), value, soft, strength)

    def groove(self, line: Array, width: float, value: float, soft: float) -> None:
        """Add a value along a line of some width."""
        self.add(ribbon(line, width), value, soft)

    def _mask(self, polygon: Array, soft: float) -> tuple[Array, tuple[slice, slice]]:
        """Return a polygon's coverage, 0 to 1, and which pixels it is of."""
        cv2 = opencv()
        points = (polygon - np.array([LEFT, TOP], np.float32)) * np.float32(self.fineness) - 0.5
        sigma = soft * self.fineness
        reach = int(3 * sigma) + 2
        low = np.maximum(np.floor(points.min(axis=0)).astype(int) - reach, 0)
        size = np.array(self.pixels.shape[1::-1])
        high = np.minimum(np.ceil(points.max(axis=0)).astype(int) + reach + 1, size)
        box = (slice(low[1], max(high[1], low[1])), slice(low[0], max(high[0], low[0])))
        mask: NDArray[np.uint8] = np.zeros((box[0].stop - box[0].start, box[1].stop - box[1].start), np.uint8)
        if mask.size:
            fixed = np.round((points - low) * (1 << _FRACTION_BITS)).astype(np.int32)
            cv2.fillPoly(mask, [fixed], 255, cv2.LINE_AA, _FRACTION_BITS)
        soft_mask = mask.astype(np.float32) * np.float32(1 / 255)
        if sigma > 0.2 and mask.size:
            soft_mask = cv2.GaussianBlur(soft_mask, (0, 0), sigma)
        return soft_mask, box


def ribbon(line: Array, width: float | Array) -> Array:
    """Return the outline, [2n, 2], of a line, [n, 2], with a width in mm (one, or one per point)."""
    along = np.gradient(line, axis=0)
    along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-6)
    across = np.stack([-along[:, 1], along[:, 0]], axis=1) * (np.asarray(width, np.float32).reshape(-1, 1) / 2)
    return np.concatenate([line + across, (line - across)[::-1]]).astype(np.float32)
