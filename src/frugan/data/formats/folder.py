"""Pictures in a folder: class folders, one flat folder, or an unpacked NVlabs set."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from frugan.data.decoding import WHITE, Background, read_picture, read_size
from frugan.data.formats.source import (
    MOST_JSON_BYTES,
    SUFFIXES,
    Source,
    classes_from_folders,
    classes_from_json,
    in_class_order,
    is_hidden,
    is_picture_name,
)
from frugan.errors import BadInput
from frugan.wording import count, shown


def visible_files(folder: Path) -> Iterator[str]:
    """Yield the files below `folder`, relative to it, "/" between folders, in no order. Links are followed, once.

    Raises:
        BadInput: a folder cannot be listed.
    """
    waiting, seen = [""], set()
    while waiting:
        below = waiting.pop()
        try:
            about = os.stat(folder / below)
            if (about.st_dev, about.st_ino) in seen:
                continue  # a link that leads back
            seen.add((about.st_dev, about.st_ino))
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    if is_hidden(entry.name):
                        continue
                    if entry.is_dir():
                        waiting.append(f"{below}{entry.name}/")
                    elif entry.is_file() or entry.is_symlink():  # a broken link is reported as a bad picture
                        yield below + entry.name
        except OSError as error:
            raise BadInput(f"cannot list {shown(str(folder / below))}: {error.strerror}. Check the rights.") from error


def open_folder(path: Path, background: Background = WHITE) -> Source:
    """List the pictures below a folder; nothing is decoded.

    With `dataset.json` in it the labels are that file's; else the first folder level is the class.

    Raises:
        BadInput: no pictures, loose pictures beside class folders, or a wrong `dataset.json`.
    """
    pictures, others = [], Counter[str]()
    for name in visible_files(path):
        if is_picture_name(name):
            pictures.append(name)
        elif name != "dataset.json":
            others[os.path.splitext(name)[1].lower() or "no suffix"] += 1
    names = in_class_order(pictures)
    aside = ", ".join(f"{shown(suffix)} {number:,}" for suffix, number in others.most_common(5))
    if not names:
        # Only now: processes that make face samples read this file too, and can do without pydantic.
        from frugan.data.set_file import refuse_half_prepared  # noqa: PLC0415

        refuse_half_prepared(path)
        raise BadInput(
            f"no pictures in {shown(str(path))}: expected {' '.join(sorted(SUFFIXES))} in it or in class folders"
            + (f"; it holds other files ({aside}). Convert them first." if aside else ". Check the path.")
        )
    listing = path / "dataset.json"
    if listing.is_file():
        classes = classes_from_json(_start_of(listing), names, shown(str(listing)))
    else:
        classes = classes_from_folders(names, shown(str(path)), _folders_in(path))
    lines = (f"{count(others.total(), 'file')} of other kinds ignored: {aside}",) if aside else ()

    def size(index: int) -> tuple[int, int]:
        return read_size(path / names[index])

    def picture(index: int) -> Image.Image:
        return read_picture(path / names[index], background)

    return Source("picture folder", path, names, classes, size, picture, lines=lines)


def _folders_in(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name)]


def _start_of(listing: Path) -> bytes:
    with listing.open("rb") as file:
        return file.read(MOST_JSON_BYTES + 1)
