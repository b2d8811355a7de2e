"""Which work of a simulated card is sure to come after which: by a queue's order, an event that was waited for, or the
host.

What a card computes is done at once here, so a queue that ought to wait for another one would find everything ready.
Each access to memory is therefore held against the accesses of other queues, as CUDA's own sanitizer does: one of two
that touch the same bytes writes, and nothing says which comes first? Then it is a race, whoever wins it today.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import RLock

VectorClock = dict[str, int]
"""Queue -> how much of its work is sure to be done."""


class Race(RuntimeError):
    """Two queues touch the same memory, one of them writes, and nothing orders them."""


@dataclass(frozen=True)
class Access:
    """One operation's use of a piece of memory."""

    queue: str
    number: int  # of the queue's operations
    span: range  # bytes
    writes: bool
    what: str  # the operation


def later(a: VectorClock, b: Mapping[str, int]) -> None:
    """Let a clock know what another one knows."""
    for name, number in b.items():
        a[name] = max(a.get(name, 0), number)


@dataclass
class Order:
    """Clocks of all queues and of the host, and who touched which memory last.

    A backward's thread lets go of what it held while the next phase has begun, so two threads come here at once.
    """

    numbers: VectorClock = field(default_factory=lambda: defaultdict(int))  # operations given to each queue
    known: dict[str, VectorClock] = field(
        default_factory=lambda: defaultdict(dict)
    )  # queue -> what its next work comes after
    host: VectorClock = field(default_factory=dict)  # what the host has seen to be done
    watches: bool = False  # there is a second queue: until then everything is in order
    _touched: dict[int, list[Access]] = field(default_factory=lambda: defaultdict(list))  # by memory
    _lock: RLock = field(default_factory=RLock)

    def event(self, queue: str) -> VectorClock:
        """What is done when an event behind a queue's work is reached."""
        with self._lock:
            done = {**self.known[queue]}
            later(done, self.host)
            return done | {queue: self.numbers[queue]}

    def learns(self, queue: str, clock: Mapping[str, int]) -> None:
        """What a queue is given from now on comes after what a clock says."""
        with self._lock:
            later(self.known[queue], clock)

    def begins(self, queue: str) -> int:
        """Give a queue an operation; its number."""
        with self._lock:
            self.numbers[queue] += 1
            later(self.known[queue], self.host)
            return self.numbers[queue]

    def touches(self, memory: int, span: range, queue: str, what: str, *, writes: bool) -> None:
        """Note that the latest operation of a queue reads or writes.

        Args:
            memory: which storage.
            span: its bytes.

        Raises:
            Race: another queue's operation does so too, and is not sure to come before.
        """
        if not self.watches:
            return
        with self._lock:
            kept = []
            for before in self._touched[memory]:
                if before.span.start >= span.stop or span.start >= before.span.stop:
                    kept.append(before)
                    continue
                if (writes or before.writes) and not self._comes_before(before, queue):
                    does, did = ("writes" if each else "reads" for each in (writes, before.writes))
                    raise Race(
                        f"{what} on {queue} {does} memory that {before.what} on {before.queue} {did}, and nothing says "
                        "which comes first; let one queue wait for an event of the other"
                    )
                covered = span.start <= before.span.start and before.span.stop <= span.stop
                if not (covered and (writes or (before.queue == queue and not before.writes))):
                    kept.append(before)
            self._touched[memory] = [*kept, Access(queue, self.numbers[queue], span, writes, what)]

    def frees(self, memory: int, owner: str) -> str | None:
        """Memory is given back, and the next work of the queue that it was taken for may have it.

        Returns:
            Why that is too early; None: it is not.
        """
        with self._lock:
            before_it = self._touched.pop(memory, [])
        for before in before_it:
            if before.queue != owner and not self._comes_before(before, owner):
                return (
                    f"memory of {owner} was freed before {before.what} on {before.queue} was sure to be done with it; "
                    "keep it until one queue has waited for the other"
                )
        return None

    def forgets(self, memory: int) -> None:
        """Host memory is gone: it is given out again once all that was queued with it is done."""
        self._touched.pop(memory, None)

    def _comes_before(self, access: Access, queue: str) -> bool:
        known = max(self.known[queue].get(access.queue, 0), self.host.get(access.queue, 0))
        return access.queue == queue or access.number <= known
