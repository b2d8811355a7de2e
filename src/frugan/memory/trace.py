"""A trace of memory: every storage that was made and freed, in order, with what it was for and where it was made."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from frugan.memory.allocator import MIB, SMALL_REQUEST_BYTES, Block, CachingAllocator, OutOfBudget, rounded

Category = Literal[
    "parameters", "working weights", "gradients", "optimizer", "averages", "batch", "saved activations", "temporaries"
]

CLOSE, CLOSE_BYTES = 0.003, 4 * MIB
"""How closely the least limit is looked for."""


@dataclass
class Trace:
    """What was made and freed.

    Attributes:
        sizes_bytes: of each storage, in the order in which they were made, rounded.
        categories: of each storage.
        places: where each was made: "phase", or "phase/block".
        events: number of a storage that is made, or -1 - number where it is freed.
    """

    sizes_bytes: list[int] = field(default_factory=list)
    categories: list[Category] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    events: list[int] = field(default_factory=list)

    def make(self, size_bytes: int, category: Category, place: str) -> int:
        """Note a new storage and return its number."""
        number = len(self.sizes_bytes)
        self.sizes_bytes.append(rounded(size_bytes))
        self.categories.append(category)
        self.places.append(place)
        self.events.append(number)
        return number

    def free(self, number: int) -> None:
        """Note that a storage is gone."""
        self.events.append(-1 - number)

    def live_bytes(self) -> Iterator[int]:
        """Bytes that live after each event."""
        live = 0
        for event in self.events:
            live += self.sizes_bytes[event] if event >= 0 else -self.sizes_bytes[-1 - event]
            yield live

    def peak(self, counts: Callable[[str], bool] = lambda _: True) -> "Peak":
        """Where most lived.

        Args:
            counts: place of an allocation -> whether the peak may lie there (that of one phase, say).
        """
        live, most, at = 0, 0, -1
        for number, event in enumerate(self.events):
            if event < 0:
                live -= self.sizes_bytes[-1 - event]
                continue
            live += self.sizes_bytes[event]
            if live > most and counts(self.places[event]):
                most, at = live, number
        if at < 0:
            return Peak(0, "", {})
        held: set[int] = set()
        for event in self.events[: at + 1]:
            if event >= 0:
                held.add(event)
            else:
                held.discard(-1 - event)
        by_category: defaultdict[Category, int] = defaultdict(int)
        for number in held:
            by_category[self.categories[number]] += self.sizes_bytes[number]
        return Peak(most, self.places[self.events[at]], dict(by_category))

    def replay(self, repeats: int = 1, first: int = 0) -> "Replay":
        """What CUDA's allocator would do for it, starting from nothing and without a limit.

        Args:
            repeats: how often the events from number `first` on happen, as a step does; what the fragments of one
                leave no room for, the next one reserves anew.
        """
        allocator = CachingAllocator()
        taken = dict.fromkeys(self.places, 0)
        places = self.places

        def made(number: int) -> None:
            if allocator.taken_bytes > taken[place := places[number]]:
                taken[place] = allocator.taken_bytes

        self._play(allocator, [*self.events[:first], *(self.events[first:] * repeats)], made)
        return Replay(allocator.peak_reserved_bytes, allocator.peak_taken_bytes, allocator.small_reserved_bytes, taken)

    def needed_bytes(self, unlimited: "Replay", repeats: int = 1, first: int = 0) -> int:
        """The least that the allocator must be allowed: at a limit it gives back what it only keeps, and goes on.

        Args:
            unlimited: what it does without one; the segments of small requests, which are few, stay as they are there.
            repeats, first: as for `replay`.
        """
        sizes = self.sizes_bytes
        before, step = (
            [event for event in events if sizes[event if event >= 0 else -1 - event] > SMALL_REQUEST_BYTES]
            for events in (self.events[:first], self.events[first:])
        )
        events = [*before, *(step * repeats)]
        small = unlimited.small_reserved_bytes
        too_little, enough = unlimited.taken_bytes - 1, unlimited.reserved_bytes
        while enough - too_little > max(CLOSE_BYTES, CLOSE * enough):
            tried = (too_little + enough) // 2
            try:
                self._play(CachingAllocator(tried - small), events)
                enough = tried
            except OutOfBudget:
                too_little = tried
        return enough

    def _play(
        self, allocator: CachingAllocator, events: Sequence[int], made: Callable[[int], None] | None = None
    ) -> None:
        """Have an allocator make and free what events say.

        Args:
            made: is told the number of each storage that is made, once it has room.
        """
        sizes_bytes, allocate, free = self.sizes_bytes, allocator.allocate, allocator.free  # a million events a plan
        blocks: dict[int, Block] = {}
        for event in events:
            if event >= 0:
                if sizes_bytes[event]:
                    if event in blocks:  # still there from the round before: only the new one stays
                        free(blocks.pop(event))
                    blocks[event] = allocate(sizes_bytes[event])
                if made is not None:
                    made(event)
            elif -1 - event in blocks:
                free(blocks.pop(-1 - event))


@dataclass(frozen=True)
class Replay:
    """What an allocator did.

    Attributes:
        reserved_bytes: most that it held from the driver.
        taken_bytes: most that it gave out, as split.
        small_reserved_bytes: held in the end for small requests: these segments are hardly ever given back.
        taken_at: place -> most that it had given out when something was allocated there.
    """

    reserved_bytes: int
    taken_bytes: int
    small_reserved_bytes: int
    taken_at: dict[str, int]

    def taken_in(self, phase: str) -> int:
        """Most that it had given out in a phase."""
        return max((taken for place, taken in self.taken_at.items() if place.split("/")[0] == phase), default=0)


@dataclass(frozen=True)
class Peak:
    """The moment at which most lives.

    Attributes:
        size_bytes: then.
        place: what was allocating.
        categories: bytes by what they are for.
    """

    size_bytes: int
    place: str
    categories: dict[Category, int]

    def grown(self, size_bytes: int) -> "Peak":
        """The same with more temporaries."""
        categories = {**self.categories, "temporaries": self.categories.get("temporaries", 0) + size_bytes}
        return Peak(self.size_bytes + size_bytes, self.place, categories) if size_bytes else self
