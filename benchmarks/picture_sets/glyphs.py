"""Letters in all the typefaces and weights that matplotlib brings."""

from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from picture_sets.canvas import OVERSIZE, Canvas, Colour, Drawn, Factors, choose

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WITHOUT_LETTERS = ("Siz", "NonUni", "cmex", "cmsy", "LastResort", "Display")
"""Parts of the names of fonts that hold signs alone."""


@cache
def _fonts() -> tuple[Path, ...]:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    found = sorted(path for path in folder.glob("*.ttf") if not any(part in path.name for part in WITHOUT_LETTERS))
    if not found:
        raise SystemExit(f"glyphs: no fonts in {folder}: install matplotlib whole")
    return tuple(found)


@cache
def _font(path: Path, pixels: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(path), pixels)


def glyph(random: np.random.Generator, side: int) -> Drawn:
    """A capital letter in some typeface, dark on light or light on dark: grey, 26 classes."""
    letter, path = choose(random, LETTERS), choose(random, _fonts())
    large = side * OVERSIZE
    share, turn, slant = random.uniform(0.6, 0.85), random.normal(0, 4), random.normal(0, 0.06)
    image = Image.new("L", (large, large), 0)
    middle = (large * (0.5 + random.normal(0, 0.02)), large * (0.5 + random.normal(0, 0.02)))
    ImageDraw.Draw(image).text(middle, letter, fill=255, font=_font(path, round(large * share)), anchor="mm")
    image = image.rotate(turn, Image.Resampling.BICUBIC).transform(
        image.size, Image.Transform.AFFINE, (1, slant, -slant * large / 2, 0, 1, 0), Image.Resampling.BICUBIC
    )
    ink = np.asarray(image.resize((side, side), Image.Resampling.BOX), np.float32) / 255
    paper, pen = random.uniform(0.8, 1.0), random.uniform(0.0, 0.3)
    if inverted := bool(random.random() < 0.25):
        paper, pen = pen, paper
    grey = (paper + (pen - paper) * ink) * 255
    factors: Factors = {"class": letter, "font": path.stem, "turn": round(turn, 1), "inverted": int(inverted)}
    return Drawn(Image.fromarray(grey.round().astype(np.uint8), "L"), factors)


def text(canvas: Canvas, words: str, x: float, y: float, height: float, ink: Colour, anchor: str) -> None:
    """Write on a canvas; `height` of a capital letter with what is above and below, `anchor` as Pillow has it."""
    path = next(path for path in _fonts() if path.name == "DejaVuSans-Bold.ttf")
    font = _font(path, round(height * canvas.scale))
    canvas.pen.text((x * canvas.scale, y * canvas.scale), words, fill=ink, font=font, anchor=anchor)
