"""Pictures in tar files: WebDataset's shards, one or a folder of them. Untrusted.

Nothing is unpacked: the headers are read once, and pictures are read at their places.
"""

import io
import json
import os
import tarfile
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
from PIL import Image

from frugan.data.formats.decoding import AS_THEY_ARE, Reading, read_picture, read_size
from frugan.data.formats.source import (
    SUFFIXES,
    Classes,
    Source,
    Unreadable,
    common_folders,
    ignored_line,
    in_place_of_pictures,
    is_hidden,
    numbered,
    plain_name,
    translated,
    unlabelled,
)
from frugan.errors import BadInput
from frugan.wording import MIB, first_names, shown

NAMES_FILE = "class_names.json"
"""Beside the shards: the names of the classes, by number. WebDataset itself has no place for them."""
MOST_FILE_BYTES = 256 * MIB
MOST_MEMBERS = 100_000_000
MOST_LABEL_BYTES = 32
MOST_NAMES_BYTES = 64 * MIB
MOST_OPEN = 256
"""Most files open at a time: systems allow a process about a thousand."""
BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, UnicodeError)  # what tarfile raises


@dataclass(frozen=True)
class _Place:
    """Where a picture's bytes are."""

    shard: int
    offset: int
    size: int


def holds_shards(folder: Path) -> bool:
    """Return whether a folder holds tar files, and no pictures or folders beside them."""
    with os.scandir(folder) as entries:
        names = [(entry.name, _is_file(entry)) for entry in entries if not is_hidden(entry.name)]
    tars = [name for name, is_file in names if is_file and name.endswith(".tar")]
    others = [name for name, is_file in names if not is_file or Path(name).suffix.lower() in SUFFIXES]
    return bool(tars) and not others


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False


def open_shards(path: Path, reading: Reading = AS_THEY_ARE) -> Source:
    """List the pictures of a tar file, or of all tar files of a folder, in the order of their names.

    A sample's label is the whole number in its `.cls`; either all samples have one or none.

    Raises:
        BadInput: not a tar, cut short, no pictures, labels of some samples only, or labels that are no class numbers.
    """
    where = shown(str(path))
    inside = path.iterdir() if path.is_dir() else ()
    files = sorted(file for file in inside if file.name.endswith(".tar") and not is_hidden(file.name)) or [path]
    kind = f"WebDataset shards ({len(files):,} tar {'file' if len(files) == 1 else 'files'})"
    names: list[str] = []
    places: list[_Place] = []
    labels: list[int | None] = []
    others = Counter[str]()
    for number, file in enumerate(files):
        for sample in _samples(file, shown(str(file)), others):
            names.append(f"{file.name}:{sample.name}")
            places.append(_Place(number, sample.offset, sample.size))
            labels.append(sample.label)
    if not names:
        raise BadInput(
            f"no pictures in {where}: expected samples such as 000.jpg and 000.cls (WebDataset's form). "
            + in_place_of_pictures(others)
        )
    classes = _named(_classes(labels, names, where), path, where)
    reader = _Reader(files)

    def content(index: int) -> io.BytesIO:
        return io.BytesIO(reader.read(places[index]))

    def size(index: int) -> tuple[int, int]:
        return read_size(content(index))

    def picture(index: int) -> Image.Image:
        return read_picture(content(index), reading)

    return Source(kind, path, names, classes, size, picture, reader.close, ignored_line(others))


@dataclass
class _Sample:
    """A picture with its label and other members of the same name."""

    name: str
    offset: int
    size: int
    label: int | None = None


def _samples(file: Path, where: str, others: Counter[str]) -> Iterator[_Sample]:
    """The samples of a tar that have a picture, in order; other files of a sample are passed over.

    Args:
        others: is added to, by kind.
    """
    again = "Download or make it again; unpack .tar.gz first."
    with (
        translated(BROKEN, lambda e: BadInput(f"{where} cannot be read as an uncompressed tar ({e}). {again}")),
        tarfile.open(file, "r:") as archive,  # uncompressed: a picture is read at its place
    ):
        waiting: _Sample | None = None
        of = ""  # the key of the one that waits
        labels: dict[str, int] = {}
        for listed, member in enumerate(archive):
            if listed >= MOST_MEMBERS:
                raise BadInput(f"{where} claims more than {MOST_MEMBERS:,} files. It is damaged: make it again.")
            key, _, kind = _split(member.name)
            if waiting is not None and key != of:
                yield waiting
                waiting, labels = None, {}
            if not member.isreg() or any(map(is_hidden, plain_name(member.name).split("/"))):
                continue  # folders, links, which lead anywhere, and what is no data
            if member.issparse():  # its bytes do not lie in one piece
                raise BadInput(
                    f"{where}: {shown(member.name)} is stored with holes (tar --sparse), and pictures are read at "
                    "their places; pack it again without --sparse (-S), or unpack it and give the folder"
                )
            if kind == "cls":
                labels = {key: _label(archive, member, where)}
                if waiting is not None:
                    waiting.label = labels[key]
            elif f".{kind}" in SUFFIXES and waiting is None:
                waiting, of = _Sample(f"{key}.{kind}", member.offset_data, member.size, labels.get(key)), key
            else:
                others[f".{kind}" if kind else "no suffix"] += 1
        if not _is_ended(file, archive.offset):
            raise BadInput(f"{where} is cut short: the mark at its end is missing. Download or make it again.")
        if waiting is not None:
            yield waiting


