"""A simulated card's memory: each storage takes a block by the rules of torch's allocator, until nobody holds it."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from frugan.stepmemory.allocator import Block, CachingAllocator, OutOfBudget, rounded
from simcard.order import Race

CONTEXT_BYTES = 300 * 2**20
"""What is gone of a card as soon as a program uses it."""
COPY = "aten::_local_scalar_dense"
"""No kernel does it."""
OWN_WORDS = "simulated card out of memory"


def refused_numbers(text: str | None) -> range:
    """Numbers of the allocations that are refused: "7" or "7:3"; None: none."""
    first, _, count = (text or "0:0").partition(":")
    return range(int(first), int(first) + int(count or 1))


@dataclass(eq=False)
class CardMemory:
    """What one card has."""

    index: int
    total_bytes: int
    refused: range = range(0)  # numbers of the allocations, from 1, at which memory runs out
    frees: Callable[[int, str], str | None] = lambda memory, owner: None  # told of what is freed; says what is wrong
    allocations: int = 0  # so far, refused ones among them
    kernel_bytes: int = 0  # that the context grows by with each kind of operation, when it is first done
    limit_bytes: int = 0
    live_bytes: int = 0  # rounded as they are given out
    peak_live_bytes: int = 0

    def __post_init__(self) -> None:
        """Nothing is held yet."""
        self._kernels: set[str] = set()
        self.allocator = CachingAllocator(self.total_bytes - self.context_bytes)
        self.limit_bytes = self.total_bytes
        self._blocks: dict[int, tuple[Block, int, weakref.ref[torch.UntypedStorage]]] = {}
        self._freed: deque[int] = deque()
        self._lock = threading.RLock()  # the backward of a card runs on a thread of its own

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a processor's tensor lies in memory that was taken from this card."""
        block = self._blocks.get(tensor.untyped_storage()._cdata)
        return block is not None and block[2]() is not None

    @property
    def context_bytes(self) -> int:
        """What is gone of the card besides what its allocator has."""
        return CONTEXT_BYTES + self.kernel_bytes * len(self._kernels)

    def load(self, kernel: str) -> None:
        """Load what an operation is done by, when it is first done."""
        if self.kernel_bytes and kernel not in self._kernels and kernel != COPY:
            self._kernels.add(kernel)
            self.limit(self.limit_bytes)

    @property
    def queue(self) -> str:
        """The queue that memory is taken for, and that has it again when it is free: the card's own."""
        return f"simcard:{self.index}"

    def take(self, tensor: torch.Tensor) -> None:
        """Give out a block for a tensor's storage, until it dies.

        Raises:
            OutOfMemoryError: the limit is passed, or this allocation is to be refused.
        """
        storage = tensor.untyped_storage()
        size_bytes = storage.nbytes()
        with self._lock:
            self._forget_the_dead()
            key = storage._cdata
            if not size_bytes or key in self._blocks:
                return
            self.allocations += 1
            try:
                if self.allocations in self.refused:
                    raise OutOfBudget(f"allocation {self.allocations} is refused")
                block = self.allocator.allocate(size_bytes)
            except OutOfBudget as error:
                raise torch.OutOfMemoryError(
                    f"{OWN_WORDS}: tried to allocate {size_bytes:,} bytes on simcard:{self.index} ({error})"
                ) from None
            freed = self._freed
            self._blocks[key] = block, rounded(size_bytes), weakref.ref(storage, lambda _: freed.append(key))
            self.live_bytes += rounded(size_bytes)
            self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)

    def _forget_the_dead(self) -> None:
        """Take blocks back whose storages died: they say so at any moment, this one included."""
        while self._freed:
            key = self._freed.popleft()
            block, size_bytes, _ = self._blocks.pop(key)
            self.allocator.free(block)
            self.live_bytes -= size_bytes
            if fault := self.frees(key, self.queue):
                raise Race(fault)

    def settle(self) -> "CardMemory":
        """Return it as it is now."""
        with self._lock:
            self._forget_the_dead()
        return self

    def limit(self, limit_bytes: int) -> None:
        """Let no more be reserved."""
        self.limit_bytes = min(limit_bytes, self.total_bytes)
        self.allocator.budget_bytes = min(self.limit_bytes, self.total_bytes - self.context_bytes)

    def reset_peaks(self) -> None:
        """Forget peaks before now."""
        self.settle()
        self.peak_live_bytes = self.live_bytes
        self.allocator.peak_reserved_bytes = self.allocator.reserved_bytes
        self.allocator.peak_taken_bytes = self.allocator.taken_bytes

    def give_back(self) -> None:
        """Give free segments back to the driver."""
        self.settle()
        self.allocator.release_free_segments()
