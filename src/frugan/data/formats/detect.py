"""Tell what a path holds, and list it."""

import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from frugan.data.decoding import WHITE, Background
from frugan.data.formats.archives import cifar_layout, open_cifar, open_hdf5, open_zip
from frugan.data.formats.folder import open_folder
from frugan.data.formats.shards import holds_shards, open_shards
from frugan.data.formats.source import Classes, Source, is_picture_name
from frugan.data.picture_set import open_prepared
from frugan.data.set_file import is_prepared
from frugan.errors import BadInput
from frugan.wording import shown


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


def open_source(path: Path, background: Background = WHITE) -> Source:
    """List the pictures at `path`, whatever format they have, by what is there and not by its suffix.

    Args:
        path: see `KINDS`.
        background: what transparent pictures are laid on.

    Raises:
        BadInput: nothing is there, nothing known is there, or what is there is wrong.
    """
    where = shown(str(path))
    if path.is_dir():
        return _open_folder(path, background)
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
    if zipfile.is_zipfile(path):
        return open_zip(path, background)
    if start.startswith(ZIP_START) or path.name.lower().endswith(".zip"):
        raise BadInput(f"{where} is cut short or no zip: its list of contents is missing. Download or pack it again.")
    if path.name.lower().endswith(".tar"):
        return open_shards(path, background)
    if path.name.lower().endswith(TAR_SUFFIXES):
        raise BadInput(f"{where} is a compressed tar; unpack it and give the folder, or the .tar.")
    if is_picture_name(path.name):
        raise BadInput(f"{where} is one picture; give the folder that holds the pictures.")
    raise BadInput(f"{where} is none of the known formats; expected {KINDS}.")


def _open_folder(path: Path, background: Background) -> Source:
    if is_prepared(path):
        return open_prepared_source(path)
    if holds_shards(path):
        return open_shards(path, background)
    layout = cifar_layout(path)
    return open_folder(path, background) if layout is None else open_cifar(path, layout)
