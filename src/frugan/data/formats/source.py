"""Interface of all picture formats, and how the class of each picture is found."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

from frugan.errors import BadInput
from frugan.wording import MIB, count, first_names, shown

try:
    from pillow_heif import register_heif_opener
except ImportError:  # not installed, or not for this system: HEIC is named with its cure
    READS_HEIF = False
else:
    register_heif_opener()
    READS_HEIF = True

# Only these decoders run on files from elsewhere (Pillow's EPS decoder, for one, starts a program).
FORMATS = {
    **{".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".webp": "WEBP", ".gif": "GIF"},
    **{".tif": "TIFF", ".tiff": "TIFF"},
    **({".jp2": "JPEG2000", ".j2k": "JPEG2000"} if features.check_codec("jpg_2000") else {}),
    **({".avif": "AVIF"} if "avif" in features.modules and features.check_module("avif") else {}),
    **(dict.fromkeys((".heic", ".heif", ".hif"), "HEIF") if READS_HEIF else {}),
}
"""Suffix -> the format in Pillow's words, as far as this Pillow reads it."""
SUFFIXES = frozenset(FORMATS)
HEIF_CURE = "pip install 'frugan[heic]' reads HEIC"
AVIF_CURE = "Pillow 11.3 or newer reads AVIF (pip install -U pillow)"
CURES = {**dict.fromkeys((".heic", ".heif", ".hif"), HEIF_CURE), ".avif": AVIF_CURE}
"""Suffix of pictures that may not be readable here -> what reads them."""
NOT_DATA = frozenset(
    {
        *("Thumbs.db", "desktop.ini", "$RECYCLE.BIN", "System Volume Information", "RECYCLER"),  # Windows
        *("__MACOSX", "lost+found", "__pycache__"),  # macOS, Linux, Python
        *("@eaDir", "#recycle", "#snapshot", "@Recycle", "@Recently-Snapshot"),  # Synology, QNAP
    }
)
"""Names that systems and programs give to what is no data, in folders, zips and tars alike."""
MOST_CLASSES = 1_000_000  # ImageNet-21k has 21,841: a larger number is no class


def ignored_line(others: Counter[str]) -> tuple[str, ...]:
    """Describe the files that are no pictures, by kind; no line if there are none."""
    return (f"{count(others.total(), 'file')} of other kinds ignored: {other_kinds(others)}",) if others else ()


def kind_of_file(name: str) -> str:
    return os.path.splitext(name)[1].lower() or "no suffix"


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder is the system's own or hidden: neither looked into nor counted."""
    return name.startswith(".") or name in NOT_DATA


def plain_name(name: str) -> str:
    """Return a name inside an archive or a listing with "/" between folders, and without "." among them."""
    return "/".join(part for part in name.replace("\\", "/").split("/") if part != ".")


