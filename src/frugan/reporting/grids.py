"""Grids of samples as PNG files: pictures side by side, words beside them, loss curves above."""

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
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
"""Height of a row over that of the letters in its name, as a grid of large pictures is shown reduced."""
WIDEST_LABEL = 2.0
"""Largest width of a row's name, in heights of the row; longer names are wrapped, and cut where the row ends."""
LINE_SPACING = 1.4
"""Distance of lines, in heights of the letters."""
MARGIN = 4
PICTOGRAPHS = ("So", "Sk", "Mn", "Me", "Cf")
"""Categories of Unicode of emoji, and of what joins, frames and tints them."""


def title_line(titles: Sequence[str], width: int, gap: int) -> NDArray[np.uint8]:
    """Titles over the middles of their columns, cut where they are wider. [TITLE_HEIGHT, width, 3]."""
    line = Image.new("RGB", (width, TITLE_HEIGHT), (BACKGROUND,) * 3)
    draw, font = ImageDraw.Draw(line), ImageFont.load_default()
    column = (width - gap) / len(titles)
    for at, title in enumerate(titles):
        text = _cut(title, font, column - MARGIN)
        draw.text((gap + (at + 0.5) * column - font.getlength(text) / 2, 1), text, INK, font)
    return np.asarray(line)


