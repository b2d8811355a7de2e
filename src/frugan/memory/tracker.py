"""Follows memory while anything runs: every storage that an operation makes, until it is freed.

Works on real tensors and on fake ones, which have shapes but no data, so that one code measures and predicts. What a
device library takes by itself (workspaces of convolutions) is unseen.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.memory.counting import tensors_in
from frugan.memory.dataless import Dataless
from frugan.memory.gradient_sums import ADD, ADD_IN_PLACE, holders, is_made_in_place, lone_holders, running_node
from frugan.memory.trace import Category, Trace
from frugan.memory.work import WorkCounter


class Tracker(TorchDispatchMode):
    """Traces all storages that live, from `with` on.

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
            found = holders(args)
            if is_made_in_place(args, found, self._lone, self._made_in.get(self._number(args[0].untyped_storage()))):
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

    def count(self, cost: tuple[int, int, int]) -> None:
        """Count work that no operation here does: bytes moved, multiply-accumulates, and those on fp32 numbers."""
        if self._counter is not None:
            self._counter.add(cost)

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
        self._elsewhere = True
        try:
            yield
        finally:
            self._elsewhere = False

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
        size_bytes = self.trace.sizes_bytes[number]
        if not torch.is_grad_enabled() and (node := running_node()) is not None:
            self._made_in[number] = node

        def freed(_: object) -> None:
            self.live_bytes -= size_bytes
            self.trace.free(number)
            self._known.pop(key, None)

        self._known[key] = (weakref.ref(storage, freed), number)
        self.live_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
