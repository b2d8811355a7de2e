"""A model of torch's caching allocator for CUDA: what it reserves on a card for a sequence of allocations.

More than what lives is reserved: sizes are rounded, memory comes from the driver in segments, segments are cut up, and
a piece that is too small for the next request waits for a smaller one.

Source: the constants and the policy (best fit, splitting, merging of free neighbours, release of wholly free segments
when memory runs out) as PyTorch documents them in "Memory management" of its notes on CUDA and shows them in
torch's own snapshots, of torch 2.11 to 2.13 with its default settings.
"""

import os
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from frugan.wording import MIB

ROUND_BYTES = 512
"""Requests are rounded up to this."""
SMALL_REQUEST_BYTES = MIB
"""Requests up to this size come from the pool of small segments."""
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
OWN_SEGMENT_BYTES = 10 * MIB
"""Requests from this size on get a segment of their own size."""
ROUND_SEGMENT_BYTES = 2 * MIB


SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables by which torch's allocator is set otherwise (expandable segments, CUDA's own pool); the second is older."""


def not_modelled(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the settings of torch's allocator that this model does not have; None: there are none."""
    return ", ".join(f"{name}={environment[name]}" for name in SETTINGS if environment.get(name)) or None


def rounded(size_bytes: int) -> int:
    """A request as it is given out."""
    return -(-size_bytes // ROUND_BYTES) * ROUND_BYTES


class OutOfBudget(Exception):
    """The modelled card has no room for a request."""


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment."""

    size_bytes: int  # of the piece
    address: int  # in a space in which no two segments touch
    small: bool  # of the pool of small requests
    taken: bool = True  # whether it is in use
    # before, after: its neighbours in the segment
    before: "Block | None" = None
    after: "Block | None" = None


@dataclass
class CachingAllocator:
    """Gives out blocks as torch's allocator does.

    Args:
        budget_bytes: what may be reserved; None: without end.
    """

    budget_bytes: int | None = None
    reserved_bytes: int = 0  # held from the driver now
    peak_reserved_bytes: int = 0  # most so far
    taken_bytes: int = 0  # given out now, as split
    peak_taken_bytes: int = 0  # most so far
    small_reserved_bytes: int = 0  # of the segments that small requests come from
    _free: dict[bool, list[tuple[int, int, Block]]] = field(default_factory=lambda: {True: [], False: []})
    """Size, address and block: best fit takes the smallest that is large enough, of those the lowest."""
    _next_address: int = 0

    def allocate(self, request_bytes: int) -> Block:
        """Give out a block of at least `request_bytes`.

        Raises:
            OutOfBudget: the budget is full, free segments given back included.
            ValueError: nothing is asked for: torch takes no memory for an empty tensor.
        """
        if request_bytes <= 0:
            raise ValueError(f"request of {request_bytes} bytes: expected at least one")
        size_bytes = request_bytes if request_bytes % ROUND_BYTES == 0 else rounded(request_bytes)
        small = size_bytes <= SMALL_REQUEST_BYTES
        pool = self._free[small]
        at = bisect_left(pool, (size_bytes,))  # best fit
        block = pool.pop(at)[2] if at < len(pool) else self._new_segment(size_bytes, small)
        rest_bytes = block.size_bytes - size_bytes
        if rest_bytes >= ROUND_BYTES if small else rest_bytes > SMALL_REQUEST_BYTES:
            self._split(block, size_bytes)
        block.taken = True
        self.taken_bytes += block.size_bytes
        self.peak_taken_bytes = max(self.peak_taken_bytes, self.taken_bytes)
        return block

    def free(self, block: Block) -> None:
        """Take a block back, and merge it with free neighbours."""
        if not block.taken:
            raise ValueError("the block is free already")
        block.taken = False
        self.taken_bytes -= block.size_bytes
        if block.after is not None and not block.after.taken:
            self._forget(block.after)
            self._absorb(block, block.after)
        if block.before is not None and not block.before.taken:
            before = block.before
            self._forget(before)
            self._absorb(before, block)
            block = before
        insort(self._free[block.small], (block.size_bytes, block.address, block))

    def release_free_segments(self) -> None:
        """Give wholly free segments back to the driver, as torch does before it gives up."""
        for pool in self._free.values():
            for entry in list(pool):
                block = entry[2]
                if block.before is None and block.after is None:
                    pool.remove(entry)
                    self._hold(-block.size_bytes, block.small)

    def _new_segment(self, size_bytes: int, small: bool) -> Block:
        segment_bytes = segment_size(size_bytes)
        if self._is_full(segment_bytes):
            self.release_free_segments()
            if self._is_full(segment_bytes):
                raise OutOfBudget(
                    f"{segment_bytes:,} more bytes on {self.reserved_bytes:,} reserved ones, of {self.budget_bytes:,}"
                )
        self._hold(segment_bytes, small)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        block = Block(segment_bytes, self._next_address, small)
        self._next_address += segment_bytes + 1  # a gap: blocks of two segments are no neighbours
        return block

    def _hold(self, more_bytes: int, small: bool) -> None:
        self.reserved_bytes += more_bytes
        self.small_reserved_bytes += more_bytes if small else 0

    def _is_full(self, segment_bytes: int) -> bool:
        return self.budget_bytes is not None and self.reserved_bytes + segment_bytes > self.budget_bytes

    def _split(self, block: Block, size_bytes: int) -> None:
        rest = Block(block.size_bytes - size_bytes, block.address + size_bytes, block.small, False, block, block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size_bytes = rest, size_bytes
        insort(self._free[block.small], (rest.size_bytes, rest.address, rest))

    def _forget(self, block: Block) -> None:
        pool = self._free[block.small]
        at = bisect_left(pool, (block.size_bytes, block.address))
        del pool[at]

    @staticmethod
    def _absorb(block: Block, after: Block) -> None:
        block.size_bytes += after.size_bytes
        block.after = after.after
        if after.after is not None:
            after.after.before = block


def segment_size(size_bytes: int) -> int:
    """Return the bytes taken from the driver for a rounded request that no free block fits."""
    if size_bytes <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size_bytes // ROUND_SEGMENT_BYTES) * ROUND_SEGMENT_BYTES
