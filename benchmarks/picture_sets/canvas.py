"""What the drawers share: colours, smooth noise, and a canvas that is drawn large and made small."""

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
Factors = dict[str, str | int | float]
T = TypeVar("T")
OVERSIZE = 4
"""A smooth-edged picture is drawn so many times as large."""


@dataclass(frozen=True)
class Drawn:
    """A picture and what is in it.

    Attributes:
        picture: RGBA, RGB or L; it need not be square.
        factors: what the drawer chose, such as kind, colour, pose, count and place; "class" where the kind has classes.
    """

    picture: Image.Image
    factors: Factors


class Canvas:
    """Smooth-edged drawing in coordinates from 0 to 1 (y downwards), for a picture of a given height in pixels."""

    def __init__(self, side: int, ground: Colour | None = None, wide: float = 1.0) -> None:
        self.size = (round(side * wide), side)
        self.scale = side * OVERSIZE
        large = (self.size[0] * OVERSIZE, self.size[1] * OVERSIZE)
        self.image = Image.new("RGBA", large, (*ground, 255) if ground else (0, 0, 0, 0))

    @cached_property
    def pen(self) -> ImageDraw.ImageDraw:
        """Draws on the large picture."""
        return ImageDraw.Draw(self.image)

    def polygon(self, points: list[tuple[float, float]], fill: Colour, edge: Colour | None = None) -> None:
        """Fill a polygon, and draw its edge."""
        scaled = [(x * self.scale, y * self.scale) for x, y in points]
        self.pen.polygon(scaled, fill=fill)
        if edge:
            self.pen.line([*scaled, scaled[0]], fill=edge, width=max(2, self.scale // 90), joint="curve")

    def disc(self, x: float, y: float, radius: float, fill: Colour | None, edge: Colour | None = None) -> None:
        """Fill a disc, and draw its edge."""
        box = [(v - radius) * self.scale for v in (x, y)] + [(v + radius) * self.scale for v in (x, y)]
        self.pen.ellipse(box, fill=fill, outline=edge, width=max(2, self.scale // 70) if edge else 0)

    def box(self, left: float, top: float, right: float, bottom: float, fill: Colour) -> None:
        """Fill a rectangle."""
        self.pen.rectangle([v * self.scale for v in (left, top, right, bottom)], fill=fill)

    def line(self, points: list[tuple[float, float]], fill: Colour, width: float) -> None:
        """Draw a line of a width."""
        self.pen.line(
            [(x * self.scale, y * self.scale) for x, y in points],
            fill=fill,
            width=max(1, round(width * self.scale)),
            joint="curve",
        )

    def paste(self, values: np.ndarray) -> None:
        """Lay a picture [h, w, 3 or 4] of any size over the canvas, made as large."""
        mode = "RGBA" if values.shape[2] == 4 else "RGB"
        layer = Image.fromarray(values.astype(np.uint8), mode).resize(self.image.size, Image.Resampling.BICUBIC)
        self.image.alpha_composite(layer.convert("RGBA"))

    def done(self, *, opaque: bool = True) -> Image.Image:
        """The picture at its own size."""
        small = self.image.resize(self.size, Image.Resampling.BOX)
        return small.convert("RGB") if opaque else small


def hsv(hue: float, saturation: float, value: float) -> Colour:
    """A colour by hue, saturation and value, each from 0 to 1; hues wrap round."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, min(1, max(0, saturation)), min(1, max(0, value)))
    return round(red * 255), round(green * 255), round(blue * 255)


def noise(random: np.random.Generator, side: int, cells: int, octaves: int = 4, *, wide: float = 1.0) -> np.ndarray:
    """Smooth noise from 0 to 1, [side, side * wide]: cubic interpolation of random grids, each twice as fine.

    Args:
        cells: of the coarsest grid, from edge to edge.
    """
    shape = (round(side * wide), side)
    total = np.zeros((shape[1], shape[0]), np.float32)
    for octave in range(octaves):
        count = max(2, cells * 2**octave)
        grid = Image.fromarray(random.random((count + 1, round(count * wide) + 1), np.float32))
        total += np.asarray(grid.resize(shape, Image.Resampling.BICUBIC)) / 2**octave
    low, high = float(total.min()), float(total.max())
    return (total - low) / max(high - low, 1e-6)


def gradient(values: np.ndarray, stops: list[tuple[float, Colour]]) -> np.ndarray:
    """Colours [..., 3] for values, interpolated between stops that rise."""
    places = [place for place, _ in stops]
    return np.stack([np.interp(values, places, [colour[i] for _, colour in stops]) for i in range(3)], -1)


def star(x: float, y: float, radius: float, points: int = 5, inner: float = 0.4) -> list[tuple[float, float]]:
    """The corners of a star that stands upright."""
    corners = []
    for i in range(2 * points):
        angle = np.pi * i / points - np.pi / 2
        length = radius if i % 2 == 0 else radius * inner
        corners.append((float(x + length * np.cos(angle)), float(y + length * np.sin(angle))))
    return corners


def choose(random: np.random.Generator, among: Sequence[T], shares: list[float] | None = None) -> T:
    """One of several, evenly or by shares."""
    weights = None if shares is None else np.array(shares) / sum(shares)
    return among[int(random.choice(len(among), p=weights))]
