"""Pictures in one file: NVlabs' zips, the HDF5 of BigGAN-PyTorch, and the binary versions of CIFAR. Untrusted."""

import io
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frugan.data.formats.decoding import AS_THEY_ARE, MOST_PIXELS, Reading, read_picture, read_size
from frugan.data.formats.source import (
    MOST_JSON_BYTES,
    Classes,
    Source,
    Unreadable,
    classes_from_folders,
    classes_from_json,
    closed_on_failure,
    common_folders,
    ignored_line,
    in_class_order,
    in_place_of_pictures,
    is_hidden,
    is_picture_name,
    kind_of_file,
    numbered,
    plain_name,
    translated,
    without_pictures,
)
from frugan.errors import BadInput, optional_module
from frugan.wording import MIB, shown

LISTING = "dataset.json"
MOST_FILE_BYTES = 256 * MIB  # a stored 8192 x 8192 RGB picture takes 192 MiB
ENCRYPTED = 0x1

COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
BROKEN = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError)  # what zipfile raises


def open_zip(path: Path, reading: Reading = AS_THEY_ARE) -> Source:
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
        return _list_zip(archive, path, where, reading)


def _list_zip(archive: zipfile.ZipFile, path: Path, where: str, reading: Reading) -> Source:
    code = _code_of_names(archive)
    everything = {_name(member, code): member for member in archive.infolist()}
    members = _visible_files(everything, where)
    pictures = [name for name in members if is_picture_name(name)]
    root = common_folders([*pictures, *(name for name in members if name.rpartition("/")[2] == LISTING)])
    names = in_class_order([name.removeprefix(root) for name in pictures])
    others = Counter(kind_of_file(name) for name in members.keys() - {*pictures, f"{root}{LISTING}"})
    if not names:
        raise BadInput(f"no pictures in {where}: expected PNG or JPEG files. {in_place_of_pictures(others)}")
    encrypted = sum(bool(members[root + name].flag_bits & ENCRYPTED) for name in names)
    if encrypted:
        raise BadInput(f"{where}: {encrypted:,} pictures are encrypted; unpack the zip and give the folder.")
    listing = members.get(f"{root}{LISTING}")
    if listing is None:
        aside = [name.removeprefix(root) for name in members if not is_picture_name(name)]
        classes = classes_from_folders(names, where, without_pictures(aside, _folders(everything, root)))
    else:
        place = f"{LISTING} of {where}"
        with translated((Unreadable,), lambda e: BadInput(f"{place} cannot be read: {e}. Make the zip again.")):
            text = _content(archive, listing, MOST_JSON_BYTES)
        classes = classes_from_json(text, names, place)

    def size(index: int) -> tuple[int, int]:
        with _opened(archive, members[root + names[index]], MOST_FILE_BYTES) as file:
            return read_size(file)

    def picture(index: int) -> Image.Image:
        return read_picture(io.BytesIO(_content(archive, members[root + names[index]], MOST_FILE_BYTES)), reading)

    lines = (*_lines_of_names(root, code), *ignored_line(others))
    return Source("zip of pictures", path, names, classes, size, picture, archive.close, lines)


def _lines_of_names(root: str, code: str) -> Iterator[str]:
    if root:
        yield f"names are taken below the folder {shown(root)!r}, which holds the whole zip"
    if code not in PLAIN_CODES:
        yield f"names in the zip are taken for {code}: it does not say what code they are in"


def _folders(everything: Iterable[str], root: str) -> set[str]:
    """Return the folders in `root`, also those without pictures: they are classes too."""
    below = [name.removeprefix(root) for name in everything if name.startswith(root)]
    folders = {name.partition("/")[0] for name in below if "/" in name}
    return {folder for folder in folders if not is_hidden(folder)}