def common_folders(names: Sequence[str]) -> str:
    """Return the folders, with a closing "/", that hold every one of `names`."""
    folders = [name.split("/")[:-1] for name in names] or [[]]
    pairs = zip(min(folders), max(folders), strict=False)  # what these two share, all share
    return "".join(f"{folder}/" for folder, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def is_picture_name(name: str) -> bool:
    """Tell by its suffix, in any case, whether a file is taken for a picture."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


@dataclass(frozen=True, eq=False)
class Classes:
    """Labels of N pictures."""

    labels: NDArray[np.int64]  # class of each picture, int64 [N]; zeros where unlabelled
    names: tuple[str, ...]  # name of each class; classes without pictures keep their number
    labelled: bool  # whether the classes mean anything
    lines: tuple[str, ...] = ()  # how they were found, one line each


def unlabelled(number: int, line: str, name: str = "pictures") -> Classes:
    """Return the one class of `number` pictures without labels; `line` says why."""
    return Classes(np.zeros(number, np.int64), (name,), False, (line,))


def numbered(labels: NDArray[np.int64], where: str) -> Classes:
    """Return the classes "0", "1", … of labels int64 [N] that come without names.

    Raises:
        BadInput: a label is negative or absurdly large; `where` names the place.
    """
    lowest, highest = (int(labels.min()), int(labels.max())) if labels.size else (0, 0)
    if lowest < 0 or highest >= MOST_CLASSES:
        wrong = lowest if lowest < 0 else highest
        raise BadInput(
            f"{where}: {wrong} is not a class number; expected whole numbers from 0 to {MOST_CLASSES - 1:,}. "
            "Number the classes 0, 1, 2 … or give a folder of class folders."
        )
    names = tuple(str(number) for number in range(highest + 1))
    line = f"{len(names):,} numbered classes from {where}"
    if without := len(names) - len(np.unique(labels)):
        line += f"; {without:,} of them without pictures, which nothing can be learned of"
    return Classes(labels, names, True, (line,))


_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(pipe):", re.IGNORECASE)


class Unreadable(Exception):
    """One picture cannot be decoded; the text says why. It is left out and reported, not fatal by itself."""


@contextmanager
def translated(broken: tuple[type[Exception], ...], into: Callable[[Exception], Exception]) -> Iterator[None]:
    """Raise our own error in place of what a library raises on damaged files.

    Args:
        broken: what it raises. BadInput goes through as it is, although it is a ValueError.
        into: makes the error.
    """
    try:
        yield
    except BadInput:
        raise
    except broken as error:
        raise into(error) from error


@contextmanager
def closed_on_failure(close: Callable[[], object]) -> Iterator[None]:
    """Close a file that is being opened when an exception leaves the block."""
    try:
        yield
    except BaseException:
        close()
        raise


def nothing_to_close() -> None:
    """Stand in for `close` where a source keeps no file open."""


def no_places() -> None:
    """Stand in for `places` where pictures are packed, or lie in files of their own."""


@dataclass(frozen=True, eq=False)
class Source:
    """A listed but unread collection of N pictures. Usable from several threads, and in a `with` statement."""

    kind: str  # the format, in words
    path: Path  # where it is
    names: Sequence[str]  # name of each picture inside `path`
    classes: Classes  # class of each picture
    # index to (width, height) in pixels, without decoding. Raises Unreadable.
    size: Callable[[int], tuple[int, int]]
    # index to the upright RGB picture. Raises Unreadable.
    picture: Callable[[int], Image.Image]
    close: Callable[[], None] = nothing_to_close  # closes what is open
    lines: tuple[str, ...] = ()  # automatic choices made while listing, one line each
    # at which byte of the file `path` each picture begins, as uint8 [3, H, W] and no more, int64 [N]; None: nowhere
    places: Callable[[], NDArray[np.int64] | None] = no_places

    def __len__(self) -> int:
        return len(self.names)

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def local_path(path: str | Path) -> Path:
    """The path that data are read from.

    Raises:
        BadInput: nothing, or an address; its text, which may hold a password or a signature, is not repeated.
    """
    if not str(path):
        raise BadInput("data: an empty path, perhaps of a variable of the shell that is not set; give the folder")
    address = _ADDRESS.match(path) if isinstance(path, str) else None
    if address is not None:
        raise BadInput(
            f"data by {address[0]}...: data are read from a disk of this machine; fetch them first (of an object "
            "store, `aws s3 sync s3://BUCKET/SHARDS FOLDER` for instance), and give their folder"
        )
    return Path(path)


def in_class_order(names: list[str]) -> list[str]:
    """Return names ("class/…/file") sorted part by part, so that classes and pictures come in the same order."""
    return sorted(names, key=lambda name: name.split("/"))


NO_FOLDERS: Mapping[str, str] = MappingProxyType({})


def other_kinds(others: Counter[str]) -> str:
    """Return the commonest kinds of files that are no pictures, with their numbers, and what reads some of them."""
    named = ", ".join(f"{shown(kind)} {number:,}" for kind, number in others.most_common(5))
    cures = dict.fromkeys(CURES[kind] for kind in others if kind in CURES)
    return "; ".join((named, *cures))


def in_place_of_pictures(others: Counter[str]) -> str:
    """Return what is there where no picture is, to append to a message: files of other kinds, or nothing."""
    return f"it holds other files ({other_kinds(others)}). Convert them first." if others else "Check the path."


def without_pictures(others: Iterable[str], folders: Iterable[str]) -> dict[str, str]:
    """Return what first folders hold in place of pictures, in words; empty where nothing is.

    Args:
        others: names of files that are no pictures, with "/" between folders.
        folders: all first folders.
    """
    kinds: dict[str, Counter[str]] = {folder: Counter() for folder in folders}
    for name in others:
        first, slash, rest = name.partition("/")
        if slash and first in kinds:
            kinds[first][kind_of_file(rest)] += 1
    return {
        folder: f"{count(kind.total(), 'file')} of other kinds: {other_kinds(kind)}; convert them" if kind else ""
        for folder, kind in kinds.items()
    }


def classes_from_folders(names: Sequence[str], where: str, folders: Mapping[str, str] = NO_FOLDERS) -> Classes:
    """Return the classes of N pictures by the first folder of their names.

    Classes are in the order of Python's `sorted` (torchvision's ImageFolder numbers them the same way: "10" comes
    before "9"). No folder, or only one, means one class, unlabelled. Where the first level is nothing but an index by
    initials (Places-365: "a/airfield/1.jpg", "a/apartment_building/outdoor/1.jpg"), the class is all of the folders:
    "a/airfield".

    Args:
        names: N names with "/" between folders.
        where: what to call the place in errors.
        folders: all first folders there are, those without pictures too -> what they hold instead, in words or empty.

    Raises:
        BadInput: loose pictures beside class folders, or a class folder without pictures.
    """
    if _by_initials(names):
        return _whole_folders(names)
    first = [name.partition("/")[0] if "/" in name else "" for name in names]
    class_names = tuple(sorted(set(first) - {""}))
    if not class_names:
        return unlabelled(len(names), "no class folders: all pictures form one class, unlabelled")
    _refuse_loose(names, class_names, where)
    _refuse_empty({name: folders[name] for name in sorted(set(folders) - set(class_names))}, where)
    numbers = {name: number for number, name in enumerate(class_names)}
    line = f"{count(len(class_names), 'class')} from the first folder level: {first_names(class_names)}"
    if len(class_names) == 1:
        line = f"all pictures lie in the one folder {shown(class_names[0])!r}: one class, unlabelled"
    labels = np.array([numbers[folder] for folder in first], np.int64)
    return Classes(labels, class_names, len(class_names) > 1, (line, *_deeper(names)))


def _refuse_loose(names: Sequence[str], class_names: Sequence[str], where: str) -> None:
    """Refuse loose pictures beside class folders."""
    loose = [name for name in names if "/" not in name]
    if loose:
        raise BadInput(
            f"{where} holds both {count(len(loose), 'loose picture')} ({first_names(loose, 3)}) and class folders "
            f"({first_names(class_names, 3)}). Expected one or the other: move the loose pictures into a class folder, "
            "or all pictures into one folder."
        )


def _refuse_empty(folders: Mapping[str, str], where: str) -> None:
    """Refuse class folders without pictures, by name -> what they hold instead."""
    if not folders:
        return
    have, them = ("this class folder has", "it") if len(folders) == 1 else ("these class folders have", "them")
    named = first_names([f"{name} ({holds})" if holds else name for name, holds in folders.items()])
    raise BadInput(f"{where}: {have} no pictures: {named}. Put pictures there, or remove {them}.")


def _by_initials(names: Sequence[str]) -> bool:
    """Return whether every picture's folder lies below one named by its initial."""
    parts = [name.split("/") for name in names]
    return bool(parts) and all(len(p) > 2 and len(p[0]) == 1 and p[1][:1].lower() == p[0].lower() for p in parts)


