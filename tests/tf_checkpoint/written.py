"""TensorFlow's checkpoints as TensorFlow writes them, made without it; and damaged ones."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from frugan.tf_checkpoint import MAGIC, MASK_DELTA, PLAIN, SNAPPY, TYPES, crc32c

ENTRIES_PER_BLOCK = 16


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(shape: tuple[int, ...], offset: int, raw: bytes, dtype: int = 1, shard: int = 0) -> bytes:
    """The message about one tensor."""
    sides = b"".join(field(2, field(1, side)) for side in shape)
    parts = field(1, dtype) + field(2, sides)
    parts += field(3, shard) if shard else b""
    parts += field(4, offset) if offset else b""
    return parts + field(5, len(raw)) + varint(6 << 3 | 5) + struct.pack("<I", masked(raw))


def header(shards: int = 1, endianness: int = 0) -> bytes:
    """The message about all data files."""
    return field(1, shards) + (field(2, endianness) if endianness else b"") + field(3, field(1, 1))


def literals(data: bytes) -> bytes:
    """Packed by Snappy, without finding anything to refer to but a run of the last byte."""
    out = varint(len(data))
    for at in range(0, len(data), 60):
        piece = data[at : at + 60]
        out += bytes([(len(piece) - 1) << 2]) + piece
    return out


def block(entries: list[tuple[bytes, bytes]], packing: int = PLAIN) -> bytes:
    """A block with its trailer; keys share beginnings."""
    out, last = b"", b""
    for key, value in entries:
        shared = 0
        while shared < min(len(key), len(last)) and key[shared] == last[shared]:
            shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    out += struct.pack("<II", 0, 1)
    out = literals(out) if packing == SNAPPY else out
    return out + bytes([packing]) + struct.pack("<I", masked(out + bytes([packing])))


def table(entries: Mapping[bytes, bytes], packing: int = PLAIN, *, in_order: bool = True) -> bytes:
    """A sorted table of some entries."""
    listed = sorted(entries.items()) if in_order else list(entries.items())
    out, handles = b"", []
    for at in range(0, len(listed), ENTRIES_PER_BLOCK):
        part = listed[at : at + ENTRIES_PER_BLOCK]
        made = block(part, packing)
        handles.append((part[-1][0], varint(len(out)) + varint(len(made) - 5)))
        out += made
    meta, index = block([]), block(handles, packing)
    footer = varint(len(out)) + varint(len(meta) - 5)
    footer += varint(len(out) + len(meta)) + varint(len(index) - 5)
    return out + meta + index + footer.ljust(40, b"\0") + struct.pack("<Q", MAGIC)


def write_bundle(folder: Path, tensors: Mapping[str, np.ndarray], packing: int = PLAIN) -> Path:
    """Write a module's `variables`; the folder is the module."""
    codes = {np.dtype(code): number for number, code in TYPES.items()}
    inner = folder / "variables"
    inner.mkdir(parents=True)
    entries = {b"": header()}
    with (inner / "variables.data-00000-of-00001").open("wb") as file:
        for name, array in sorted(tensors.items()):
            raw = array.tobytes()
            entries[name.encode()] = entry(array.shape, file.tell(), raw, codes[array.dtype])
            file.write(raw)
    (inner / "variables.index").write_bytes(table(entries, packing))
    return folder