def _visible_files(everything: Mapping[str, zipfile.ZipInfo], where: str) -> dict[str, zipfile.ZipInfo]:
    """Return the files by their names.

    Raises:
        BadInput: a name leads out of the zip: nothing is unpacked here, but no honest program packs such.
    """
    files: dict[str, zipfile.ZipInfo] = {}
    for name, member in everything.items():
        parts = name.split("/")
        if name.startswith("/") or ".." in parts:
            raise BadInput(f"{where} holds the name {shown(name)!r}, which leads out of the zip. Pack it again.")
        if parts[-1] and not any(map(is_hidden, parts)):  # a folder's name ends in "/"
            files[name] = member
    return files


UTF8_NAME = 0x800
UNDECLARED = "cp437"
"""Code in which zipfile reads names that do not say theirs."""
PLAIN_CODES = (UNDECLARED, "utf-8")


def _code_of_names(archive: zipfile.ZipFile) -> str:
    r"""Return the code of the names that do not say theirs: in Shift-JIS and GBK a byte of a letter may look like "\".

    UTF-8 is recognised by its form. Names that are Latin words in the zip's own code ("Hütte") are in that; else it is
    the likeliest of those in which all names can be read.
    """
    undeclared = [member.filename for member in archive.infolist() if not member.flag_bits & UTF8_NAME]
    raw = [name.encode(UNDECLARED) for name in undeclared]
    if _are_in("utf-8", raw):
        return "utf-8"
    is_latin = all(map(_is_latin, "".join(undeclared)))
    has_backslashes = any("\\" in name for name in undeclared)
    for code in ("shift_jis", "gbk"):
        if not _are_in(code, raw) or (is_latin and not has_backslashes):
            continue
        if not is_latin or not any(BESIDE_LATIN.search(name.decode(code)) for name in raw):
            return code
    return UNDECLARED


BESIDE_LATIN = re.compile(r"[A-Za-z][^\x00-\x7f]|[^\x00-\x7f][A-Za-z]")
"""Letters of two scripts side by side, as where one letter of a Latin word and the next were taken for one sign."""


def _is_latin(letter: str) -> bool:
    return letter.isascii() or (letter.isalpha() and letter < "\u0250")


def _are_in(code: str, names: Iterable[bytes]) -> bool:
    """Return whether all names can be read in a code."""
    try:
        for name in names:
            name.decode(code)
    except UnicodeDecodeError:
        return False
    return True


def _name(member: zipfile.ZipInfo, code: str) -> str:
    """With "/" between folders, as the format demands; old programs of Windows wrote its own sign."""
    undeclared = not member.flag_bits & UTF8_NAME
    return plain_name(member.filename.encode(UNDECLARED).decode(code) if undeclared else member.filename)


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


FORM = "datasets `imgs` uint8 [N, 3, S, S] and `labels` int64 [N]"
OTHERWISE = "Prepare from the original pictures, or pass arrays from Python (docs/adding-a-data-set.md)."
# Holds two chunks of 500 pictures of 256 pixels: read in order, each is unpacked once.
CACHE_BYTES = 512 * MIB
DAMAGED = (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, UnicodeError)
"""What h5py raises on damaged files, wherever it meets the damage."""
MOST_PICTURES = 100_000_000  # their labels alone take 0.8 GB


def open_hdf5(path: Path) -> Source:
    """List the pictures of an HDF5 file; they are read one by one.

    Raises:
        BadInput: h5py is missing, or the file does not hold what BigGAN-PyTorch's `make_hdf5.py` writes.
    """
    where = shown(str(path))
    h5py = optional_module("h5py", f"{where} is an HDF5 file, which needs h5py", "data")
    with translated(DAMAGED, lambda e: BadInput(f"{where} cannot be opened as HDF5 ({e}). Copy or make it again.")):
        file = h5py.File(path, "r", rdcc_nbytes=CACHE_BYTES)
    with (
        translated(DAMAGED, lambda e: BadInput(f"{where} is a damaged HDF5 file ({e}). Copy or make it again.")),
        closed_on_failure(file.close),
    ):
        return _list_hdf5(h5py, file, path, where)


