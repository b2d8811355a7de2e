"""CRC-32C, by which TensorFlow's and LevelDB's files are checked, over gigabytes at NumPy's speed.

Source: Castagnoli et al. 1993, polynomial 0x1EDC6F41 in reflected form; the "mask" is LevelDB's, for checksums that lie
beside what they check.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78
"""Reflected."""
MASK_DELTA = 0xA282EAD8
MOST_LANES = 1 << 14
"""Pieces of a long text that are gone through beside each other."""
LEAST_PER_LANE = 64

Words = NDArray[np.uint32]


def crc32c(data: bytes | memoryview) -> int:
    """Checksum of some bytes."""
    text = np.frombuffer(data, np.uint8)
    count = min(MOST_LANES, 1 << (len(text) // LEAST_PER_LANE).bit_length() >> 1)
    if count < 2:
        return _finish(_of_bytes(text.tobytes(), 0xFFFFFFFF))
    each = len(text) // count
    lanes = text[: each * count].reshape(count, each)
    # Checksums from a start of 0 are linear: each lane by itself, then neighbours joined, half as many each time.
    parts = np.zeros(count, np.uint32)
    table = _table()
    for column in np.ascontiguousarray(lanes.T):  # one byte of each lane
        parts = table[(parts ^ column) & 0xFF] ^ (parts >> np.uint32(8))
    length = each
    while len(parts) > 1:
        parts = _times(_shift(length), parts[0::2]) ^ parts[1::2]
        length *= 2
    begun = int(_times(_shift(length), np.array([0xFFFFFFFF], np.uint32))[0]) ^ int(parts[0])
    return _finish(_of_bytes(text[each * count :].tobytes(), begun))


def unmask(stored: int) -> int:
    """The checksum that a masked one stands for."""
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
    """The matrix [32 columns] that carries a state over `count` bytes of zeros."""
    if count == 1:
        units = np.uint32(1) << np.arange(32, dtype=np.uint32)
        carried: Words = _table()[units & 0xFF] ^ (units >> np.uint32(8))
        return carried
    half = _shift(count // 2)
    twice = _times(half, half)
    return _times(_shift(1), twice) if count % 2 else twice


def _times(matrix: Words, states: Words) -> Words:
    """A matrix over two elements, given by its columns, times states [N]."""
    out = np.zeros_like(states)
    for bit in range(32):
        out ^= np.where((states >> np.uint32(bit)) & np.uint32(1), matrix[bit], np.uint32(0))
    return out
