"""Pictures in a zip: NVlabs' data sets (`dataset.json`), or any zip of class folders. Untrusted."""

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, cast

from PIL import Image

from frugan.data.background import WHITE, Background
from frugan.data.class_folders import classes_from_folders, in_class_order
from frugan.data.dataset_json import MOST_JSON_BYTES, classes_from_json
from frugan.data.decoding import read_picture, read_size
from frugan.data.picture_folder import is_hidden, is_picture_name
from frugan.data.source import Source, Unreadable, closed_on_failure, translated
from frugan.data.wording import shown
from frugan.errors import BadInput

LISTING = "dataset.json"
MOST_FILE_BYTES = 256 << 20  # a stored 8192 x 8192 RGB picture takes 192 MiB
ENCRYPTED = 0x1

COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
BROKEN = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError)  # what zipfile raises


def open_zip(path: Path, background: Background = WHITE) -> Source:
    """List the pictures of a zip; nothing is unpacked to disk, one picture at a time is held in memory.

    A folder that holds everything in the zip is not a class: names are taken below it. With `dataset.json` there the
    labels are that file's; else the first folder level is the class.

    Raises:
        BadInput: not a zip, encrypted, no pictures, loose pictures beside class folders, or a wrong `dataset.json`.
    """
    where = shown(str(path))
    with translated(BROKEN, lambda e: BadInput(f"{where} cannot be opened as a zip ({e}). Download or pack it again.")):
        archive = zipfile.ZipFile(path)
    with closed_on_failure(archive.close):
        return _list(archive, path, where, background)


def _list(archive: zipfile.ZipFile, path: Path, where: str, background: Background) -> Source:
    members = _visible_files(archive, where)
    pictures = [name for name in members if is_picture_name(name)]
    root = _common_folders([*pictures, *(name for name in members if name.rpartition("/")[2] == LISTING)])
    names = in_class_order([name.removeprefix(root) for name in pictures])
    if not names:
        raise BadInput(f"{where} holds no pictures; expected PNG or JPEG files. Check that it is the right zip.")
    encrypted = sum(bool(members[root + name].flag_bits & ENCRYPTED) for name in names)
    if encrypted:
        raise BadInput(f"{where}: {encrypted:,} pictures are encrypted; unpack the zip and give the folder.")
    listing = members.get(f"{root}{LISTING}")
    if listing is None:
        classes = classes_from_folders(names, where, _folders(archive, root))
    else:
        place = f"{LISTING} of {where}"
        with translated((Unreadable,), lambda e: BadInput(f"{place} cannot be read: {e}. Make the zip again.")):
            text = _content(archive, listing, MOST_JSON_BYTES)
        classes = classes_from_json(text, names, place)

    def size(index: int) -> tuple[int, int]:
        with _opened(archive, members[root + names[index]], MOST_FILE_BYTES) as file:
            return read_size(file)

    def picture(index: int) -> Image.Image:
        return read_picture(io.BytesIO(_content(archive, members[root + names[index]], MOST_FILE_BYTES)), background)

    lines = (f"names are taken below the folder {shown(root)!r}, which holds the whole zip",) if root else ()
    return Source("zip of pictures", path, names, classes, size, picture, archive.close, lines)


def _visible_files(archive: zipfile.ZipFile, where: str) -> dict[str, zipfile.ZipInfo]:
    """Return the files by their names.

    Raises:
        BadInput: a name leads out of the zip: nothing is unpacked here, but no honest program packs such.
    """
    files: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name, parts = member.filename, member.filename.split("/")
        if name.startswith("/") or ".." in parts:
            raise BadInput(f"{where} holds the name {shown(name)!r}, which leads out of the zip. Pack it again.")
        if parts[-1] and not any(map(is_hidden, parts)):  # a folder's name ends in "/"
            files[name] = member
    return files


def _folders(archive: zipfile.ZipFile, root: str) -> set[str]:
    """Return the folders in `root`, also those without pictures: they are classes too."""
    below = [name.removeprefix(root) for name in archive.namelist() if name.startswith(root)]
    folders = {name.partition("/")[0] for name in below if "/" in name}
    return {folder for folder in folders if not is_hidden(folder)}


@contextmanager
def _opened(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most_bytes: int) -> Iterator[BinaryIO]:
    """Open one member for reading; zipfile unpacks no more of it than its declared size, which is checked here."""
    if member.file_size > most_bytes:
        raise Unreadable(f"{member.file_size:,} bytes unpacked, more than the {most_bytes:,} that are taken")
    if member.compress_type not in COMPRESSIONS:
        raise Unreadable(f"packed with method {member.compress_type}; only stored and deflated members are read")
    with translated(BROKEN, lambda e: Unreadable(f"damaged in the zip: {e}")), archive.open(member) as file:
        yield cast(BinaryIO, file)


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most_bytes: int) -> bytes:
    with _opened(archive, member, most_bytes) as file:
        return file.read()


def _common_folders(names: list[str]) -> str:
    """Return the folders, with a closing "/", that hold every one of `names`."""
    folders = [name.split("/")[:-1] for name in names] or [[]]
    pairs = zip(min(folders), max(folders), strict=False)  # what these two share, all share
    return "".join(f"{folder}/" for folder, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