def _whole_folders(names: Sequence[str]) -> Classes:
    folders = [name.rpartition("/")[0] for name in names]
    class_names = tuple(in_class_order(list(set(folders))))
    numbers = {name: number for number, name in enumerate(class_names)}
    line = (
        f"{count(len(class_names), 'class')} from the folders that hold the pictures, as the first level is their "
        f"initials: {first_names(class_names)}"
    )
    labels = np.array([numbers[folder] for folder in folders], np.int64)
    return Classes(labels, class_names, len(class_names) > 1, (line,))


def _deeper(names: Sequence[str]) -> tuple[str, ...]:
    """Say it when pictures lie deeper: a wrong level makes every picture one class, and nobody notices."""
    deeper = next((name for name in names if name.count("/") > 1), None)
    if deeper is None:
        return ()
    first = deeper.partition("/")[0]
    return (
        f"pictures lie deeper than the class folders ({shown(deeper)}); they are used, and the deeper folders are no "
        f"classes. If those are the "
        f"classes, give the path of the folder {shown(first)!r}",
    )


MOST_JSON_BYTES = 512 * MIB  # ImageNet's 1.28 million labels take 50 MB
FORM = '{"labels": [["00000/img00000000.png", 3], …]} or {"labels": null}'


def classes_from_json(text: bytes, names: Sequence[str], where: str) -> Classes:
    """Return the classes of N pictures by the text of a `dataset.json`.

    Args:
        text: the file.
        names: N names of pictures, relative to the file, with "/" between folders.
        where: what to call the file in errors.

    Raises:
        BadInput: not such a file, labels that are not class numbers, or pictures without a label.
    """
    rows = _rows(text, where)
    if rows is None:
        return unlabelled(len(names), f"{where} gives no labels: one class, unlabelled")
    _refuse_mixed(rows, where)
    there = set(names)
    pairs = [_pair(row, there, where) for row in rows]
    known = dict(pairs)
    if twice := [name for name, label in pairs if known[name] != label]:
        raise BadInput(f"{where} gives several labels to {first_names(twice)}. Expected one class for each picture.")
    _refuse_other_names(known, names, where)
    return numbered(np.array([known[name] for name in names], np.int64), where)


