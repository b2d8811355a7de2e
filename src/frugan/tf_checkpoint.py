"""Reading of TensorFlow's checkpoints ("bundles" of an index and data files) without TensorFlow.

An index is a sorted string table (LevelDB's format), whose blocks may be compressed by Snappy and are checked by
CRC-32C. Its values are protocol buffers. All of it is untrusted.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.wording import MIB

# CRC-32C, which checks TensorFlow's and LevelDB's files, fast enough for gigabytes.
#
# Source: Castagnoli et al. 1993, polynomial 0x1EDC6F41 in reflected form; the "mask" is LevelDB's, for checksums that
# are stored beside their data.

POLYNOMIAL = 0x82F63B78
"""CRC-32C's polynomial, bit-reversed."""
MASK_DELTA = 0xA282EAD8
MOST_LANES = 1 << 14
"""Largest number of pieces of a long text that are processed side by side."""
LEAST_PER_LANE = 64
"""Bytes in a piece, at least about."""

Words = NDArray[np.uint32]


def crc32c(data: bytes | memoryview) -> int:
    """CRC-32C of some bytes."""
    text = np.frombuffer(data, np.uint8)
    count = min(MOST_LANES, 1 << (len(text) // LEAST_PER_LANE).bit_length() >> 1)
    if count < 2:
        return _finish(_of_bytes(text.tobytes(), 0xFFFFFFFF))
    size = len(text) // count
    lanes = text[: size * count].reshape(count, size)
    # Checksums that start from 0 are linear: compute that of each lane, then combine neighbours until one is left.
    parts = np.zeros(count, np.uint32)
    table = _table()
    for column in np.ascontiguousarray(lanes.T):  # one byte of each lane
        parts = table[(parts ^ column) & 0xFF] ^ (parts >> np.uint32(8))
    length = size
    while len(parts) > 1:
        parts = _times(_shift(length), parts[0::2]) ^ parts[1::2]
        length *= 2
    state = int(_times(_shift(length), np.array([0xFFFFFFFF], np.uint32))[0]) ^ int(parts[0])
    return _finish(_of_bytes(text[size * count :].tobytes(), state))


def unmask(stored: int) -> int:
    """Recover a checksum from its masked form."""
    rotated = (stored - MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def _finish(state: int) -> int:
    return state ^ 0xFFFFFFFF


def _of_bytes(data: bytes, state: int) -> int:
    table = _plain_table()
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state


@cache
def _plain_table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        return value

    return tuple(map(entry, range(256)))


@cache
def _table() -> Words:
    return np.array(_plain_table(), np.uint32)


@cache
def _shift(count: int) -> Words:
    """Matrix [32 columns] that carries a state over `count` zero bytes."""
    if count == 1:
        units = np.uint32(1) << np.arange(32, dtype=np.uint32)
        carried: Words = _table()[units & 0xFF] ^ (units >> np.uint32(8))
        return carried
    half = _shift(count // 2)
    twice = _times(half, half)
    return _times(_shift(1), twice) if count % 2 else twice


def _times(matrix: Words, states: Words) -> Words:
    """Multiply states [N] by a matrix over the field of two elements, given by its columns."""
    out = np.zeros_like(states)
    for bit in range(32):
        out ^= np.where((states >> np.uint32(bit)) & np.uint32(1), matrix[bit], np.uint32(0))
    return out


# Decompression of Snappy, with which sorted tables may compress their blocks.
#
# Source: the format's description in google/snappy (format_description.txt).

LITERAL, COPY_1, COPY_2 = 0, 1, 2
LONG_LITERAL = 60


def decompress(data: bytes, most_bytes: int) -> bytes:
    """Decompress a block.

    Args:
        data: the compressed block.
        most_bytes: largest size that it may have.

    Raises:
        ValueError: it is damaged, or larger.
        IndexError: it is cut off.
    """
    size, at = varint(data, 0)
    if size > most_bytes:
        raise ValueError(f"a packed block of {size:,} bytes; expected at most {most_bytes:,}")
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        kind = tag & 3
        if kind == LITERAL:
            length = tag >> 2
            if length >= LONG_LITERAL:
                width = length - LONG_LITERAL + 1
                length = int.from_bytes(data[at : at + width], "little")
                at += width
            length += 1
            if at + length > len(data):
                raise IndexError("a packed block is cut off")
            out += data[at : at + length]
            at += length
        else:
            if kind == COPY_1:
                length, offset = 4 + ((tag >> 2) & 7), (tag >> 5 << 8) | data[at]
                at += 1
            else:
                width = 2 if kind == COPY_2 else 4
                length, offset = (tag >> 2) + 1, int.from_bytes(data[at : at + width], "little")
                at += width
            if not 0 < offset <= len(out):
                raise ValueError("a packed block refers to what is before its beginning")
            begin = len(out) - offset
            pattern = out[begin : begin + length]
            out += (pattern * -(-length // len(pattern)))[:length]
        if len(out) > size:
            break
    if len(out) != size:
        raise ValueError(f"a packed block has {len(out):,} bytes, and should have {size:,}")
    return bytes(out)


# Protocol buffers, as far as an index needs them: the number and the value of each field of a message.
#
# Source: the description of the wire format (protobuf.dev, "Encoding").

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MOST_VARINT_BYTES = 10


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits in each byte, lowest first; give it and the position after it.

    Raises:
        IndexError: it is cut off.
        ValueError: it is longer than ten bytes.
    """
    value = 0
    for i in range(MOST_VARINT_BYTES):
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError("a number of more than ten bytes")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message.

    Raises:
        IndexError: the message is cut off.
        ValueError: a field is of an unknown kind.
    """
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, value
            continue
        if kind == BYTES:
            length, at = varint(data, at)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + length > len(data):
            raise IndexError("a message is cut off")
        piece, at = data[at : at + length], at + length
        yield number, piece if kind == BYTES else int.from_bytes(piece, "little")


# A sorted string table, LevelDB's format for keys and values, in which TensorFlow writes a checkpoint's index.
#
# Source: LevelDB's description of the format (table_format.md).

FOOTER_BYTES = 48
MAGIC = 0xDB4775248B80FB57
PLAIN, SNAPPY = 0, 1
TRAILER_BYTES = 5
"""Bytes after each block, for its compression and its checksum."""
MOST_BLOCK_BYTES = 64 * MIB
"""Largest size of a block; TensorFlow's have 256 KiB, or one large entry."""


def read_sorted_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table, in order.

    Args:
        data: contents of the file.

    Raises:
        ValueError: it is damaged, or no such table.
        IndexError: it is cut off.
    """
    if len(data) < FOOTER_BYTES or int.from_bytes(data[-8:], "little") != MAGIC:
        raise ValueError("does not end as a sorted table does: cut off, or another kind of file")
    footer = data[-FOOTER_BYTES:]
    _, _, at = _handle(footer, 0)  # the block of metadata, which TensorFlow leaves empty
    offset, size, _ = _handle(footer, at)
    last = b""
    for _, handle in _entries(_block(data, offset, size)):
        offset, size, _ = _handle(handle, 0)
        for key, value in _entries(_block(data, offset, size)):
            if last and key <= last:
                raise ValueError(f"its keys are not in order: {last[:60]!r} before {key[:60]!r}")
            last = key
            yield key, value


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    """Read offset and size of a block; give them and the position of the next handle."""
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return offset, size, at


def _block(data: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if end + TRAILER_BYTES > len(data) - FOOTER_BYTES:
        raise IndexError(f"a block at byte {offset:,} of {size:,} bytes lies beyond its end")
    packed, packing = data[offset:end], data[end]
    stored = int.from_bytes(data[end + 1 : end + TRAILER_BYTES], "little")
    if crc32c(data[offset : end + 1]) != unmask(stored):
        raise ValueError(f"the block at byte {offset:,} is damaged: its checksum is another")
    if packing == PLAIN:
        return packed
    if packing == SNAPPY:
        return decompress(packed, MOST_BLOCK_BYTES)
    raise ValueError(f"the block at byte {offset:,} is packed in way {packing}; expected 0 (plain) or 1 (Snappy)")


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block, in which each key omits the beginning that it shares with the one before."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if len(block) < 4 or end < 0:
        raise ValueError(f"a block of {len(block):,} bytes lists {restarts:,} places in it")
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        unshared, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + unshared + length > end:
            raise IndexError("an entry lies beyond the end of its block")
        key = key[:shared] + block[at : at + unshared]
        at += unshared
        yield key, block[at : at + length]
        at += length


# Checkpoints of TensorFlow.
#
# `NAME.index` is a sorted table of name -> message: type, shape, file, offset, size, checksum. The numbers are in
# `NAME.data-00000-of-00001` and the like.
#
# Source: TensorFlow's tensor_bundle.proto and types.proto, and files that TensorFlow wrote.

INDEX = ".index"
MOST_INDEX_BYTES = 256 * MIB
MOST_SHARDS = 100_000
MOST_DIMENSIONS = 32
TYPES: Mapping[int, str] = MappingProxyType(
    {1: "<f4", 2: "<f8", 3: "<i4", 4: "|u1", 5: "<i2", 6: "|i1", 9: "<i8", 10: "|b1", 19: "<f2"}
)
"""TensorFlow's codes for types of numbers -> NumPy's; other codes are for text and the like."""
CURE = "Download or copy it again."
_DAMAGE = (ValueError, IndexError, OverflowError)


@dataclass(frozen=True)
class Entry:
    """Type, shape and place of a tensor."""

    dtype: int = 0  # TensorFlow's code of the type
    shape: tuple[int, ...] = ()
    shard: int = 0  # number of the data file
    offset: int = 0  # position in the file, in bytes
    size: int = 0  # bytes
    checksum: int | None = None  # masked checksum of the bytes; None: there is none
    sliced: bool = False  # the tensor is stored in parts, under other names


@dataclass(frozen=True)
class Bundle:
    """An opened checkpoint of TensorFlow."""

    index: Path  # the index file
    entries: Mapping[str, Entry]  # tensor -> entry
    shards: int  # number of data files
    _files: dict[int, np.ndarray] = field(default_factory=dict)

    def tensor(self, name: str) -> np.ndarray:
        """Read a tensor and check it.

        Raises:
            BadInput: it holds no numbers, is stored in parts, lies beyond its file's end, or has another checksum.
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
        path: an index, a folder with one, or a saved model, which has such a folder named `variables`.

    Raises:
        BadInput: there is no checkpoint, there are several, or it is damaged.
    """
    index = _index_of(path)
    if (size := index.stat().st_size) > MOST_INDEX_BYTES:
        raise BadInput(f"{index}: {size:,} bytes; expected at most {MOST_INDEX_BYTES:,}")
    try:
        entries = dict(_read(index.read_bytes()))
    except _DAMAGE as error:
        raise BadInput(f"{index}: no index of a TensorFlow checkpoint, or a damaged one: {error}. {CURE}") from error
    shards = entries.pop("").shard if "" in entries else 0
    if not 0 < shards <= MOST_SHARDS:
        raise BadInput(f"{index}: speaks of {shards:,} data files; expected at least one. {CURE}")
    return Bundle(index, entries, shards)


def _index_of(path: Path) -> Path:
    if path.is_file():
        if path.suffix != INDEX:
            raise BadInput(f"{path}: expected a TensorFlow checkpoint's .index file, or the folder that it lies in")
        return path
    if not path.exists():
        raise BadInput(f"{path}: no such file or folder (looked from {Path.cwd()})")
    folder = path / "variables" if (path / "variables").is_dir() else path
    indices = sorted(file for file in folder.glob(f"*{INDEX}") if file.is_file())
    if len(indices) != 1:
        many = f"{len(indices)} files" if indices else "no file"
        raise BadInput(f"{folder}: {many} ending in {INDEX}; expected the folder of one TensorFlow checkpoint")
    return indices[0]


def _read(data: bytes) -> Iterator[tuple[str, Entry]]:
    for key, value in read_sorted_table(data):
        yield (key.decode("utf-8"), _entry(value)) if key else ("", Entry(shard=_shards(value)))


def _shards(message: bytes) -> int:
    """Number of data files, from the header.

    Raises:
        ValueError: the checkpoint is of a machine with another byte order.
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
