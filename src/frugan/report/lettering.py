"""Words drawn into sheets, with the font that comes with Pillow."""

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

TITLE_HEIGHT = 14
BACKGROUND = 128
"""Middle grey: shows where a black or a white picture ends."""
INK = (255, 255, 255)

SMALLEST_LETTERS = 12
LETTERS_SHARE = 8
"""Letters of a row's name take such a part of its height: a sheet of large pictures is shown reduced."""
WIDEST_LABEL = 2.0
"""Of a row's name, in heights of the row; longer ones are cut."""
MARGIN = 4


def title_line(titles: Sequence[str], width: int, gap: int) -> NDArray[np.uint8]:
    """Titles over the middles of their columns. [TITLE_HEIGHT, width, 3]."""
    line = Image.new("RGB", (width, TITLE_HEIGHT), (BACKGROUND,) * 3)
    draw = ImageDraw.Draw(line)
    for at, title in enumerate(titles):
        middle = gap + (at + 0.5) * (width - gap) / len(titles)
        draw.text((middle - draw.textlength(title) / 2, 1), title, INK)
    return np.asarray(line)


def label_column(labels: Sequence[str], row_height: int, gap: int) -> NDArray[np.uint8]:
    """Names beside the middles of their rows, as wide as the longest. [rows * (row_height + gap) + gap, width, 3].

    Letters that the font lacks lose their accents, or stand as "?"; a name of nothing else is the number of its row.
    """
    font = ImageFont.load_default(max(SMALLEST_LETTERS, row_height // LETTERS_SHARE))
    most = WIDEST_LABEL * row_height
    names = [_cut(_drawable(label, f"row {row}", font), font, most) for row, label in enumerate(labels, 1)]
    width = max(round(font.getlength(name)) for name in names) + 2 * MARGIN
    column = Image.new("RGB", (width, len(labels) * (row_height + gap) + gap), (BACKGROUND,) * 3)
    draw = ImageDraw.Draw(column)
    for row, name in enumerate(names):
        draw.text((width - MARGIN, gap + row * (row_height + gap) + row_height / 2), name, INK, font, anchor="rm")
    return np.asarray(column)


def _drawable(text: str, otherwise: str, font: Font) -> str:
    missing = _shape("\uffff", font)

    def drawn(letter: str) -> str:
        plain = unicodedata.normalize("NFKD", letter)[:1]
        found = (each for each in (letter, plain) if each == " " or _shape(each, font) != missing)
        return next(found, "?")

    shown = "".join(map(drawn, unicodedata.normalize("NFC", text)))
    return shown if shown.strip("? ") else otherwise


def _shape(letter: str, font: Font) -> bytes:
    mask = font.getmask(letter)
    return bytes(mask) + bytes(mask.size)


def _cut(text: str, font: Font, most: float) -> str:
    if font.getlength(text) <= most:
        return text
    while text and font.getlength(f"{text}...") > most:
        text = text[:-1]
    return f"{text.rstrip()}..."
