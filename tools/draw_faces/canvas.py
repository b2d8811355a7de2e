"""The face seen straight from the front as a flat sheet, on which features are painted in mm."""

import numpy as np
from numpy.typing import NDArray

from frugan.faces.data.geometry import opencv
from tools.draw_faces.chart import Array

LEFT, TOP, WIDTH, HEIGHT = -95.0, -140.0, 190.0, 260.0  # mm
_FRACTION_BITS = 6
_LEAST_BLUR = 0.2  # pixels


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

    def hairs(self, lines: Array, widths: Array, value: Array, strengths: Array) -> None:
        """Mix a colour into many short lines.

        Args:
            lines: [n, points, 2] in mm.
            widths: at the points, [points], mm.
            value: [channels].
            strengths: of the lines, [n], 0 to 1.
        """
        cv2 = opencv()
        outlines = ribbon(lines, widths)  # [n, 2 * points, 2]
        fixed, box = self._fixed(outlines.reshape(-1, 2), 2)
        mask: NDArray[np.uint8] = np.zeros((box[0].stop - box[0].start, box[1].stop - box[1].start), np.uint8)
        for outline, strength in zip(fixed.reshape(outlines.shape), strengths, strict=True):
            cv2.fillConvexPoly(mask, outline, float(255 * strength), cv2.LINE_AA, _FRACTION_BITS)
        self.pixels[box] += (mask.astype(np.float32) * np.float32(1 / 255))[..., None] * (value - self.pixels[box])

    def _mask(self, polygon: Array, soft: float) -> tuple[Array, tuple[slice, slice]]:
        """Return a polygon's coverage, 0 to 1, and which pixels it is of."""
        cv2 = opencv()
        sigma = soft * self.fineness
        fixed, box = self._fixed(polygon, int(3 * sigma) + 2)
        mask: NDArray[np.uint8] = np.zeros((box[0].stop - box[0].start, box[1].stop - box[1].start), np.uint8)
        if mask.size == 0:
            return mask.astype(np.float32), box
        cv2.fillPoly(mask, [fixed], 255, cv2.LINE_AA, _FRACTION_BITS)
        cover = mask.astype(np.float32) * np.float32(1 / 255)
        return cv2.GaussianBlur(cover, (0, 0), sigma) if sigma > _LEAST_BLUR else cover, box

    def _fixed(self, points: Array, margin: int) -> tuple[NDArray[np.int32], tuple[slice, slice]]:
        """Return points, [n, 2] in mm, in fractions of a pixel of a box about them, and that box."""
        places = (points - np.array([LEFT, TOP], np.float32)) * np.float32(self.fineness) - 0.5
        size = np.array(self.pixels.shape[1::-1])
        low = np.clip(np.floor(places.min(axis=0)).astype(int) - margin, 0, size)
        high = np.clip(np.ceil(places.max(axis=0)).astype(int) + margin + 1, low, size)
        fixed = np.round((places - low) * (1 << _FRACTION_BITS)).astype(np.int32)
        return fixed, (slice(low[1], high[1]), slice(low[0], high[0]))


def ribbon(line: Array, width: float | Array) -> Array:
    """Return the outlines, [..., 2n, 2], of lines, [..., n, 2], with a width in mm (one, or one per point)."""
    along = np.empty_like(line)
    along[..., 1:-1, :] = line[..., 2:, :] - line[..., :-2, :]
    along[..., 0, :], along[..., -1, :] = line[..., 1, :] - line[..., 0, :], line[..., -1, :] - line[..., -2, :]
    along /= np.maximum(np.sqrt((along * along).sum(axis=-1, keepdims=True)), 1e-6)
    across = np.stack([-along[..., 1], along[..., 0]], axis=-1) * (np.asarray(width, np.float32).reshape(-1, 1) / 2)
    return np.concatenate([line + across, (line - across)[..., ::-1, :]], axis=-2).astype(np.float32)
