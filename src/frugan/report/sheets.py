"""Sheets of samples as PNG files."""

import os
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

GAP = 2
"""Pixels between pictures, before enlarging."""
BACKGROUND = 40
SMALL = 64
"""Pictures below this side are enlarged by a whole factor, so that a sheet can be looked at."""


def write_sheet(sheet: Tensor, path: Path) -> None:
    """Write a sheet of pictures.

    Args:
        sheet: [rows, columns, C, H, W] in [-1, 1], C 1 or 3; mapped to 0..255 as (x+1)·127.5, not stretched.
        path: PNG file; replaced whole or not at all.

    Raises:
        ValueError: another shape, or values that are not finite.
    """
    if sheet.ndim != 5 or sheet.shape[2] not in (1, 3) or 0 in sheet.shape:
        raise ValueError(f"sheet of shape {tuple(sheet.shape)}: expected [rows, columns, 1 or 3, H, W]")
    if not bool(torch.isfinite(sheet).all()):
        raise ValueError(f"{path.name}: the pictures hold values that are not finite; nothing was written")
    rows, columns, channels, height, width = sheet.shape
    pixels = ((sheet.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    canvas = torch.full(
        (rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, channels), BACKGROUND, dtype=torch.uint8
    )
    for row in range(rows):
        for column in range(columns):
            top, left = GAP + row * (height + GAP), GAP + column * (width + GAP)
            canvas[top : top + height, left : left + width] = pixels[row, column].permute(1, 2, 0)
    image = Image.fromarray(canvas.squeeze(2).numpy() if channels == 1 else canvas.numpy())
    factor = max(1, -(-SMALL // max(height, width)))
    if factor > 1:
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        image.save(beside, format="PNG", optimize=True)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
