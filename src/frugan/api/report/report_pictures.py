"""The sheets of a run as its report shows them: in the page itself, reduced, the damaged ones left out."""

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from frugan.report.run_view import Picture
from frugan.report.sheets import ROWS_KEYWORD

MOST_PICTURES = 40
MOST_PIXELS = 1 << 26
"""Of a sheet: 64 pictures of 1024 x 1024."""
MOST_DIGITS = 15
"""Of a step in the name of a sheet."""
FORMATS = ("PNG",)
WIDEST = 1024
"""Pixels: wider sheets are reduced."""
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises on damaged PNG files."""

Shown = tuple[str, tuple[str, ...]]
"""A picture as a data URI, and the names of its rows."""


@dataclass
class Sheets:
    """The sheets in a folder; what was encoded once is kept, so that a page that renews itself costs little.

    Attributes:
        folder: of the run's samples.
    """

    folder: Path
    _known: dict[tuple[Path, int, int], Shown] = field(default_factory=dict)
    _before: dict[tuple[Path, int, int], Shown] = field(default_factory=dict)

    def pictures(self, most_bytes: int) -> Iterator[Picture]:
        """Sheets of all kinds, evenly over the training, as many as there is room for; the last ones always."""
        by_kind: dict[str, list[tuple[int, Path]]] = {}
        here = self.folder.resolve()
        for path in sorted(self.folder.glob("step-*-*.png")) if self.folder.is_dir() else []:
            step, _, kind = path.stem.removeprefix("step-").partition("-")
            if step.isascii() and step.isdigit() and len(step) <= MOST_DIGITS and _own(path, here):
                by_kind.setdefault(kind, []).append((int(step), path))
        self._before, self._known = self._known, {}
        for kind, paths in by_kind.items():
            yield from self._of_kind(kind, paths, most_bytes // len(by_kind))
        self._before = {}

    def _of_kind(self, kind: str, paths: list[tuple[int, Path]], share: int) -> Iterator[Picture]:
        while paths and (last := self._shown(paths[-1][1], share)) is None:
            paths.pop()
        if not paths or last is None:
            return
        count = max(1, min(len(paths), MOST_PICTURES, share // len(last[0])))
        chosen = sorted({round(i * (len(paths) - 1) / max(1, count - 1)) for i in range(count)} | {len(paths) - 1})
        room = share - len(last[0])
        for at in chosen[-count:]:
            number, path = paths[at]
            shown = last if at == len(paths) - 1 else self._shown(path, share // count)
            if shown is not None and (at == len(paths) - 1 or (room := room - len(shown[0])) >= 0):
                yield Picture(number, kind, *shown)

    def _shown(self, path: Path, most_bytes: int) -> Shown | None:
        """None: it cannot be read."""
        try:
            key = (path, path.stat().st_mtime_ns, most_bytes)
            if key not in self._known:  # what the last page no longer showed is forgotten
                self._known[key] = self._before.get(key) or _encoded(path, most_bytes)
            return self._known[key]
        except UNREADABLE:
            return None


def _own(path: Path, folder: Path) -> bool:
    """Whether a file is a file and lies in a folder itself: a run from elsewhere may hold links to what is private."""
    try:
        return path.is_file() and path.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # a link in a circle
        return False


def _encoded(path: Path, most_bytes: int) -> Shown:
    """WebP, reduced until it fits."""
    with Image.open(path, formats=FORMATS) as opened:
        if opened.width * opened.height > MOST_PIXELS:
            raise ValueError(f"{path}: {opened.width} x {opened.height} pixels")
        picture = opened.convert("RGB")
        rows = str(opened.info.get(ROWS_KEYWORD, ""))
    width = min(picture.width, WIDEST)
    while True:
        height = max(1, picture.height * width // picture.width)
        reduced = picture if width == picture.width else picture.resize((width, height), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        reduced.save(file, "WEBP", quality=85, method=4)
        if len(file.getvalue()) * 4 // 3 <= most_bytes or width <= 64:
            uri = "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
            return uri, tuple(rows.split("\n")) if rows else ()
        width //= 2
