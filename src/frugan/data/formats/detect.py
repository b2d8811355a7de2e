"""Tell what a path holds, and list it; pictures in a folder (class folders, a flat one, or an unpacked NVlabs set)."""

import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from frugan.data.formats.archives import cifar_layout, open_cifar, open_hdf5, open_zip
from frugan.data.formats.decoding import AS_THEY_ARE, Reading, read_picture, read_size
from frugan.data.formats.picture_set import open_prepared
from frugan.data.formats.set_file import is_prepared, refuse_half_prepared
from frugan.data.formats.shards import holds_shards, open_shards
from frugan.data.formats.source import (
    CURES,
    MOST_JSON_BYTES,
    SUFFIXES,
    Classes,
    Source,
    classes_from_folders,
    classes_from_json,
    ignored_line,
    in_class_order,
    in_place_of_pictures,
    is_hidden,
    is_picture_name,
    kind_of_file,
    without_pictures,
)
from frugan.errors import BadInput
from frugan.wording import shown

# Pictures in a folder.


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
                    if _leads_to_folder(entry):
                        waiting.append(f"{below}{entry.name}/")
                    elif _is_file_or_broken(entry):
                        yield below + entry.name
        except OSError as error:
            raise BadInput(f"cannot list {shown(str(folder / below))}: {error.strerror}. Check the rights.") from error


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _is_file_or_broken(entry: os.DirEntry[str]) -> bool:
    """A broken link is reported as a bad picture; one to a pipe or a device is passed over, which would wait for it."""
    try:
        return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))
    except OSError:  # a link that leads to itself
        return True


def open_folder(path: Path, reading: Reading = AS_THEY_ARE) -> Source:
    """List the pictures below a folder; nothing is decoded.

    With `dataset.json` in it the labels are that file's; else the first folder level is the class.

    Raises:
        BadInput: no pictures, loose pictures beside class folders, or a wrong `dataset.json`.
    """
    files = list(visible_files(path))
    names = in_class_order([name for name in files if is_picture_name(name)])
    aside = [name for name in files if not is_picture_name(name) and name != "dataset.json"]
    others = Counter(_kind(path / name) for name in aside)
    if not names:
        refuse_half_prepared(path)
        raise BadInput(
            f"no pictures in {shown(str(path))}: expected {' '.join(sorted(SUFFIXES))} in it or in class folders. "
            + in_place_of_pictures(others)
        )
    listing = path / "dataset.json"
    if listing.is_file():
        classes = classes_from_json(_start_of(listing), names, shown(str(listing)))
    else:
        classes = classes_from_folders(names, shown(str(path)), _folders_in(path, aside))

    def size(index: int) -> tuple[int, int]:
        return read_size(path / names[index])

    def picture(index: int) -> Image.Image:
        return read_picture(path / names[index], reading)

    return Source("picture folder", path, names, classes, size, picture, lines=ignored_line(others))


def _kind(path: Path) -> str:
    """Return the kind of a file that is no picture by its name; or that this is all that speaks for the kind."""
    kind = kind_of_file(path.name)
    if kind not in CURES:
        return kind
    try:
        with path.open("rb") as file:
            return kind if file.read(8)[4:] == b"ftyp" else f"{kind} by name alone"
    except OSError:
        return kind


def _folders_in(path: Path, aside: list[str]) -> dict[str, str]:
    with os.scandir(path) as entries:
        folders = [entry.name for entry in entries if _leads_to_folder(entry) and not is_hidden(entry.name)]
    found = without_pictures(aside, folders)
    by_place: dict[str, str] = {}
    for folder in sorted(folders, key=lambda name: (path / name).is_symlink()):
        there = by_place.setdefault(os.path.realpath(path / folder), folder)
        if there != folder:  # only one of them is looked into
            found[folder] = found[there] = f"{shown(folder)} is a link to {shown(there)}, which is there already"
    return found


def _start_of(listing: Path) -> bytes:
    with listing.open("rb") as file:
        return file.read(MOST_JSON_BYTES + 1)


# Whatever a path holds.


def open_prepared_source(path: Path) -> Source:
    """List the pictures of a prepared set.

    Raises:
        BadInput: as `open_prepared`.
    """
    prepared = open_prepared(path)
    side = prepared.resolution
    names = [f"pictures[{index}]" for index in range(len(prepared))]
    lines = (f"classes as in the prepared set, which has {side} x {side} pixels",)

    def size(index: int) -> tuple[int, int]:
        return side, side

    def picture(index: int) -> Image.Image:
        return Image.fromarray(np.ascontiguousarray(prepared[index].transpose(1, 2, 0)))

    classes = Classes(prepared.labels, prepared.class_names, prepared.labelled, lines)
    return Source("prepared set", path, names, classes, size, picture)


HDF5_START = b"\x89HDF\r\n\x1a\n"
ZIP_START = b"PK\x03\x04"
TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
KINDS = (
    "a folder of class folders or of pictures, a zip of pictures, an HDF5 file of BigGAN-PyTorch, WebDataset's tar "
    "files or a folder of them, a folder of CIFAR's binary version, or a prepared set"
)


def is_hdf5(path: Path) -> bool:
    """Tell whether a path is an HDF5 file, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(HDF5_START)) == HDF5_START
    except OSError:  # a folder; or whoever opens it says why it cannot be read
        return False


def open_source(path: Path, reading: Reading = AS_THEY_ARE) -> Source:
    """List the pictures at `path`, whatever format they have, by what is there and not by its suffix.

    Args:
        path: see `KINDS`.
        reading: what files leave open.

    Raises:
        BadInput: nothing is there, nothing known is there, or what is there is wrong.
    """
    where = shown(str(path))
    if path.is_dir():
        return _open_folder(path, reading)
    if path.exists() and not path.is_file():
        raise BadInput(f"{where} is neither a file nor a folder; expected {KINDS}.")
    if not path.is_file():
        raise BadInput(f"{where} does not exist (looked from {shown(str(Path.cwd()))}); expected {KINDS}.")
    try:
        with path.open("rb") as file:
            start = file.read(len(HDF5_START))
    except OSError as error:
        raise BadInput(f"{where} cannot be read: {error.strerror}. Check the rights.") from error
    if start == HDF5_START:
        return open_hdf5(path)
    if path.name.lower().endswith((".npy", ".npz")):
        raise BadInput(
            f"{where} holds NumPy's arrays; open them in Python: frugan.PictureSet.from_arrays "
            "(docs/adding-a-data-set.md)"
        )
    if zipfile.is_zipfile(path):
        return open_zip(path, reading)
    if start.startswith(ZIP_START) or path.name.lower().endswith(".zip"):
        raise BadInput(f"{where} is cut short or no zip: its list of contents is missing. Download or pack it again.")
    if path.name.lower().endswith(".tar"):
        return open_shards(path, reading)
    if path.name.lower().endswith(TAR_SUFFIXES):
        raise BadInput(f"{where} is a compressed tar; unpack it and give the folder, or the .tar.")
    if is_picture_name(path.name):
        raise BadInput(f"{where} is one picture; give the folder that holds the pictures.")
    raise BadInput(f"{where} is none of the known formats; expected {KINDS}.")


def _open_folder(path: Path, reading: Reading) -> Source:
    if is_prepared(path):
        return open_prepared_source(path)
    if holds_shards(path):
        return open_shards(path, reading)
    layout = cifar_layout(path)
    return open_folder(path, reading) if layout is None else open_cifar(path, layout)
