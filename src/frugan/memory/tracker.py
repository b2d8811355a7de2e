"""Follows live bytes while anything runs: every storage that an operation makes, until it is freed.

Works on real tensors and on fake ones, which have shapes but no data, so that one code measures and predicts. What a
device library takes by itself (workspaces of convolutions) is unseen.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROUND_BYTES = 512
"""CUDA's caching allocator gives out multiples of this."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that live, from `with` on.

    Args:
        existing: tensors that are there already.
        at_allocation: call `on_allocation` when this allocation (counted from 0) has been made.
        on_allocation: see above; is given this object.

    Attributes:
        live_bytes: now.
        peak_bytes: most so far.
        peak_allocation: number of the allocation that made the peak.
        allocations: made so far.
    """

    def __init__(
        self,
        existing: Iterable[torch.Tensor] = (),
        at_allocation: int = -1,
        on_allocation: Callable[["LiveBytes"], None] | None = None,
    ) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self.peak_allocation = 0
        self.allocations = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._at, self._on = at_allocation, on_allocation
        for tensor in existing:
            self._add(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it made."""
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return out

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        known = self._known.get(key)
        if known is not None and known() is storage:
            return
        size_bytes = -(-storage.nbytes() // ROUND_BYTES) * ROUND_BYTES

        def freed(_: object) -> None:
            self.live_bytes -= size_bytes
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, freed)
        self.live_bytes += size_bytes
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_allocation = self.live_bytes, self.allocations
        if self.allocations == self._at and self._on is not None:
            self._on(self)
        self.allocations += 1


def storages_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages behind tensors, each counted once, rounded as the allocator does."""
    storages = {id(s): s for s in (tensor.untyped_storage() for tensor in tensors)}
    return sum(-(-s.nbytes() // ROUND_BYTES) * ROUND_BYTES for s in storages.values())
