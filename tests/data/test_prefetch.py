"""Reading ahead changes the time, never the result."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frugan.accelerator.cuda import Cuda
from frugan.data.batches import Batches, Prefetcher
from frugan.data.formats.picture_set import PictureSet

MakeSet = Callable[..., PictureSet]
Request = tuple[int, int]


class Recording(Batches):
    """Batches that note what is read, and fail from a position on."""

    def __init__(self, picture_set: PictureSet, fail_from: int | None = None) -> None:
        super().__init__(picture_set, seed=0, name="images", flip=True)
        self.read: list[Request] = []
        self.fail_from = fail_from

    def take(self, position: int, count: int) -> dict[str, torch.Tensor]:
        self.read.append((position, count))
        if self.fail_from is not None and position >= self.fail_from:
            raise OSError("the disk is gone")
        return super().take(position, count)


@pytest.fixture
def recording(picture_set: MakeSet) -> Recording:
    """Make recording batches of ten pictures."""
    return Recording(picture_set(10))


def same(batch: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return batch.keys() == expected.keys() and all(torch.equal(batch[key], expected[key]) for key in batch)


@settings(max_examples=30)
@given(
    requests=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=12),
    depth=st.integers(0, 4),
)
def test_results_are_those_without_it(requests: list[Request], depth: int) -> None:
    pictures = np.arange(7 * 3 * 2, dtype=np.uint8).reshape(7, 3, 1, 2)
    batches = Batches(PictureSet(pictures, np.arange(7), ("x",), True, ""), seed=0, name="images", flip=True)
    with Prefetcher(batches, depth=depth) as prefetcher:
        for request in requests:
            assert same(prefetcher.take(*request), batches.take(*request))


def settle(recording: Recording, reads: int) -> None:
    """Wait until so many reads have begun."""
    until = time.monotonic() + 5
    while len(recording.read) < reads and time.monotonic() < until:
        time.sleep(0.001)


def test_even_requests_are_foreseen_and_read_once(recording: Recording) -> None:
    with Prefetcher(recording, depth=2) as prefetcher:
        for step in range(6):
            prefetcher.take(4 * step, 4)
        settle(recording, 8)
    assert recording.read == [(4 * step, 4) for step in range(8)]


def test_the_stride_of_several_ranks_is_learned(recording: Recording) -> None:
    with Prefetcher(recording, depth=1) as prefetcher:
        for step in range(5):
            prefetcher.take(2 + 8 * step, 2)
    assert {(10, 2), (18, 2), (26, 2), (34, 2)} <= set(recording.read)
    assert recording.read.count((26, 2)) == 1


def test_no_more_than_depth_is_held(recording: Recording) -> None:
    with Prefetcher(recording, depth=3) as prefetcher:
        prefetcher.take(0, 1)
        settle(recording, 4)
        time.sleep(0.02)
        assert len(recording.read) == 4


def test_errors_reach_the_caller_at_their_batch(picture_set: MakeSet) -> None:
    with Prefetcher(Recording(picture_set(10), fail_from=8)) as prefetcher:
        prefetcher.take(0, 4)
        prefetcher.take(4, 4)
        with pytest.raises(OSError, match="the disk is gone"):
            prefetcher.take(8, 4)
        assert len(prefetcher.take(0, 4)["labels"]) == 4


def test_its_thread_ends_with_it(recording: Recording) -> None:
    with Prefetcher(recording) as prefetcher:
        prefetcher.take(0, 4)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("frugan-prefetch")]
    with pytest.raises(RuntimeError, match="after shutdown"):
        prefetcher.take(0, 4)


def test_pinned_memory_where_there_is_a_gpu(recording: Recording) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    with Prefetcher(recording, pinning=Cuda(torch.device("cuda", 0))) as prefetcher:
        assert prefetcher.take(0, 4)["pictures"].is_pinned()


def test_the_thread_that_pins_has_the_cards_number(recording: Recording) -> None:
    """Page-locked memory is of a thread's current card, and each thread begins with the first."""
    current = threading.local()
    seen: list[int] = []

    class Second:
        def use(self) -> None:
            current.card = 1

        def pin(self, tensor: torch.Tensor) -> torch.Tensor:
            seen.append(getattr(current, "card", 0))
            return tensor

    with Prefetcher(recording, pinning=Second()) as prefetcher:
        prefetcher.take(0, 4)
    assert set(seen) == {1}
    assert not hasattr(current, "card")  # of the thread that asks


def test_pictures_that_cannot_be_pinned_go_from_pageable_memory_and_it_is_said_once(
    recording: Recording, said: list[str]
) -> None:
    """WSL2 lets little be pinned and calls it "out of memory": it must not be taken for the card's."""
    attempts: list[int] = []

    class Refusing:
        def use(self) -> None:
            pass

        def pin(self, tensor: torch.Tensor) -> torch.Tensor:
            attempts.append(len(tensor))
            raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")

    with Prefetcher(recording, pinning=Refusing(), say=said.append) as prefetcher:
        for first in (0, 4):
            assert len(prefetcher.take(first, 4)["labels"]) == 4
    assert len(said) == 1
    assert "pageable memory" in said[0]
    assert "(CUDA error: out of memory)" in said[0]
    assert attempts == [4]
