"""When a simulated card's copies are done: what it computes is done at once, what it copies as late as is allowed.

A copy to pinned memory leaves its destination full of NaN until somebody waits for it; a copy from pinned memory looks
again, when somebody waits for it, whether its source is what it was when the copy was queued. So a missing wait, and
host memory that is filled again too early, show every time.
"""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from simcard.order import Order, VectorClock, later

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
STAGED_BYTES = 64 * 1024
"""A copy from pageable memory up to this size is taken over by the driver at once; of a larger one, the host waits."""


class TooEarly(RuntimeError):
    """The host touched memory that a card was not done with."""


def bits(tensor: Tensor) -> Tensor:
    """A tensor's own memory, as integers."""
    return tensor.view(INTEGERS[tensor.element_size()])


def poison(tensor: Tensor) -> None:
    """Fill it with what is NaN in all floating-point types, and -1 in all others."""
    bits(tensor).fill_(-1)


def is_poison(tensor: Tensor) -> bool:
    """Whether nobody wrote to it since."""
    return bool((bits(tensor) == -1).all())


class PinnedMemory:
    """Which host storages a card copies to and from by itself."""

    def __init__(self, gone: Callable[[int], None]) -> None:
        """None yet.

        Args:
            gone: is told of one that died, by its address.
        """
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._gone = gone

    def add(self, tensor: Tensor) -> Tensor:
        """Pin a tensor's storage until it dies."""
        storage = tensor.untyped_storage()
        if key := storage.data_ptr():
            storages, gone = self._storages, self._gone

            def died(one: weakref.ref[torch.UntypedStorage]) -> None:
                if storages.get(key) is one:
                    del storages[key]
                    gone(key)

            storages[key] = weakref.ref(storage, died)
        return tensor

    def has(self, tensor: Tensor) -> bool:
        """Whether it lies in pinned memory."""
        found = self._storages.get(tensor.untyped_storage().data_ptr())
        return found is not None and found() is not None


def span(tensor: Tensor) -> range:
    """Addresses that a tensor lies at, from its first byte to its last."""
    if not tensor.numel():
        return range(0)
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return range(tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size())


def overlap(a: range, b: range) -> bool:
    """Whether two pieces of memory have a byte in common."""
    return max(a.start, b.start) < min(a.stop, b.stop)


@dataclass(eq=False)
class ToHost:
    """A copy from the card to pinned memory, queued and not yet seen."""

    there: Tensor  # in pinned memory, full of NaN
    value: Tensor

    def finish(self) -> None:
        """Let it be done."""
        self.look()
        self.there.copy_(self.value)

    def look(self) -> None:
        """Look whether the host has kept away."""
        if not is_poison(self.there):
            raise TooEarly(
                f"the host wrote to pinned memory {tuple(self.there.shape)} {self.there.dtype} before a copy from the "
                "card had arrived there; wait for its event first"
            )


@dataclass(eq=False)
class FromHost:
    """A copy from pinned memory to the card, queued and not yet seen to be done."""

    there: Tensor  # in pinned memory
    value: Tensor  # what the card was given

    def finish(self) -> None:
        """Look whether its source is still what the card was to read."""
        if not torch.equal(bits(self.there), bits(self.value)):
            raise TooEarly(
                f"pinned memory {tuple(self.there.shape)} {self.there.dtype} was filled again before the card had "
                "copied from it; wait for an event behind the copy first"
            )


@dataclass(eq=False)
class Queue:
    """A stream: copies in their order, and other queues' events that it waits for."""

    name: str
    waiting: list["ToHost | FromHost | Place"] = field(default_factory=list)
    done: int = 0  # of all that were ever queued

    def add(self, work: "ToHost | FromHost | Place") -> None:
        """Queue it."""
        self.waiting.append(work)

    def finish(self, until: int) -> None:
        """Do all that was queued before a place."""
        while self.waiting and self.done < until:
            self.done += 1
            work = self.waiting.pop(0)
            work.finish()


@dataclass(frozen=True, eq=False)
class Place:
    """An event."""

    queue: Queue
    number: int
    clock: VectorClock  # what is done when it is reached

    def finish(self) -> None:
        """Do all that stands before it."""
        self.queue.finish(self.number)