def _list_hdf5(h5py: Any, file: Any, path: Path, where: str) -> Source:
    imgs, labels = (_dataset(h5py, file, name, where) for name in ("imgs", "labels"))
    fits = imgs.ndim == 4 and imgs.shape[1] == 3 and imgs.dtype == np.uint8 and imgs.size > 0
    if not (fits and labels.shape == imgs.shape[:1] and labels.dtype.kind in "iu"):
        raise BadInput(
            f"{where} holds imgs {imgs.dtype} {list(imgs.shape)} and labels {labels.dtype} {list(labels.shape)}; "
            f"expected {FORM}. {OTHERWISE}"
        )
    height, width = imgs.shape[2:]
    if len(imgs) > MOST_PICTURES or height * width > MOST_PIXELS:
        raise BadInput(
            f"{where} claims {len(imgs):,} pictures of {width:,} x {height:,} pixels; expected at most "
            f"{MOST_PICTURES:,} pictures and {MOST_PIXELS:,} pixels each. It is damaged: copy or make it again."
        )
    chunk_bytes = int(np.prod(imgs.chunks or (0,), dtype=object))
    if imgs.compression and chunk_bytes > CACHE_BYTES:
        raise BadInput(
            f"{where} is packed in chunks of {chunk_bytes >> 20:,} MiB; expected at most {CACHE_BYTES >> 20}. "
            "Rewrite it with fewer pictures per chunk (h5repack)."
        )
    classes = numbered(np.asarray(labels[:], np.int64), f"labels of {where}")

    def size(index: int) -> tuple[int, int]:
        return width, height

    def picture(index: int) -> Image.Image:
        with translated(DAMAGED, lambda e: Unreadable(str(e))):
            pixels: NDArray[np.uint8] = imgs[index]  # [3, S, S]
        return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))

    def places() -> NDArray[np.int64] | None:
        with translated(DAMAGED, lambda e: BadInput(f"{where} is a damaged HDF5 file ({e}). Copy or make it again.")):
            return _places(file, imgs)

    names = [f"imgs[{index}]" for index in range(len(imgs))]
    return Source("HDF5 file", path, names, classes, size, picture, file.close, places=places)


