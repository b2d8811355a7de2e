"""How many tensors share few pieces of pinned host memory.

Torch rounds every pinned allocation up to a power of two, to use it again: 640 MiB take 1 GiB (torch 2.13,
`ATen/core/CachingHostAllocator.h`; a setting that lifts it is younger than the oldest torch we run on). So tensors are
packed into blocks whose sizes are powers of two already, each filled as well as it can be. A single block for all of
them would be rounded up in its turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT_BYTES = 512
"""Where tensors begin: as in torch's allocator on cards."""
SMALLEST_BLOCK_BYTES = 1 << 20
"""What is left over in the end goes into one block of this size or the next."""


@dataclass(frozen=True)
class PackedBlock:
    """One allocation.

    Attributes:
        size_bytes: of it.
        numbers: of the tensors in it.
        firsts: byte at which each of them begins.
    """

    size_bytes: int
    numbers: tuple[int, ...]
    firsts: tuple[int, ...]


def pack(sizes_bytes: Sequence[int], *, powers_of_two: bool) -> list[PackedBlock]:
    """Blocks that hold tensors of the given sizes.

    Args:
        powers_of_two: sizes of blocks, so that nothing rounds them up; False: one block without waste.
    """
    waiting = sorted(range(len(sizes_bytes)), key=lambda i: -sizes_bytes[i])
    if not powers_of_two:
        return [_filled(sum(map(_aligned, sizes_bytes)), waiting, sizes_bytes)] if waiting else []
    blocks = []
    while waiting:
        rest = sum(_aligned(sizes_bytes[i]) for i in waiting)
        size, most = _power(_aligned(sizes_bytes[waiting[0]])), _power(rest)
        candidates = []
        while True:
            candidates.append(_filled(size, waiting, sizes_bytes))
            if size >= most:
                break
            size *= 2
        best = max(candidates, key=lambda block: (_used(block, sizes_bytes) / block.size_bytes, block.size_bytes))
        blocks.append(best)
        inside = set(best.numbers)
        waiting = [i for i in waiting if i not in inside]
    return blocks


def pinned_bytes(sizes_bytes: Sequence[int]) -> int:
    """What the blocks for tensors of the given sizes take in pinned memory."""
    return sum(block.size_bytes for block in pack(sizes_bytes, powers_of_two=True))


def rounded_bytes(size_bytes: int) -> int:
    """What a single pinned allocation takes."""
    return 1 << (size_bytes - 1).bit_length() if size_bytes else 0


def _filled(size_bytes: int, waiting: Sequence[int], sizes_bytes: Sequence[int]) -> PackedBlock:
    """A block with the first of the waiting tensors that find room in it, largest first."""
    numbers, firsts, first = [], [], 0
    for i in waiting:
        if first + _aligned(sizes_bytes[i]) <= size_bytes:
            numbers.append(i)
            firsts.append(first)
            first += _aligned(sizes_bytes[i])
    return PackedBlock(size_bytes, tuple(numbers), tuple(firsts))


def _used(block: PackedBlock, sizes_bytes: Sequence[int]) -> int:
    return sum(sizes_bytes[i] for i in block.numbers)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _power(size_bytes: int) -> int:
    return max(SMALLEST_BLOCK_BYTES, rounded_bytes(size_bytes))
