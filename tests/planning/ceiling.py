"""A card of a set size on a CPU: raises what CUDA raises when more would live."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from frugan.stepmemory.tracker import Tracker


class Ceiling(Tracker):
    """Follows memory, and refuses an operation after which more lives than there is room for.

    Args:
        limit_bytes: room.
        existing: tensors that are there already.
    """

    def __init__(self, limit_bytes: int, existing: Iterable[Tensor]) -> None:
        super().__init__({"parameters": existing})
        self.limit_bytes = limit_bytes
        self.refused = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self.live_bytes > self.limit_bytes:
            self.refused += 1
            raise torch.OutOfMemoryError(f"room for {self.limit_bytes:,} bytes, {self.live_bytes:,} would live")
        return out
