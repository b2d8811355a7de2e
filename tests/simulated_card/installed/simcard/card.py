"""The simulated card as frugan asks it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from frugan.accelerator.base import Accelerator, Event, Stream
from simcard.device import CARDS
from simcard.generator import KIND
from simcard.memory import OWN_WORDS, CardMemory
from simcard.time import Place, Queue, poison


@dataclass(frozen=True)
class CardEvent:
    """A place in a simulated card's queue."""

    place: Place

    def synchronize(self) -> None:
        """See `Event`."""
        CARDS.clock.wait("event", [self.place], implicit=False)

    def __deepcopy__(self, memo: object) -> "CardEvent":
        """It is where it is, whatever is copied around it."""
        return self


@dataclass(frozen=True)
class CardStream:
    """A simulated card's queue."""

    queue: Queue

    def record_event(self) -> Event:
        """See `Stream`."""
        return CardEvent(CARDS.clock.place(self.queue))

    def wait_event(self, event: Event) -> None:
        """See `Stream`."""
        if isinstance(event, CardEvent):
            CARDS.clock.let_wait(self.queue, event.place)

    def __deepcopy__(self, memo: object) -> "CardStream":
        """There are no more queues, whatever is copied around it."""
        return self


@dataclass(frozen=True)
class SimulatedCard(Accelerator):
    """One card."""

    kind: ClassVar[str] = KIND
    is_card: ClassVar[bool] = True
    collectives: ClassVar[str] = "gloo"
    fp32_channels_last: ClassVar[bool] = True  # as on processors, so that both go one way

    @property
    def _memory(self) -> CardMemory:
        return CARDS.memory[self.device.index or 0].settle()

    @classmethod
    def count(cls) -> int:
        """See `Accelerator`."""
        return CARDS.count

    @classmethod
    def current(cls) -> int:
        """See `Accelerator`."""
        return CARDS.current

    def use(self) -> None:
        """See `Accelerator`."""
        CARDS.current = self.device.index

    @property
    def name(self) -> str:
        """See `Accelerator`."""
        return "Simulated card"

    @property
    def capability(self) -> tuple[int, int]:
        """See `Accelerator`."""
        return (8, 6)

    @property
    def uuid(self) -> str:
        """See `Accelerator`."""
        return f"simulated-{self.device.index}"

    @property
    def total_bytes(self) -> int:
        """See `Accelerator`."""
        return self._memory.total_bytes

    @property
    def free_bytes(self) -> int:
        """See `Accelerator`."""
        memory = self._memory
        return memory.total_bytes - memory.context_bytes - memory.allocator.reserved_bytes

    @property
    def live_bytes(self) -> int:
        """See `Accelerator`."""
        return self._memory.allocator.taken_bytes

    @property
    def reserved_bytes(self) -> int:
        """See `Accelerator`."""
        return self._memory.allocator.reserved_bytes

    @property
    def peak_live_bytes(self) -> int:
        """See `Accelerator`."""
        return self._memory.allocator.peak_taken_bytes

    @property
    def peak_bytes(self) -> int:
        """See `Accelerator`."""
        return self._memory.allocator.peak_reserved_bytes

    def reset_peaks(self) -> None:
        """See `Accelerator`."""
        self._memory.reset_peaks()

    @property
    def limit_bytes(self) -> int:
        """See `Accelerator`."""
        return self._memory.limit_bytes

    def limit(self, limit_bytes: int | None) -> None:
        """See `Accelerator`."""
        self._memory.limit(self.total_bytes if limit_bytes is None else limit_bytes)

    def give_back(self) -> None:
        """See `Accelerator`."""
        self._memory.give_back()

    @classmethod
    def is_out_of_memory(cls, message: str) -> bool:
        """See `Accelerator`."""
        return OWN_WORDS in message

    def synchronize(self) -> None:
        """See `Accelerator`."""
        CARDS.clock.wait("device", CARDS.waits_of(self.device.index), implicit=False)

    @property
    def current_stream(self) -> Stream:
        """See `Accelerator`."""
        return CardStream(CARDS.streams[self.device.index])

    def side_stream(self) -> Stream:
        """See `Accelerator`."""
        CARDS.clock.order.watches = True
        return CardStream(CARDS.clock.queue(f"{self.device}/{len(CARDS.clock.queues)}"))

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """See `Accelerator`."""
        assert isinstance(stream, CardStream)
        return self._on(stream.queue)

    @contextmanager
    def _on(self, queue: Queue) -> Iterator[None]:
        index = self.device.index
        before, CARDS.streams[index] = CARDS.streams[index], queue
        try:
            yield
        finally:
            CARDS.streams[index] = before

    def queued_so_far(self) -> Event:
        """See `Accelerator`."""
        return self.current_stream.record_event()

    def refusing_to_wait(self) -> AbstractContextManager[None]:
        """See `Accelerator`."""
        return CARDS.clock.refusing_to_wait()

    def pinned_like(self, like: Tensor) -> Tensor:
        """See `Accelerator`."""
        made = torch.empty_like(like, device="cpu")
        poison(made)
        return CARDS.clock.pinned.add(made)

    def pin(self, tensor: Tensor) -> Tensor:
        """See `Accelerator`."""
        return tensor if CARDS.clock.pinned.has(tensor) else CARDS.clock.pinned.add(tensor.clone())
