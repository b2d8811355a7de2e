"""Loss curves as a strip of pixels, to stand above a preview."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

HEIGHT = 100
MARGIN = 18
"""Rows at the top for the numbers."""

BACKGROUND = (32, 32, 32)
GRID = (64, 64, 64)
TEXT = (220, 220, 220)
COLOURS = ((90, 170, 255), (255, 170, 60), (140, 220, 140), (220, 140, 220))
"""Of the curves, in their order."""


def loss_strip(curves: Mapping[str, Sequence[float]], step: int, width: int) -> NDArray[np.uint8]:
    """Draw one curve for each side over all steps so far.

    Each pixel column shows the range and the mean of the steps that fall on it. The axis goes from 0 to the largest
    mean of the later half, so that the first losses do not flatten the rest.

    Args:
        curves: name -> loss of every step, in order; values that are not finite are passed over.
        step: number of the last step, for the caption.
        width: of the strip in pixels.

    Returns:
        uint8 [100, width, 3], RGB.
    """
    picture = Image.new("RGB", (width, HEIGHT), BACKGROUND)
    draw = ImageDraw.Draw(picture)
    columns = {name: _columns(np.asarray(values, np.float64), width) for name, values in curves.items() if len(values)}
    later = [float(v) for _, mean, _ in columns.values() for v in mean[len(mean) // 2 :] if np.isfinite(v) and v > 0]
    top = max(later, default=1.0) * 1.15
    for part in (0.25, 0.5, 0.75):
        row = _row(part * top, top)
        draw.line((0, row, width, row), GRID)
    caption = f"step {step:,}"
    x = 6 + draw.textlength(caption) + 16
    draw.text((6, 3), caption, TEXT)
    for (name, (least, mean, most)), colour in zip(columns.items(), cycle(COLOURS), strict=False):
        faint = tuple(c // 2 for c in colour)
        for at in range(len(mean)):
            if np.isfinite(mean[at]):
                draw.line((at, _row(most[at], top), at, _row(least[at], top)), faint)
        points = [(at, _row(value, top)) for at, value in enumerate(mean) if np.isfinite(value)]
        draw.line(points, colour, 1)
        text = f"{name} {next((v for v in reversed(mean) if np.isfinite(v)), float('nan')):.4f}"
        draw.text((x, 3), text, colour)
        x += draw.textlength(text) + 16
    text = f"top {top:.3g}"
    draw.text((width - draw.textlength(text) - 6, 3), text, TEXT)
    return np.asarray(picture)


def _row(value: float, top: float) -> float:
    return HEIGHT - 1 - min(1.0, value / top) * (HEIGHT - 1 - MARGIN)


def _columns(values: NDArray[np.float64], width: int) -> tuple[NDArray[np.float64], ...]:
    """Least, mean and most of the values that fall on each pixel column; a few values are spread over all columns."""
    values = np.where(np.isfinite(values), values, np.nan)
    if len(values) < width:
        spread = values[(np.arange(width) * len(values)) // width]
        return spread, spread, spread
    edges = (np.arange(width) * len(values)) // width
    sound = np.isfinite(values)
    counts = np.add.reduceat(sound, edges)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.add.reduceat(np.where(sound, values, 0), edges) / counts
    least = np.minimum.reduceat(np.where(sound, values, np.inf), edges)
    most = np.maximum.reduceat(np.where(sound, values, -np.inf), edges)
    return least, mean, most