def _places(file: Any, imgs: Any) -> NDArray[np.int64] | None:
    """Return at which byte of the file each picture begins [N]; None: they are packed, cut into parts, or not there."""
    picture_bytes = math.prod(imgs.shape[1:])
    within = np.arange(len(imgs), dtype=np.int64)
    if file.userblock_size or imgs.id.get_create_plist().get_nfilters():
        return None
    if imgs.chunks is None:
        first = imgs.id.get_offset()
        return None if first is None else first + within * picture_bytes
    if imgs.chunks[1:] != imgs.shape[1:] or not hasattr(imgs.id, "chunk_iter"):  # HDF5 before 1.12.3 has no such list
        return None
    together = imgs.chunks[0]
    firsts = np.full(-(-len(imgs) // together), -1, np.int64)

    def note(chunk: Any) -> None:
        if chunk.byte_offset is not None:
            firsts[chunk.chunk_offset[0] // together] = chunk.byte_offset

    imgs.id.chunk_iter(note)
    places = firsts[within // together] + within % together * picture_bytes
    return places if firsts.min() >= 0 else None


def _dataset(h5py: Any, file: Any, name: str, where: str) -> Any:
    """Return a dataset whose values lie in the file itself: HDF5 can also point at other files."""
    dataset = file.get(name) if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(dataset, h5py.Dataset):
        raise BadInput(
            f"{where} has no dataset `{name}`; expected {FORM}, as BigGAN-PyTorch's make_hdf5.py writes them. "
            f"{OTHERWISE}"
        )
    if dataset.external or dataset.is_virtual:
        raise BadInput(f"{where}: `{name}` points at other files; expected the values themselves. Run h5repack on it.")
    return dataset


PIXELS_BYTES = 3 * 32 * 32


@dataclass(frozen=True)
class CifarFiles:
    """Where one of the two sets keeps what. A record is its label bytes, then red, green and blue planes of 32 x 32."""

    title: str
    files: tuple[str, ...]
    label_bytes: int
    class_count: int
    class_file: str
    python_files: tuple[str, ...]
    download: str

    @property
    def record_bytes(self) -> int:
        """Return the size of one picture with its labels."""
        return self.label_bytes + PIXELS_BYTES


CIFAR10 = CifarFiles(
    "CIFAR-10",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    1,
    10,
    "batches.meta.txt",
    ("data_batch_1", "batches.meta"),
    "cifar-10-binary.tar.gz",
)
CIFAR100 = CifarFiles(  # coarse label, then fine label: the fine one counts
    "CIFAR-100", ("train.bin",), 2, 100, "fine_label_names.txt", ("train", "meta"), "cifar-100-binary.tar.gz"
)


def cifar_layout(folder: Path) -> CifarFiles | None:
    """Return which CIFAR set a folder holds, None if neither.

    Raises:
        BadInput: it holds the Python version, which is a pickle.
    """
    for layout in (CIFAR10, CIFAR100):
        if any((folder / name).is_file() for name in layout.files):
            return layout
        if all((folder / name).is_file() for name in layout.python_files):
            raise BadInput(
                f"{shown(str(folder))} holds the Python version of {layout.title}, which is a pickle and can run "
                f"programs: it is not read. Download the binary version, {layout.download}, and unpack it."
            )
    return None


def open_cifar(folder: Path, layout: CifarFiles) -> Source:
    """List the training pictures of a CIFAR folder (not the test set).

    Raises:
        BadInput: a file is missing, cut short, or holds a label that does not exist.
    """
    missing = [name for name in layout.files if not (folder / name).is_file()]
    if missing:
        raise BadInput(f"{shown(str(folder))} lacks {', '.join(missing)}; unpack {layout.download} again.")
    batches = [_records(folder / name, layout) for name in layout.files]
    starts = np.cumsum([0, *(len(batch) for batch in batches)])
    labels = np.concatenate([batch[:, layout.label_bytes - 1] for batch in batches]).astype(np.int64)
    if labels.max() >= layout.class_count:
        wrong = int(np.argmax(labels >= layout.class_count))
        name = layout.files[int(np.searchsorted(starts, wrong, "right")) - 1]
        raise BadInput(
            f"{shown(str(folder / name))} holds the label {labels[wrong]}; expected 0 to {layout.class_count - 1}. "
            f"Unpack {layout.download} again."
        )
    names = [f"{name}[{i}]" for name, batch in zip(layout.files, batches, strict=True) for i in range(len(batch))]

    def size(index: int) -> tuple[int, int]:
        return 32, 32

    def picture(index: int) -> Image.Image:
        at = int(np.searchsorted(starts, index, "right")) - 1
        planes = batches[at][index - starts[at], layout.label_bytes :].reshape(3, 32, 32)
        return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))

    class_names, line = _class_names(folder, layout)
    lines = (line, f"the {len(labels):,} training pictures of {layout.title} are used, not its test pictures")
    return Source(
        f"{layout.title} binary files", folder, names, Classes(labels, class_names, True, lines), size, picture
    )


def _records(path: Path, layout: CifarFiles) -> NDArray[np.uint8]:
    """Map one file as [n, record_bytes]."""
    file_bytes = path.stat().st_size
    if file_bytes == 0 or file_bytes % layout.record_bytes:
        raise BadInput(
            f"{shown(str(path))} has {file_bytes:,} bytes; expected a multiple of {layout.record_bytes}, one record "
            f"per picture. It is damaged or not {layout.title}: unpack {layout.download} again."
        )
    return np.memmap(path, np.uint8, "r", shape=(file_bytes // layout.record_bytes, layout.record_bytes))


def _class_names(folder: Path, layout: CifarFiles) -> tuple[tuple[str, ...], str]:
    path = folder / layout.class_file
    text = path.read_bytes()[:10_000].decode("utf-8", "replace") if path.is_file() else ""
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(names) == layout.class_count:
        return names, f"{layout.class_count} classes named by {layout.class_file}"
    numbers = tuple(str(number) for number in range(layout.class_count))
    return numbers, f"{layout.class_file} does not hold {layout.class_count} names: classes are called by their numbers"