def _is_ended(file: Path, offset: int) -> bool:
    """Return whether a block of zeros follows the last member: without it the file may be cut."""
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)


def _split(name: str) -> tuple[str, str, str]:
    """ "a/000.seg.png" -> key "a/000", and the kind in lower case: what follows the first dot of the file's name."""
    folder, slash, file = name.rpartition("/")
    key, dot, kind = file.partition(".")
    return f"{folder}{slash}{key}", dot, kind.lower()


def _label(archive: tarfile.TarFile, member: tarfile.TarInfo, where: str) -> int:
    opened = archive.extractfile(member) if member.size <= MOST_LABEL_BYTES else None
    text = opened.read() if opened is not None else b""
    if not text.strip().isdigit() or int(text) >= 1 << 62:  # beyond all numbers that arrays hold
        raise BadInput(
            f"{where}: {shown(member.name)} holds {shown(text[:20].decode('utf-8', 'replace'))!r}; expected a class "
            "number such as 3"
        )
    return int(text)


def _classes(labels: Sequence[int | None], names: Sequence[str], where: str) -> Classes:
    without = [name for name, label in zip(names, labels, strict=True) if label is None]
    if len(without) == len(labels):
        inside = [plain_name(name.partition(":")[2]) for name in names]
        root = common_folders(inside)
        folders = sorted(
            {name.removeprefix(root).partition("/")[0] for name in inside if "/" in name.removeprefix(root)}
        )
        line = f"unlabelled: no sample of {where} has a .cls file"
        if len(folders) > 1:
            line += (
                f"; folders in a tar are no classes: if {first_names(folders, 3)} are the classes, unpack it and give "
                f"the folder {shown(root) or 'that holds them'}"
            )
        return unlabelled(len(labels), line)
    if without:
        raise BadInput(
            f"{where}: {len(without):,} of {len(labels):,} pictures have no .cls file beside them, the first is "
            f"{shown(without[0])}. Give all of them one, or none."
        )
    return numbered(np.array([label for label in labels if label is not None], np.int64), f".cls files of {where}")


def _named(classes: Classes, path: Path, where: str) -> Classes:
    """With the names that stand beside the shards, if they do.

    Raises:
        BadInput: they are no names, or fewer than there are classes.
    """
    file = path / NAMES_FILE
    if not classes.labelled or not path.is_dir() or not file.is_file():
        return classes
    try:
        if file.stat().st_size > MOST_NAMES_BYTES:
            raise ValueError(f"larger than {MOST_NAMES_BYTES:,} bytes")
        names = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{shown(str(file))} cannot be read: {error}. Expected a list of class names.") from error
    known = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not known or len(set(names)) != len(names) or len(names) < len(classes.names):
        raise BadInput(
            f"{shown(str(file))}: expected a list of {len(classes.names):,} or more different class names, by number"
        )
    return Classes(classes.labels, tuple(names), True, (f"{len(names):,} classes by {NAMES_FILE} of {where}",))


class _Reader:
    """Reads parts of files, from several threads; those that were read last stay open."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._opened: OrderedDict[int, io.BufferedReader] = OrderedDict()
        self._lock = Lock()

    def read(self, place: _Place) -> bytes:
        """The bytes at a place.

        Raises:
            Unreadable: they are not there, or far too many.
        """
        if place.size > MOST_FILE_BYTES:
            raise Unreadable(f"{place.size:,} bytes, more than the {MOST_FILE_BYTES:,} that are taken")
        with translated((OSError, ValueError), lambda e: Unreadable(str(e))), self._lock:
            file = self._file(place.shard)
            file.seek(place.offset)
            content = file.read(place.size)
        if len(content) < place.size:
            raise Unreadable("cut short in the tar")
        return content

    def _file(self, number: int) -> io.BufferedReader:
        file = self._opened.get(number)
        if file is None:
            file = self._opened[number] = self._files[number].open("rb")
            if len(self._opened) > MOST_OPEN:
                self._opened.popitem(last=False)[1].close()
        self._opened.move_to_end(number)
        return file

    def close(self) -> None:
        """Close all open files."""
        with self._lock:
            for file in self._opened.values():
                file.close()
            self._opened.clear()
