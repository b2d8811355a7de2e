"""The model of torch's caching allocator, against its documented behaviour by hand and by its invariants."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frugan.stepmemory.allocator import Block, CachingAllocator, OutOfBudget
from frugan.wording import MIB


def test_small_requests_share_segments_of_two_mib() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(n) for n in (1, 512, 513, MIB)]
    assert [b.size_bytes for b in blocks] == [512, 512, 1024, MIB]
    assert allocator.reserved_bytes == 2 * MIB
    assert allocator.taken_bytes == 2048 + MIB
    allocator.allocate(MIB)  # what is left of the segment is less
    assert allocator.reserved_bytes == 4 * MIB


@pytest.mark.parametrize(
    ("request_mib", "reserved_mib", "taken_mib"),
    [(1.5, 20, 1.5), (9.5, 20, 9.5), (10, 10, 10), (11, 12, 12), (19.5, 20, 20), (1024, 1024, 1024)],
)
def test_large_requests(request_mib: float, reserved_mib: float, taken_mib: float) -> None:
    """Up to 10 MiB out of segments of 20; above, a segment of its own, rounded to 2 MiB; rests up to 1 MiB stay."""
    allocator = CachingAllocator()
    allocator.allocate(int(request_mib * MIB))
    assert (allocator.reserved_bytes / MIB, allocator.taken_bytes / MIB) == (reserved_mib, taken_mib)


def test_best_fit_splits_and_merges() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(100 * MIB), allocator.allocate(40 * MIB)
    allocator.free(large)
    allocator.free(small)
    kept = allocator.allocate(30 * MIB)  # out of the 40, not of the 100
    whole = allocator.allocate(100 * MIB)
    assert allocator.reserved_bytes == 140 * MIB
    allocator.free(kept)
    allocator.free(whole)
    parts = [allocator.allocate(25 * MIB) for _ in range(4)]  # the first out of the 40, which leaves 15
    assert allocator.reserved_bytes == 140 * MIB
    for part in parts:
        allocator.free(part)
    allocator.allocate(100 * MIB)
    assert allocator.reserved_bytes == 140 * MIB


def test_fragments_are_no_room_for_more() -> None:
    allocator = CachingAllocator()
    first = allocator.allocate(100 * MIB)
    allocator.free(first)
    low, high = allocator.allocate(40 * MIB), allocator.allocate(20 * MIB)
    allocator.free(low)
    allocator.allocate(60 * MIB)  # 80 are free, in two pieces of 40
    assert allocator.reserved_bytes == 160 * MIB
    assert allocator.taken_bytes == 80 * MIB
    assert high.taken


def test_a_budget_gives_free_segments_back_before_it_refuses() -> None:
    allocator = CachingAllocator(budget_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    held = allocator.allocate(80 * MIB)
    assert allocator.reserved_bytes == 80 * MIB
    with pytest.raises(OutOfBudget, match="more bytes on"):
        allocator.allocate(30 * MIB)
    allocator.free(held)
    assert allocator.allocate(100 * MIB).size_bytes == 100 * MIB


def test_what_is_no_request() -> None:
    allocator = CachingAllocator()
    with pytest.raises(ValueError, match="at least one"):
        allocator.allocate(0)
    block = allocator.allocate(1)
    allocator.free(block)
    with pytest.raises(ValueError, match="free already"):
        allocator.free(block)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 64 * MIB), st.integers(0, 10)), max_size=80))
def test_no_two_blocks_overlap_and_all_comes_back(steps: list[tuple[int, int]]) -> None:
    allocator = CachingAllocator()
    held: list[Block] = []
    for request_bytes, frees in steps:
        held.append(allocator.allocate(request_bytes))
        assert held[-1].size_bytes >= request_bytes
        for _ in range(min(frees // 4, len(held))):
            allocator.free(held.pop(frees % len(held)))
        spans = sorted((b.address, b.address + b.size_bytes) for b in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert allocator.taken_bytes == sum(b.size_bytes for b in held) <= allocator.reserved_bytes
    for block in held:
        allocator.free(block)
    allocator.release_free_segments()
    assert (allocator.taken_bytes, allocator.reserved_bytes) == (0, 0)
