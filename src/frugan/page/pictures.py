"""Sheets as the page shows them: the file itself, or reduced for the list."""

import io
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from PIL import Image

from frugan.errors import BadInput
from frugan.files import read_untrusted
from frugan.reporting.grids import COLUMNS_KEYWORD, GAP, GRID_KEYWORD, LARGEST_SIDE, ROWS_KEYWORD

MOST_FILE_BYTES = 1 << 28
MOST_PIXELS = 1 << 26
"""Largest sheet that is reduced: 64 pictures of 1024 x 1024. A file of a few kilobytes may claim billions of pixels."""
MOST_WIDTH = 2048
MOST_KEPT = 400
PNG = b"\x89PNG\r\n\x1a\n"
EXTENTS = (("left", "columns", "width"), ("top", "rows", "height"))
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""Errors that Pillow raises for damaged PNG files."""
NO_PLACES = (*UNREADABLE, TypeError, LookupError, RecursionError)
"""And what reading JSON of another shape does."""


@dataclass
class Thumbnails:
    """Reduced sheets; what was reduced once is kept for a while."""

    _kept: OrderedDict[tuple[Path, int, int, tuple[int, int] | None], bytes] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def of(self, path: Path, width: int | None, part: tuple[int, int] | None = None) -> tuple[str, bytes]:
        """Kind and content of a picture.

        Args:
            path: the file.
            width: the most pixels; None with no part: the file as it is.
            part: rows and columns of a grid's pictures, from its first one on, without words beside them; None, and
                of files that do not say where their pictures are: all of it.

        Raises:
            BadInput: it is no PNG file, or too large.
            OSError: it cannot be read.
        """
        if width is None and part is None:
            content = read_untrusted(path, MOST_FILE_BYTES)
            width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))
            if not content.startswith(PNG) or width * height > LARGEST_SIDE**2:
                raise BadInput(f"{path.name}: expected a PNG file of at most {LARGEST_SIDE:,} pixels a side")
            return "png", content
        key = path, path.stat().st_mtime_ns, min(width or MOST_WIDTH, MOST_WIDTH), part
        with self._lock:
            content = self._kept.get(key) or _reduced(path, key[2], part)
            self._kept[key] = content
            self._kept.move_to_end(key)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return "webp", content


def columns_of(path: Path) -> dict[str, Any] | None:
    """Titles of a sheet's columns, and in pixels where they begin and how wide each is; None: it does not tell."""
    try:
        with Image.open(path, formats=("PNG",)) as opened:
            place = json.loads(opened.info.get(COLUMNS_KEYWORD, "null"))
        numbers = {name: int(place[name]) for name in ("left", "top", "width")}
        return {"titles": [str(title)[:40] for title in place["titles"]][:100], **numbers}
    except NO_PLACES:
        return None


def grid_of(path: Path) -> dict[str, int] | None:
    """Place, distances, rows and columns of a sheet's pictures, see `GRID_KEYWORD`; None: it does not tell."""
    try:
        with Image.open(path, formats=("PNG",)) as opened:
            place = json.loads(opened.info.get(GRID_KEYWORD, "null"))
        return {name: int(place[name]) for name in ("left", "top", "width", "height", "rows", "columns")}
    except NO_PLACES:
        return None


def rows_of(path: Path) -> list[str]:
    """Names of a sheet's rows; empty: it does not tell."""
    try:
        with Image.open(path, formats=("PNG",)) as opened:
            names = str(opened.info.get(ROWS_KEYWORD, ""))
        return [name[:40] for name in names.split("\n")[:100]] if names else []
    except NO_PLACES:
        return []


def _part(picture: Image.Image, place: Mapping[str, int], part: tuple[int, int], *, titled: bool) -> Image.Image:
    """Rows and columns of a sheet's pictures; a sheet of fewer rows gives more of each, in rows of their own.

    Args:
        titled: each column shows something else, what comes out in the last ones: they are kept, such as a face swap.
    """
    columns = min(part[1], place["columns"])
    wrapped = max(1, min(part[0] // max(1, place["rows"]), place["columns"] // max(1, columns)))
    rows = min(part[0], place["rows"] * wrapped)
    width, height = place["width"] - GAP, place["height"] - GAP
    right, bottom = (place[edge] + place[count] * place[size] for edge, count, size in EXTENTS)
    if min(rows, columns, width, height) < 1 or right - GAP > picture.width or bottom - GAP > picture.height:
        return picture  # it does not say what it is
    skipped = place["columns"] - wrapped * columns if titled else 0
    sheet = Image.new("RGBA", (columns * place["width"] - GAP, rows * place["height"] - GAP))
    for row in range(rows):
        for column in range(columns):
            left = place["left"] + (skipped + row % wrapped * columns + column) * place["width"]
            top = place["top"] + row // wrapped * place["height"]
            cell = picture.crop((left, top, left + width, top + height))
            sheet.paste(cell, (column * place["width"], row * place["height"]))
    return sheet


def _reduced(path: Path, width: int, part: tuple[int, int] | None) -> bytes:
    place = grid_of(path) if part is not None else None
    try:
        with Image.open(path, formats=("PNG",)) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise BadInput(f"{path.name}: {opened.width} x {opened.height} pixels are too many")
            picture = opened.convert("RGB")
        if part is not None and place is not None:
            picture = _part(picture, place, part, titled=columns_of(path) is not None)
        if picture.width > width:
            height = max(1, picture.height * width // picture.width)
            picture = picture.resize((width, height), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        picture.save(file, "WEBP", quality=85, method=2)
        return file.getvalue()
    except UNREADABLE as error:
        raise BadInput(f"{path.name}: {error}") from error
