"""Protocol buffers' wire format, as far as a bundle's index has it."""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MOST_VARINT_BYTES = 10


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and where the next thing begins.

    Raises:
        IndexError: cut off.
        ValueError: longer than such a number is.
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
        IndexError: cut off.
        ValueError: of a kind that is not known.
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
