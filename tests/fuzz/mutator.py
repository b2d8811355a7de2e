"""Damages files the way disks, transfers and people with ill will do: every damage is a function of its number."""

import struct
from collections.abc import Callable, Sequence
from random import Random

Damage = Callable[[bytearray, Random], bytearray]

EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
"""Lengths and offsets at which readers have gone wrong."""
WORDS = (b"null", b"NaN", b"-1", b"1e999", b"[]", b"{}", b'""', b"\x00", b"../", b"9" * 400, b"[" * 300, b"\xff\xfe")
"""What is put into text: other types, numbers beyond floats, ways out of a folder, depth, what is no UTF-8."""


def damaged(whole: bytes, number: int, others: Sequence[bytes] = ()) -> bytes:
    """Return a file with one to four damages.

    Args:
        whole: the file.
        number: of the case: the same one gives the same bytes.
        others: files that pieces may come from.
    """
    random = Random(number)
    data = bytearray(whole)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if not data:
            return b""
        data = random.choice(DAMAGES)(data, random)
        if others and random.random() < 0.1:
            data = _splice(data, random, random.choice(others))
    return bytes(data)


def _place(data: bytearray, random: Random) -> int:
    """A place in the file: any, but as often one in its head or its tail, where lengths and directories stand."""
    size = len(data)
    near = min(size, 96)
    return random.choice((random.randrange(size), random.randrange(near), size - 1 - random.randrange(near)))


def _flip(data: bytearray, random: Random) -> bytearray:
    data[_place(data, random)] ^= 1 << random.randrange(8)
    return data


def _overwrite(data: bytearray, random: Random) -> bytearray:
    at = _place(data, random)
    data[at : at + random.choice((1, 1, 4, 64))] = random.randbytes(random.choice((1, 1, 4, 64)))
    return data


def _cut(data: bytearray, random: Random) -> bytearray:
    return data[: _place(data, random)]


def _zeros(data: bytearray, random: Random) -> bytearray:
    """What a power cut leaves: a file of the right length whose end was never written."""
    at = _place(data, random)
    data[at:] = bytes(len(data) - at)
    return data


def _length(data: bytearray, random: Random) -> bytearray:
    """Write an extreme number where a length may stand, in a width and byte order that formats use."""
    form = random.choice(("<B", "<H", ">H", "<I", ">I", "<Q", ">Q"))
    width = struct.calcsize(form)
    at = min(_place(data, random), max(0, len(data) - width))
    data[at : at + width] = struct.pack(form, random.choice(EDGES) & ((1 << 8 * width) - 1))
    return data


def _remove(data: bytearray, random: Random) -> bytearray:
    at = _place(data, random)
    del data[at : at + random.choice((1, 2, 8, 100))]
    return data


def _repeat(data: bytearray, random: Random) -> bytearray:
    at = _place(data, random)
    piece = data[at : at + random.choice((1, 4, 40, 400))]
    data[at:at] = piece * random.choice((1, 2, 30))
    return data


def _word(data: bytearray, random: Random) -> bytearray:
    at = _place(data, random)
    data[at : at + random.choice((0, 1, 4))] = random.choice(WORDS)
    return data


def _digits(data: bytearray, random: Random) -> bytearray:
    """Change a number that is written in digits."""
    places = [at for at, byte in enumerate(data[:4096]) if 48 <= byte <= 57]
    if places:
        at = random.choice(places)
        data[at : at + 1] = random.choice((b"0", b"9", b"-1", b"99999999999", b"1.5", b'"x"', b"null"))
    return data


def _splice(data: bytearray, random: Random, other: bytes) -> bytearray:
    """Put a piece of another file in."""
    if not other:
        return data
    begin = random.randrange(len(other))
    piece = other[begin : begin + random.choice((4, 64, 1024))]
    at = random.randrange(len(data) + 1)
    data[at : at + random.choice((0, len(piece)))] = piece
    return data


DAMAGES: Sequence[Damage] = (_flip, _overwrite, _cut, _zeros, _length, _length, _remove, _repeat, _word, _digits)
