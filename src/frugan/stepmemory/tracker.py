"""Which tensors live when, by category and place: what a step allocates, as its operations go by."""

import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from frugan.stepmemory.allocator import SMALL_REQUEST_BYTES, Block, CachingAllocator, OutOfBudget, rounded
from frugan.stepmemory.dataless import Dataless
from frugan.stepmemory.work import WorkCounter, tensors_in
from frugan.torch_internals import TorchDispatchMode, running_backward_node, storage_holders, tree_leaves
from frugan.wording import MIB

aten = torch.ops.aten
ADD, ADD_IN_PLACE = aten.add.Tensor, aten.add_.Tensor


class Holders(NamedTuple):
    """How many hold an operation's first operand: its Python object, its tensor and its memory."""

    objects: int
    tensors: int
    memory: int


def holders(args: tuple[Any, ...]) -> Holders:
    """Count who holds the first operand; call it with the arguments as they came, from the mode that was given them."""
    memory = storage_holders(args[0])
    return Holders(sys.getrefcount(args[0]), args[0]._use_count(), memory)


def lone_holders() -> Holders:
    """Return what a mode sees where the engine alone holds a gradient; the numbers depend on the version of torch."""
    seen: list[Holders] = []

    class Look(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is ADD and not torch.is_grad_enabled():
                seen.append(holders(args))
            return func(*args, **(kwargs or {}))

    with torch.enable_grad():
        x = torch.ones(2, requires_grad=True)
        y = x * 1
        z = torch.stack([y * 2, y * 3])
    with Look():
        torch.autograd.grad(z, y, torch.ones(2, 2))
    return seen[0]


def is_made_in_place(args: tuple[Any, ...], held_by: Holders, lone: Holders, first_made_in: int | None) -> bool:
    """Return whether autograd would compute a plain `add`, unscaled and without `out`, in place in its first operand.

    It adds two gradients so when nobody else holds the first one; but not while anything watches its operations, as a
    tracker does. Who watches can tell such a sum from others by who holds its operands, and do what the engine would
    have done.

    Source: the comment on accumulation in `torch/csrc/autograd/input_buffer.cpp` (torch 2.11 to 2.13), and its
    behaviour.

    Args:
        args: its operands.
        held_by: who holds the first of them, as the mode saw it.
        lone: what it sees where only the engine does.
        first_made_in: `running_node` when the first operand's memory was made.
    """
    node = running_backward_node()
    if node is None or torch.is_grad_enabled() or any(more > few for more, few in zip(held_by, lone, strict=True)):
        return False
    a, b = args
    if not isinstance(b, Tensor) or a.dtype != b.dtype or a.shape != b.shape or not _is_dense(a):
        return False
    # Formulas of second derivatives also add tensors that they have just made; those are no sums of gradients.
    return "BackwardBackward" not in node.name() or first_made_in != running_node()


def running_node() -> int | None:
    """Number of the node that backward is at; None: no backward runs."""
    node = running_backward_node()
    return None if node is None else int(node._sequence_nr())


def _is_dense(x: Tensor) -> bool:
    """Whether a tensor fills its memory, each place once."""
    return x.numel() > 0 and sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1 == x.numel()


Category = Literal[
    "parameters", "working weights", "gradients", "optimizer", "averages", "batch", "saved activations", "temporaries"
]

CLOSE, CLOSE_BYTES = 0.003, 4 * MIB
"""How closely the least limit is looked for."""


@dataclass
class Trace:
    """Storages in the order in which they were made and freed."""

    # of each storage, in the order in which they were made, rounded
    sizes_bytes: list[int] = field(default_factory=list)
    categories: list[Category] = field(default_factory=list)  # of each storage
    places: list[str] = field(default_factory=list)  # where each was made: "phase", or "phase/block"
    # number of a storage that is made, or -1 - number where it is freed
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

    def insert(self, size_bytes: int, place: str, begins: int, ends: int) -> None:
        """Note memory that was there from the event of one number to that of another."""
        number = self.make(size_bytes, "temporaries", place)
        self.events[-1:] = []
        self.events.insert(ends, -1 - number)
        self.events.insert(begins, number)

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
        """Return what CUDA's allocator would do for it, starting from nothing and without a limit.

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

        self._play(allocator, self._repeated(repeats, first), made)
        return Replay(allocator.peak_reserved_bytes, allocator.peak_taken_bytes, allocator.small_reserved_bytes, taken)

    def needed_bytes(self, unlimited: "Replay", repeats: int = 1, first: int = 0) -> int:
        """Return the smallest limit at which a step succeeds: at a limit, cached free segments are given back.

        Args:
            unlimited: the replay without a limit; its segments of small requests, which are few, are taken as they are.
            repeats, first: as for `replay`.
        """
        sizes = self.sizes_bytes
        events = [
            event
            for event in self._repeated(repeats, first)
            if sizes[event if event >= 0 else -1 - event] > SMALL_REQUEST_BYTES
        ]
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

    def _repeated(self, repeats: int, first: int) -> list[int]:
        """Return all events, those from number `first` on so often.

        If a step frees an old storage and leaves a new one of the same size (a state's new value), the next repetition
        frees that new one at the same event; of several, the one made last.
        """
        older = {event for event in self.events[:first] if event >= 0}
        begun = self.events[first:]
        gone = [-1 - event for event in begun if event < 0]
        left: dict[int, list[int]] = {}
        for number in sorted({event for event in begun if event >= 0}.difference(gone)):
            left.setdefault(self.sizes_bytes[number], []).append(number)
        places = {
            number: left[size].pop()
            for number in gone
            if number in older and left.get(size := self.sizes_bytes[number])
        }
        again = [-1 - places.get(-1 - event, -1 - event) if event < 0 else event for event in begun]
        return [*self.events[:first], *begun, *(again * (repeats - 1))]

    def _play(
        self, allocator: CachingAllocator, events: Sequence[int], on_made: Callable[[int], None] | None = None
    ) -> None:
        """Have an allocator make and free what events say.

        Args:
            on_made: is told the number of each storage that is made, once it has room.
        """
        sizes_bytes, allocate, free = self.sizes_bytes, allocator.allocate, allocator.free  # a million events a plan
        blocks: dict[int, Block] = {}
        for event in events:
            if event >= 0:
                if sizes_bytes[event]:
                    if event in blocks:  # still there from the round before: only the new one stays
                        free(blocks.pop(event))
                    blocks[event] = allocate(sizes_bytes[event])
                if on_made is not None:
                    on_made(event)
            elif -1 - event in blocks:
                free(blocks.pop(-1 - event))


@dataclass(frozen=True)
class Replay:
    """Most that an allocator held and gave out."""

    reserved_bytes: int  # most that it held from the driver
    taken_bytes: int  # most that it gave out, as split
    small_reserved_bytes: int  # held in the end for small requests: these segments are hardly ever given back
    taken_at: dict[str, int]  # place -> most that it had given out when something was allocated there

    def taken_in(self, phase: str) -> int:
        """Most that it had given out in a phase."""
        return max((taken for place, taken in self.taken_at.items() if place.split("/")[0] == phase), default=0)


@dataclass(frozen=True)
class Peak:
    """The moment at which most lives."""

    size_bytes: int  # then
    place: str  # what was allocating
    categories: dict[Category, int]  # bytes by what they are for


class Tracker(TorchDispatchMode):
    """Traces all storages that live, from `with` on: each that an operation makes, until it is freed.

    Works on real tensors and on ones without data, so that one code measures and predicts. What a device library takes
    by itself (workspaces of convolutions) is unseen.

    Args:
        existing: tensors that are there already, by what they are for.
        counter: is given every operation; within the same mode, which is faster than in one of its own.
        dataless: runs operations on tensors without data; None: torch does, on real ones.

    Attributes:
        trace: so far.
        place: where allocations are made now; whoever runs the work sets it.
        live_bytes: now.
        peak_bytes: most so far.
    """

    def __init__(
        self,
        existing: Mapping[Category, Iterable[Tensor]] | None = None,
        counter: WorkCounter | None = None,
        dataless: Dataless | None = None,
    ) -> None:
        super().__init__()
        self._counter = counter
        self._dataless = dataless
        self.trace = Trace()
        self.place = "before"
        self.live_bytes = 0
        self.peak_bytes = 0
        self._lone = lone_holders()
        self._made_in: dict[int | None, int | None] = {}  # number of a storage -> node that made it in a backward
        self._elsewhere = False
        self._ignored: list[torch.UntypedStorage] = []  # alive, so that no other storage takes their identity
        self._ignored_ids: set[int] = set()
        self._known: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        for category, tensors in (existing or {}).items():
            for tensor in tensors:
                self._add(tensor, category)
        self._given = len(self.trace.sizes_bytes)  # what these are for is known

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; torch would import its compiler to make sure

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note what it made."""
        kwargs = kwargs or {}
        if func is ADD and not kwargs and not torch.is_grad_enabled():
            held_by = holders(args)
            if is_made_in_place(args, held_by, self._lone, self._made_in.get(self._number(args[0].untyped_storage()))):
                func = ADD_IN_PLACE
        if self._dataless is None:
            out = func(*args, **kwargs)
            for tensor in tensors_in(out):
                self._add(tensor, "temporaries")
            if self._counter is not None:
                self._counter.count(func, args, kwargs, out)
            return out
        out, known = self._dataless.run(func, args, kwargs)
        for tensor in (out,) if isinstance(out, Tensor) else tensors_in(out):
            self._add(tensor, "temporaries")
        if known is not None and self._counter is not None:
            if known.cost is None:
                known.cost = self._counter.cost_of(func, args, kwargs, out)
            self._counter.add(known.cost)
        return out

    def ignore(self, tensors: Iterable[Tensor]) -> None:
        """Leave out what lies elsewhere: averages in host memory, when a card is asked about."""
        storages = [tensor.untyped_storage() for tensor in tensors]
        self._ignored += storages
        self._ignored_ids |= {id(storage) for storage in storages}

    def ignores(self, tensor: Tensor) -> bool:
        """Whether a tensor lies elsewhere."""
        return id(tensor.untyped_storage()) in self._ignored_ids

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Leave out whatever is made inside."""
        before, self._elsewhere = self._elsewhere, True
        try:
            yield
        finally:
            self._elsewhere = before

    def mark(self, category: Category, tensors: Iterable[Tensor], *, again: bool = False) -> None:
        """Say what tensors are for; those made before `with` are left alone.

        Args:
            again: also those that were marked as something else already.
        """
        for tensor in tensors:
            number = self._number(tensor.untyped_storage())
            if (
                number is not None
                and number >= self._given
                and (again or self.trace.categories[number] == "temporaries")
            ):
                self.trace.categories[number] = category

    def repeat(self, tensors: Iterable[Tensor], times: int) -> int:
        """Record so many copies of these tensors' memory, freed together with it; return the bytes of one copy."""
        own_bytes = 0
        for storage in {id(storage): storage for storage in (tensor.untyped_storage() for tensor in tensors)}.values():
            if (number := self._number(storage)) is not None:
                category = self.trace.categories[number]
                own_bytes += self.trace.sizes_bytes[number]
                numbers = [self.trace.make(storage.nbytes(), category, self.place) for _ in range(times)]
                self._live(sum(self.trace.sizes_bytes[number] for number in numbers))
                weakref.finalize(storage, self._free, numbers).atexit = False
        return own_bytes

    def _free(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.live_bytes -= self.trace.sizes_bytes[number]
            self.trace.free(number)

    @contextmanager
    def saved(self) -> Iterator[None]:
        """Mark what autograd saves for backward while the block runs."""

        def pack(tensor: Tensor) -> Tensor:
            self.mark("saved activations", [tensor])
            # An operation that saves its own result would hold itself: its memory would outlive backward.
            return tensor.detach()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def _number(self, storage: torch.UntypedStorage) -> int | None:
        known = self._known.get(id(storage))
        return known[1] if known is not None and known[0]() is storage else None

    def _add(self, tensor: Tensor, category: Category) -> None:
        storage = tensor.untyped_storage()
        if id(storage) in self._ignored_ids or self._number(storage) is not None:
            return
        if self._elsewhere:
            self.ignore([tensor])
            return
        key = id(storage)
        number = self.trace.make(storage.nbytes(), category, self.place)
        if not torch.is_grad_enabled() and (node := running_node()) is not None:
            self._made_in[number] = node

        def freed(_: object) -> None:
            self._free((number,))
            self._known.pop(key, None)

        self._known[key] = (weakref.ref(storage, freed), number)
        self._live(self.trace.sizes_bytes[number])

    def _live(self, more_bytes: int) -> None:
        self.live_bytes += more_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def tensors_of(tree: object) -> list[Tensor]:
    """Tensors in a tree of any kind."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
