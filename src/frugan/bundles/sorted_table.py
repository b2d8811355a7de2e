"""A sorted string table, LevelDB's format for keys and values, in which TensorFlow writes a checkpoint's index.

Source: LevelDB's description of the format (table_format.md).
"""

from collections.abc import Iterator

from frugan.bundles.crc32c import crc32c, unmask
from frugan.bundles.protobuf import varint
from frugan.bundles.snappy import decompress

FOOTER_BYTES = 48
MAGIC = 0xDB4775248B80FB57
PLAIN, SNAPPY = 0, 1
TRAILER_BYTES = 5
"""After each block: how it is packed, and its checksum."""
MOST_BLOCK_BYTES = 64 << 20
"""TensorFlow's have 256 KiB, or one large entry."""


def read_sorted_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table, in order.

    Args:
        data: the whole file.

    Raises:
        ValueError: damaged, or no such table.
        IndexError: cut off.
    """
    if len(data) < FOOTER_BYTES or int.from_bytes(data[-8:], "little") != MAGIC:
        raise ValueError("does not end as a sorted table does: cut off, or another kind of file")
    footer = data[-FOOTER_BYTES:]
    _, _, at = _handle(footer, 0)  # of a block about blocks, which TensorFlow leaves empty
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
    """Where a block lies, how long it is, and where the next handle begins."""
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
    """Keys and values of a block: each key begins as the one before it does."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if len(block) < 4 or end < 0:
        raise ValueError(f"a block of {len(block):,} bytes lists {restarts:,} places in it")
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + own + length > end:
            raise IndexError("an entry lies beyond the end of its block")
        key = key[:shared] + block[at : at + own]
        at += own
        yield key, block[at : at + length]
        at += length
