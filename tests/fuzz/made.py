"""Makes one hostile file, or folder, for a reader."""

from collections.abc import Callable
from pathlib import Path

Make = Callable[[Path], Path]
"""Writes what is to be read into an empty folder, and returns its path."""


def file(name: str, content: bytes | Callable[[], bytes]) -> Make:
    """A file of that name; what takes long to make is made when it is wanted."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content() if callable(content) else content)
        return folder / name

    return make
