"""A checkpoint of TensorFlow: which tensors are in it, and their numbers.

`NAME.index` is a sorted table of name -> message: type, shape, file, place, length, checksum. The numbers are in
`NAME.data-00000-of-00001` and its like.

Source: TensorFlow's tensor_bundle.proto and types.proto, and files that TensorFlow wrote.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np

from frugan.bundles.crc32c import crc32c, unmask
from frugan.bundles.protobuf import fields
from frugan.bundles.sorted_table import read_sorted_table
from frugan.errors import BadInput

INDEX = ".index"
MOST_INDEX_BYTES = 256 << 20
MOST_SHARDS = 100_000
MOST_DIMENSIONS = 32
TYPES: Mapping[int, str] = MappingProxyType(
    {1: "<f4", 2: "<f8", 3: "<i4", 4: "|u1", 5: "<i2", 6: "|i1", 9: "<i8", 10: "|b1", 19: "<f2"}
)
"""TensorFlow's numbers for types of numbers; it has others, for text and the like."""
CURE = "Download or copy it again."
_DAMAGE = (ValueError, IndexError, OverflowError)


@dataclass(frozen=True)
class Entry:
    """Where a tensor's numbers are.

    Attributes:
        dtype: TensorFlow's number of the type.
        shape: of the tensor.
        shard: file.
        offset, size: bytes in it.
        checksum: of the numbers, masked; None: there is none.
        sliced: the tensor is in parts, under other names.
    """

    dtype: int = 0
    shape: tuple[int, ...] = ()
    shard: int = 0
    offset: int = 0
    size: int = 0
    checksum: int | None = None
    sliced: bool = False


@dataclass(frozen=True)
class Bundle:
    """An opened checkpoint.

    Attributes:
        index: the index file.
        entries: name -> where it is.
        shards: number of data files.
    """

    index: Path
    entries: Mapping[str, Entry]
    shards: int
    _files: dict[int, np.ndarray] = field(default_factory=dict)

    def tensor(self, name: str) -> np.ndarray:
        """A tensor's numbers, checked.

        Raises:
            BadInput: not numbers, in parts, beyond its file's end, or not what its checksum says.
        """
        entry = self.entries[name]
        where = f"{self.index}: {name}"
        if entry.sliced:
            raise BadInput(f"{where} is stored in slices, which are not read here")
        if entry.dtype not in TYPES:
            raise BadInput(f"{where} is of TensorFlow's type {entry.dtype}; expected numbers ({', '.join(_names())})")
        dtype = np.dtype(TYPES[entry.dtype])
        needed = prod(entry.shape) * dtype.itemsize
        if entry.size != needed:
            raise BadInput(
                f"{where} {list(entry.shape)} takes {needed:,} bytes, and the index says {entry.size:,}. {CURE}"
            )
        file = self._file(entry.shard)
        if entry.offset + entry.size > len(file):
            raise BadInput(
                f"{self._path(entry.shard)}: cut off: {name} ends at byte {entry.offset + entry.size:,}, the file at "
                f"{len(file):,}. {CURE}"
            )
        raw = np.array(file[entry.offset : entry.offset + entry.size])  # a copy: the file may change later
        if entry.checksum is not None and crc32c(raw.data) != unmask(entry.checksum):
            raise BadInput(f"{self._path(entry.shard)}: damaged: the numbers of {name} have another checksum. {CURE}")
        return raw.view(dtype).reshape(entry.shape)

    def _path(self, shard: int) -> Path:
        stem = self.index.name.removesuffix(INDEX)
        return self.index.with_name(f"{stem}.data-{shard:05d}-of-{self.shards:05d}")

    def _file(self, shard: int) -> np.ndarray:
        if shard not in self._files:
            path = self._path(shard)
            if not 0 <= shard < self.shards or not path.is_file():
                raise BadInput(f"{path}: no such file, which {self.index} speaks of. {CURE}")
            empty = path.stat().st_size == 0
            self._files[shard] = np.empty(0, np.uint8) if empty else np.memmap(path, np.uint8, "r")
        return self._files[shard]


def read_bundle(path: Path) -> Bundle:
    """Open a checkpoint.

    Args:
        path: its index, a folder with one, or a folder with such a folder in it named `variables` (a saved model).

    Raises:
        BadInput: there is none, or several, or it is damaged.
    """
    index = _index_of(path)
    if (size := index.stat().st_size) > MOST_INDEX_BYTES:
        raise BadInput(f"{index}: {size:,} bytes; expected at most {MOST_INDEX_BYTES:,}")
    try:
        found = dict(_read(index.read_bytes()))
    except _DAMAGE as error:
        raise BadInput(f"{index}: no index of a TensorFlow checkpoint, or a damaged one: {error}. {CURE}") from error
    shards = found.pop("").shard if "" in found else 0
    if not 0 < shards <= MOST_SHARDS:
        raise BadInput(f"{index}: speaks of {shards:,} data files; expected at least one. {CURE}")
    return Bundle(index, found, shards)


def _index_of(path: Path) -> Path:
    if path.is_file():
        if path.suffix != INDEX:
            raise BadInput(f"{path}: expected a TensorFlow checkpoint's .index file, or the folder that it lies in")
        return path
    if not path.exists():
        raise BadInput(f"{path}: no such file or folder (looked from {Path.cwd()})")
    folder = path / "variables" if (path / "variables").is_dir() else path
    found = sorted(file for file in folder.glob(f"*{INDEX}") if file.is_file())
    if len(found) != 1:
        many = f"{len(found)} files" if found else "no file"
        raise BadInput(f"{folder}: {many} ending in {INDEX}; expected the folder of one TensorFlow checkpoint")
    return found[0]


def _read(data: bytes) -> Iterator[tuple[str, Entry]]:
    for key, value in read_sorted_table(data):
        yield (key.decode("utf-8"), _entry(value)) if key else ("", Entry(shard=_shards(value)))


def _shards(message: bytes) -> int:
    """Number of data files, out of the message about all of them.

    Raises:
        ValueError: of a machine with another order of bytes.
    """
    header = {number: value for number, value in fields(message) if isinstance(value, int)}
    if header.get(2, 0) != 0:
        raise ValueError("of a machine with another order of bytes")
    return header.get(1, 0)


def _entry(message: bytes) -> Entry:
    numbers = {number: value for number, value in fields(message) if isinstance(value, int)}
    messages = [(number, value) for number, value in fields(message) if isinstance(value, bytes)]
    shape = next((_shape(value) for number, value in messages if number == 2), ())
    return Entry(
        dtype=numbers.get(1, 0),
        shape=shape,
        shard=numbers.get(3, 0),
        offset=numbers.get(4, 0),
        size=numbers.get(5, 0),
        checksum=numbers.get(6),
        sliced=any(number == 7 for number, _ in messages),
    )


def _shape(message: bytes) -> tuple[int, ...]:
    sides = [
        next((side for number, side in fields(value) if number == 1 and isinstance(side, int)), 0)
        for number, value in fields(message)
        if number == 2 and isinstance(value, bytes)
    ]
    if len(sides) > MOST_DIMENSIONS or any(side >= 1 << 62 for side in sides):
        raise ValueError(f"a tensor of shape {sides[:MOST_DIMENSIONS]}")
    return tuple(sides)


def _names() -> Iterator[str]:
    return (re.sub(r"[<|]", "", code) for code in TYPES.values())