def label_column(labels: Sequence[str], row_height: int, gap: int) -> NDArray[np.uint8]:
    """Names beside the middles of their rows, as wide as the longest. [rows * (row_height + gap) + gap, width, 3].

    Letters that the font lacks lose their accents, or stand as "?", and pictographs that it lacks are left out; a name
    of nothing else is the number of its row.
    """
    letters = max(SMALLEST_LETTERS, row_height // LETTERS_SHARE)
    font, apart = ImageFont.load_default(letters), LINE_SPACING * letters
    most_lines = max(1, int(row_height / apart))
    names = [
        _lines(_drawable(label, f"row {row}", font), font, WIDEST_LABEL * row_height, most_lines)
        for row, label in enumerate(labels, 1)
    ]
    width = max(round(font.getlength(line)) for lines in names for line in lines) + 2 * MARGIN
    column = Image.new("RGB", (width, len(labels) * (row_height + gap) + gap), (BACKGROUND,) * 3)
    draw = ImageDraw.Draw(column)
    for row, lines in enumerate(names):
        middle = gap + row * (row_height + gap) + row_height / 2
        for number, line in enumerate(lines):
            at = middle + (number - (len(lines) - 1) / 2) * apart
            draw.text((width - MARGIN, at), line, INK, font, anchor="rm")
    return np.asarray(column)


def _lines(text: str, font: Font, most: float, most_lines: int) -> list[str]:
    """Break a name between words into lines of a width; what has no room is cut."""
    lines, words = [""], text.split(" ")
    for at, word in enumerate(words):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if font.getlength(longer) <= most or not lines[-1]:
            lines[-1] = longer
        elif len(lines) < most_lines:
            lines.append(word)
        else:
            lines[-1] = " ".join([lines[-1], *words[at:]])
            break
    return [_cut(line, font, most) for line in lines]


def _drawable(text: str, otherwise: str, font: Font) -> str:
    missing = _shape("\uffff", font)

    def drawn(letter: str) -> str:
        plain = unicodedata.normalize("NFKD", letter)[:1]
        drawable = (
            character for character in (letter, plain) if character == " " or _shape(character, font) != missing
        )
        return next(drawable, "" if unicodedata.category(letter) in PICTOGRAPHS else "?")

    shown = " ".join("".join(map(drawn, unicodedata.normalize("NFC", text))).split())
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
"""Colours of the curves, in their order."""


def loss_strip(curves: Mapping[str, Sequence[float]], caption: str, width: int) -> NDArray[np.uint8]:
    """Draw one curve for each side over all steps so far.

    Each pixel column shows the range and the mean of the steps that fall on it. The axis goes from 0 to the largest
    mean of the later half, so that the first losses do not flatten the rest.

    Args:
        curves: name -> loss of every step, in order; values that are not finite are passed over.
        caption: stands above them; "step 1,000".
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

COLUMNS_KEYWORD = "Columns"
"""Text chunk that holds the columns' titles, and in pixels where they begin and how wide each is, as JSON: whoever
shows the file may leave some out."""

GRID_KEYWORD = "Grid"
"""Text chunk that says, as JSON, in pixels where the pictures begin and how far apart they are, and how many rows and
columns there are: whoever shows the file may show a part of it."""

SMALLEST_SHOWN = 64
"""Pictures with a smaller side are enlarged: ten columns of 32-pixel pictures would be 340 pixels wide."""


LARGEST_SIDE = 16_384
"""Pixels of one file; many programs show larger ones badly, or not at all."""


def grid_width(columns: int, side: int) -> int:
    """Width in pixels of the file that a grid of pictures of that side makes, without names of its rows."""
    return columns * (_enlarged(side) + GAP) + GAP


def that_fit(side: int, beside: int = 0) -> int:
    """Number of pictures of a side that fit into a row or a column of a file, beside that many pixels of words; at
    least 1."""
    return max(1, (LARGEST_SIDE - beside - GAP) // (_enlarged(side) + GAP))


def _enlarged(side: int) -> int:
    return side * -(-SMALLEST_SHOWN // side)


def write_grid(
    grid: Tensor,
    path: Path,
    about: Mapping[str, str] | None = None,
    above: Callable[[int], NDArray[np.uint8]] | None = None,
    titles: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> list[Path]:
    """Write a grid of pictures as a PNG file; a reader never finds half of one.

    Values map as (x + 1) * 127.5, rounded and clamped; NaN is black, and `not_finite` tells of it. Sides below 64
    pixels are enlarged by a whole factor, pixel by pixel. (The BigGAN release stretches each grid from its least to
    its greatest value, so that two grids of one run cannot be compared.)

    Args:
        grid: [rows, columns, C, H, W] in [-1, 1], C = 1 or 3, any floating dtype.
        path: the file; its folder is made if missing.
        about: text chunks of the file, by keyword: what made the pictures.
        above: width in pixels -> a strip [H, width, 3] to stand above the grid.
        titles: one for each column, to stand above it; none: no line for them.
        labels: one for each row, to stand before it; none: no margin for them.

    Returns:
        The file; or several, numbered ("samples-1.png"), each with its titles and labels, where one would have a side
        above `LARGEST_SIDE`. `many_files` tells of it.

    Raises:
        ValueError: another shape or dtype, or no pictures.
    """
    levels = _levels(grid)
    rows, columns, _, height, width = levels.shape
    names = label_column(labels, height, GAP) if labels else None
    taken = (len(above(grid_width(1, width))) if above is not None else 0) + (TITLE_HEIGHT if titles else 0)
    parts = [
        (down, across)
        for down in _parts(rows, that_fit(height, taken))
        for across in _parts(columns, that_fit(width, names.shape[1] if names is not None else 0))
    ]
    paths = [path] if len(parts) == 1 else numbered(path, len(parts))
    for (down, across), file in zip(parts, paths, strict=True):
        pixels = _arrange(levels[down, across])  # [height, width, C]
        strips = [above(pixels.shape[1])] if above is not None else []
        top = sum(map(len, strips))
        column = None if names is None else names[down.start * (height + GAP) : down.stop * (height + GAP) + GAP]
        chunks = {**(about or {}), **({ROWS_KEYWORD: "\n".join(labels[down])} if labels else {})}
        left = GAP + (0 if column is None else column.shape[1])
        chunks[GRID_KEYWORD] = _place_of_grid(levels[down, across].shape, left, taken + GAP)
        if titles:
            strips.append(title_line(titles[across], pixels.shape[1], GAP))
            chunks[COLUMNS_KEYWORD] = _place_of_columns(titles[across], left, top, width)
        _write(_with_words(pixels, strips, column), file, chunks)
    return paths


def _place_of_columns(titles: Sequence[str], left: int, top: int, width: int) -> str:
    """Text of the chunk `COLUMNS_KEYWORD`."""
    return json.dumps({"titles": list(titles), "left": left, "top": top, "width": width + GAP})


def _place_of_grid(shape: Sequence[int], left: int, top: int) -> str:
    """Text of the chunk `GRID_KEYWORD`, for pictures [rows, columns, C, H, W]."""
    rows, columns, _, height, width = shape
    place = {"left": left, "top": top, "width": width + GAP, "height": height + GAP}
    return json.dumps({**place, "rows": rows, "columns": columns})


def numbered(path: Path, count: int) -> list[Path]:
    """Names of several files in place of one: "samples-01.png" to "samples-25.png"."""
    digits = len(str(count))
    return [path.with_stem(f"{path.stem}-{number:0{digits}d}") for number in range(1, count + 1)]


def _parts(count: int, most: int) -> list[slice]:
    """Equal parts, but for the last one, of so many pictures at the most."""
    rows = -(-count // -(-count // most))
    return [slice(first, min(first + rows, count)) for first in range(0, count, rows)]


def _with_words(
    pixels: NDArray[np.uint8], strips: Sequence[NDArray[np.uint8]], column: NDArray[np.uint8] | None
) -> NDArray[np.uint8]:
    """Put strips above a grid [height, width, C], and a column of names before it; grey where all of it is."""
    grey = pixels.shape[2] == 1
    if strips or column is not None:
        pixels = np.concatenate([*strips, np.broadcast_to(pixels, (*pixels.shape[:2], 3))])
    if column is not None:
        above_it = np.full((len(pixels) - len(column), column.shape[1], 3), BACKGROUND, np.uint8)
        pixels = np.concatenate([np.concatenate([above_it, column]), pixels], 1)
    # words beside grey pictures need no colour
    return pixels[:, :, :1] if grey and not np.ptp(pixels, axis=2).any() else pixels


def _write(pixels: NDArray[np.uint8], path: Path, chunks: Mapping[str, str]) -> None:
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = PngInfo()
    for keyword, text in chunks.items():
        texts.add_itxt(keyword, text)
    with atomic_file(path) as beside:
        picture.save(beside, format="PNG", pnginfo=texts)


def many_files(paths: Sequence[Path]) -> str | None:
    """Warn of a grid that is spread over many files; None: it is not."""
    if len(paths) == 1:
        return None
    return (
        f"in one file this grid would have more than {LARGEST_SIDE:,} pixels a side: {len(paths)} files, "
        f"{paths[0].name} to {paths[-1].name}"
    )


def not_finite(grid: Tensor) -> str | None:
    """Warn of a grid [rows, columns, C, H, W] with NaN or infinities; None: it has none."""
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
