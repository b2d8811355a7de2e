"""Grids of samples as PNG files: pictures side by side, words beside them, loss curves above."""

import unicodedata
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from frugan.files import atomic_file

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

TITLE_HEIGHT = 14
BACKGROUND = 128
"""Middle grey: shows where a black or a white picture ends."""
INK = (255, 255, 255)

SMALLEST_LETTERS = 12
LETTERS_SHARE = 8
"""Letters of a row's name take such a part of its height: a grid of large pictures is shown reduced."""
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
        drawable = (each for each in (letter, plain) if each == " " or _shape(each, font) != missing)
        return next(drawable, "?")

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


# Loss curves above a grid.

HEIGHT = 100
STRIP_MARGIN = 18
"""Rows at the top for the numbers."""

STRIP_BACKGROUND = (32, 32, 32)
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
    picture = Image.new("RGB", (width, HEIGHT), STRIP_BACKGROUND)
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
        _draw_curve(draw, (least, mean, most), top, colour)
        text = f"{name} {next((v for v in reversed(mean) if np.isfinite(v)), float('nan')):.4f}"
        draw.text((x, 3), text, colour)
        x += draw.textlength(text) + 16
    text = f"top {top:.3g}"
    draw.text((width - draw.textlength(text) - 6, 3), text, TEXT)
    return np.asarray(picture)


def _draw_curve(
    draw: ImageDraw.ImageDraw, columns: Sequence[NDArray[np.float64]], top: float, colour: tuple[int, int, int]
) -> None:
    """The mean over a faint range, both by pixel column; those that are not finite are left out.

    Args:
        columns: least, mean and most.
    """
    least, mean, most = columns
    sound = [at for at in range(len(mean)) if np.isfinite(mean[at])]
    faint = tuple(c // 2 for c in colour)
    for at in sound:
        draw.line((at, _row(most[at], top), at, _row(least[at], top)), faint)
    draw.line([(at, _row(mean[at], top)) for at in sound], colour, 1)


def _row(value: float, top: float) -> float:
    return HEIGHT - 1 - min(1.0, value / top) * (HEIGHT - 1 - STRIP_MARGIN)


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


# The grid itself, and its file.

GAP = 2
"""Pixels between pictures and around the grid."""

ROWS_KEYWORD = "Rows"
"""Text chunk of the file that holds the rows' names, one a line."""

SMALLEST_SHOWN = 64
"""Pictures with a smaller side are enlarged: ten columns of 32-pixel pictures would be 340 pixels wide."""


def grid_width(columns: int, side: int) -> int:
    """Width in pixels of the file that a grid of pictures of that side makes, without names of its rows."""
    return columns * (side * -(-SMALLEST_SHOWN // side) + GAP) + GAP


def write_grid(
    grid: Tensor,
    path: Path,
    about: Mapping[str, str] | None = None,
    above: NDArray[np.uint8] | None = None,
    titles: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> None:
    """Write a grid of pictures as a PNG file; a reader never finds half of one.

    Values map as (x + 1) * 127.5, rounded and clamped; NaN is black, and `not_finite` tells of it. Sides below 64
    pixels are enlarged by a whole factor, pixel by pixel. (The BigGAN release stretches each grid from its least to
    its greatest value, so that two grids of one run cannot be compared.)

    Args:
        grid: [rows, columns, C, H, W] in [-1, 1], C = 1 or 3, any floating dtype.
        path: the file; its folder is made if missing.
        about: text chunks of the file, by keyword: what made the pictures.
        above: a strip [H, `grid_width`, 3] to stand above the grid.
        titles: one for each column, to stand above it; none: no line for them.
        labels: one for each row, to stand before it; none: no margin for them.

    Raises:
        ValueError: another shape or dtype, or no pictures.
    """
    levels = _levels(grid)
    pixels = _arrange(levels)  # [height, width, C]
    strips = [above] if above is not None else []
    strips += [title_line(titles, pixels.shape[1], GAP)] if titles else []
    if strips or labels:
        pixels = np.concatenate([*strips, np.broadcast_to(pixels, (*pixels.shape[:2], 3))])
    if labels:
        column = label_column(labels, levels.shape[3], GAP)
        above_it = np.full((len(pixels) - len(column), column.shape[1], 3), BACKGROUND, np.uint8)
        pixels = np.concatenate([np.concatenate([above_it, column]), pixels], 1)
    if grid.shape[2] == 1 and not np.ptp(pixels, axis=2).any():
        pixels = pixels[:, :, :1]  # words beside grey pictures need no colour
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    chunks = PngInfo()
    for keyword, text in {**(about or {}), **({ROWS_KEYWORD: "\n".join(labels)} if labels else {})}.items():
        chunks.add_itxt(keyword, text)
    with atomic_file(path) as beside:
        picture.save(beside, format="PNG", pnginfo=chunks)


def not_finite(grid: Tensor) -> str | None:
    """What to tell of a grid [rows, columns, C, H, W] that holds NaN or infinities; None: nothing."""
    bad = int((~torch.isfinite(grid)).flatten(2).any(2).sum())
    if not bad:
        return None
    return (
        f"{bad} of {grid.shape[0] * grid.shape[1]} pictures hold values that are not finite: weights or precision "
        "fail there; look at the run's skipped steps, and at the same grid in training.precision=fp32"
    )


def _levels(grid: Tensor) -> NDArray[np.uint8]:
    """[rows, columns, C, H, W] in [-1, 1] -> uint8, enlarged."""
    shape = list(grid.shape)
    if len(shape) != 5 or shape[2] not in (1, 3) or 0 in shape:
        raise ValueError(f"grid {shape}: expected [rows, columns, C, H, W] with C = 1 or 3, and at least one picture")
    if not grid.is_floating_point():
        raise ValueError(f"grid of {grid.dtype}: expected floating values in [-1, 1], not pixels")
    values = grid.detach().cpu().float()
    values = values.nan_to_num(nan=-1.0)  # black
    levels = ((values + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    factor = -(-SMALLEST_SHOWN // min(shape[3:]))
    return np.asarray(levels.repeat_interleave(factor, 3).repeat_interleave(factor, 4))


def _arrange(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[rows, columns, C, H, W] -> one picture [height, width, C]."""
    rows, columns, channels, height, width = levels.shape
    padding = ((0, 0), (0, 0), (0, 0), (GAP, 0), (GAP, 0))
    tiles = np.pad(levels, padding, constant_values=BACKGROUND).transpose(0, 3, 1, 4, 2)  # [rows, H, columns, W, C]
    joined = tiles.reshape(rows * (height + GAP), columns * (width + GAP), channels)
    return np.pad(joined, ((0, GAP), (0, GAP), (0, 0)), constant_values=BACKGROUND)