class Clock:
    """All queues of a process's cards."""

    def __init__(self, *, latest: bool) -> None:
        """Nothing is queued.

        Args:
            latest: whether copies are done when somebody waits for them; False: at once.
        """
        self.latest = latest
        self.waits: Counter[str] = Counter()  # of the host, by what made it wait
        self.refusing = False
        self.order = Order()
        self.pinned = PinnedMemory(self.order.forgets)
        self.queues: list[Queue] = []
        self._lock = threading.RLock()

    def queue(self, name: str) -> Queue:
        """Make another one."""
        self.queues.append(Queue(name))
        return self.queues[-1]

    def place(self, queue: Queue) -> Place:
        """Behind all that a queue was given so far."""
        return Place(queue, queue.done + len(queue.waiting), self.order.event(queue.name))

    def let_wait(self, queue: Queue, place: Place) -> None:
        """Let a queue go on only when an event of another one is reached."""
        queue.add(place)
        self.order.learns(queue.name, place.clock)

    @contextmanager
    def refusing_to_wait(self) -> Iterator[None]:
        """Inside, an operation for which the host would wait raises."""
        before, self.refusing = self.refusing, True
        try:
            yield
        finally:
            self.refusing = before

    def wait(self, why: str, places: Sequence[Place], *, implicit: bool = True) -> None:
        """Let the host wait.

        Args:
            why: an operation's name, or what was waited for.
            implicit: whether it is an operation's doing, not asked for by name.
        """
        if implicit and self.refusing:
            raise RuntimeError(f"{why} makes the host wait for a simulated card")
        self.waits[why] += 1
        with self._lock:
            for place in places:
                place.finish()
                later(self.order.host, place.clock)

    def to_host(self, there: Tensor, value: Tensor, queue: Queue) -> None:
        """Queue a copy to pinned memory."""
        with self._lock:
            self._touched(there, queue, "a copy to the host", writes=True)
            if not self.latest:
                there.copy_(value)
                return
            self._overwritten(there)
            poison(there)
            queue.add(ToHost(there.detach(), value))

    def from_host(self, there: Tensor, queue: Queue) -> Tensor:
        """Queue a copy from pinned memory, and return what the card reads when its turn comes: a copy."""
        with self._lock:
            self._touched(there, queue, "a copy to the card", writes=False)
            value = self._in_order(there)
            if self.latest:
                queue.add(FromHost(there.detach(), value))
            return value

    def _touched(self, there: Tensor, queue: Queue, what: str, *, writes: bool) -> None:
        """A queue's latest operation reads or writes host memory, which the host has kept away from."""
        self.order.touches(there.untyped_storage().data_ptr(), span(there), queue.name, what, writes=writes)

    def _in_order(self, there: Tensor) -> Tensor:
        """What is in host memory once all copies that were queued are done."""
        here = span(there)
        on_its_way = [work for work in self._queued() if isinstance(work, ToHost) and overlap(span(work.there), here)]
        if not on_its_way:
            return there.clone()
        last = on_its_way[-1]
        if span(last.there) == here and last.there.stride() == there.stride() and last.there.dtype == there.dtype:
            return last.value.clone()
        memory = torch.empty(0, dtype=torch.uint8).set_(there.untyped_storage())
        then = memory.clone()
        for work in on_its_way:
            shape, stride, first = work.there.shape, work.there.stride(), work.there.storage_offset()
            then.view(work.there.dtype).as_strided(shape, stride, first).copy_(work.value)
        return then.view(there.dtype).as_strided(there.shape, there.stride(), there.storage_offset()).clone()

    def _overwritten(self, there: Tensor) -> None:
        """The card is to write where it was to write, or to read, before: that is in order, if the host kept away.

        Nobody sees the former any more: the host cannot tell when it is there and not yet overwritten.
        """
        here = span(there)
        for queue in self.queues:
            kept: list[ToHost | FromHost | Place] = []
            for work in queue.waiting:
                if isinstance(work, Place) or not overlap(span(work.there), here):
                    kept.append(work)
                    continue
                if isinstance(work, ToHost):
                    work.look()
                elif not is_poison(work.there):  # by a copy to it that is to be seen yet
                    work.finish()
                kept.append(_NOTHING)
            queue.waiting = kept

    def _queued(self) -> list["ToHost | FromHost | Place"]:
        return [work for queue in self.queues for work in queue.waiting]


_NOTHING = Place(Queue("nothing"), 0, {})