def _refuse_other_names(known: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    """Refuse labels of pictures that are not there, and pictures without a label."""
    there = set(names)
    if lost := [name for name in known if name not in there]:
        raise BadInput(
            f"{where} names {count(len(known), 'picture')}, of which {len(lost):,} {'is' if len(lost) == 1 else 'are'} "
            f"not there: {first_names(lost)}. Add them, or take their labels out."
        )
    missing = [name for name in names if name not in known]
    if missing:
        raise BadInput(
            f"{where} has no label for {len(missing):,} of {len(names):,} pictures: {first_names(missing)}. "
            'Label every picture, or none ("labels": null).'
        )


def _rows(text: bytes, where: str) -> list[Any] | None:
    """Return the list of labels, of any type; None: there are none."""
    if len(text) > MOST_JSON_BYTES:
        raise BadInput(f"{where} is larger than {MOST_JSON_BYTES >> 20} MiB; expected {FORM}")
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is not JSON ({error}); expected {FORM}. Make the set again.") from error
    if not isinstance(content, dict) or not isinstance(content.get("labels"), list | None):
        raise BadInput(f"{where}: expected {FORM}")
    return content.get("labels")


def _pair(row: Any, there: Collection[str], where: str) -> tuple[str, int]:
    """Return the picture of `there` and its class."""
    if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str)):
        raise BadInput(f"{where}: expected {FORM}; found {shown(repr(row))[:80]} among the labels")
    name, label = row
    if isinstance(label, list):
        label = _of_one_hot(label, name, where)
    if isinstance(label, float):
        raise BadInput(
            f"{where}: {shown(name)} has the label {shown(repr(label))[:40]}; fractions cannot be used. "
            "Expected one class number per picture."
        )
    if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < MOST_CLASSES:
        raise BadInput(
            f"{where}: {shown(name)} has the label {shown(repr(label))[:40]}; expected a class number from 0 to "
            f"{MOST_CLASSES - 1:,}."
        )
    return (name if name in there else plain_name(name)), label


def _refuse_mixed(rows: list[Any], where: str) -> None:
    """Refuse vector labels of different lengths; plain numbers have none."""
    lengths = {
        len(row[1]) if isinstance(row[1], list) else None for row in rows if isinstance(row, list) and len(row) == 2
    }
    if len(lengths) > 1:
        kinds = sorted("a number" if length is None else f"a vector of {length}" for length in lengths)
        raise BadInput(f"{where}: the labels are not of one kind: {', '.join(kinds)}. Make all of them class numbers.")


def _of_one_hot(label: list[Any], name: str, where: str) -> int:
    """Return the class of a one-hot vector."""
    if sorted(label, key=repr) != [*([0] * (len(label) - 1)), 1] or any(isinstance(value, bool) for value in label):
        raise BadInput(
            f"{where}: {shown(name)} has the label {shown(repr(label))[:40]}; of vectors only those of zeros and a "
            "single 1 can be used. Expected one class number per picture."
        )
    return label.index(1)


MOST_LOST = 0.1
"""Share of the pictures that may be lost: more is a disk that fails, or a folder that was taken away."""


def refuse_many_lost(lost: Mapping[str, str], number: int) -> None:
    """Refuse to go on with what is left.

    Args:
        lost: picture -> why it cannot be read.
        number: of pictures there were.

    Raises:
        BadInput: more than MOST_LOST of them are lost, and more than one.
    """
    if len(lost) > max(1, MOST_LOST * number):
        raise BadInput(
            f"{count(len(lost), 'picture')} of {number:,} cannot be read or used; the last: {list(lost.values())[-1]} "
            "Is the disk still there? The run goes on from its last checkpoint once they are whole"
        )
