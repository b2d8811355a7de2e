"""Sheets of samples as PNG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from frugan.report.lettering import BACKGROUND, label_column, title_line
from frugan.whole_files import whole_file

GAP = 2
"""Pixels between pictures and around the sheet."""

ROWS_KEYWORD = "Rows"
"""Text chunk of the file that holds the rows' names, one a line."""

SMALLEST_SHOWN = 64
"""Pictures with a smaller side are enlarged: ten columns of 32-pixel pictures would be 340 pixels wide."""


def sheet_width(columns: int, side: int) -> int:
    """Width in pixels of the file that a sheet of pictures of that side makes, without names of its rows."""
    return columns * (side * -(-SMALLEST_SHOWN // side) + GAP) + GAP


def write_sheet(
    sheet: Tensor,
    path: Path,
    about: Mapping[str, str] | None = None,
    above: NDArray[np.uint8] | None = None,
    titles: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> None:
    """Write a sheet of pictures as a PNG file; a reader never finds half of one.

    Values map as (x + 1) * 127.5, rounded and clamped; NaN is black, and `not_finite` tells of it. Sides below 64
    pixels are enlarged by a whole factor, pixel by pixel. (The BigGAN release stretches each sheet from its least to
    its greatest value, so that two sheets of one run cannot be compared.)

    Args:
        sheet: [rows, columns, C, H, W] in [-1, 1], C = 1 or 3, any floating dtype.
        path: the file; its folder is made if missing.
        about: text chunks of the file, by keyword: what made the pictures.
        above: a strip [H, `sheet_width`, 3] to stand above the sheet.
        titles: one for each column, to stand above it; none: no line for them.
        labels: one for each row, to stand before it; none: no margin for them.

    Raises:
        ValueError: another shape or dtype, or no pictures.
    """
    levels = _levels(sheet)
    pixels = _arrange(levels)  # [height, width, C]
    strips = [above] if above is not None else []
    strips += [title_line(titles, pixels.shape[1], GAP)] if titles else []
    if strips or labels:
        pixels = np.concatenate([*strips, np.broadcast_to(pixels, (*pixels.shape[:2], 3))])
    if labels:
        column = label_column(labels, levels.shape[3], GAP)
        above_it = np.full((len(pixels) - len(column), column.shape[1], 3), BACKGROUND, np.uint8)
        pixels = np.concatenate([np.concatenate([above_it, column]), pixels], 1)
    if sheet.shape[2] == 1 and not np.ptp(pixels, axis=2).any():
        pixels = pixels[:, :, :1]  # words beside grey pictures need no colour
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    chunks = PngInfo()
    for keyword, text in {**(about or {}), **({ROWS_KEYWORD: "\n".join(labels)} if labels else {})}.items():
        chunks.add_itxt(keyword, text)
    with whole_file(path) as beside:
        picture.save(beside, format="PNG", pnginfo=chunks)


def not_finite(sheet: Tensor) -> str | None:
    """What to tell of a sheet [rows, columns, C, H, W] that holds NaN or infinities; None: nothing."""
    bad = int((~torch.isfinite(sheet)).flatten(2).any(2).sum())
    if not bad:
        return None
    return (
        f"{bad} of {sheet.shape[0] * sheet.shape[1]} pictures hold values that are not finite: weights or precision "
        "fail there; look at the run's skipped steps, and at the same grid in training.precision=fp32"
    )


def _levels(sheet: Tensor) -> NDArray[np.uint8]:
    """[rows, columns, C, H, W] in [-1, 1] -> uint8, enlarged."""
    shape = list(sheet.shape)
    if len(shape) != 5 or shape[2] not in (1, 3) or 0 in shape:
        raise ValueError(f"sheet {shape}: expected [rows, columns, C, H, W] with C = 1 or 3, and at least one picture")
    if not sheet.is_floating_point():
        raise ValueError(f"sheet of {sheet.dtype}: expected floating values in [-1, 1], not pixels")
    values = sheet.detach().cpu().float()
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
