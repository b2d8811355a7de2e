"""A card that is none: memory by the tracker, and refusals as CUDA's, on a processor."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.doctor.cards import CardTools, MeasuredMemory
from planning.ceiling import Ceiling


class Impatient(TorchDispatchMode):
    """Refuses to look at a value, in CUDA's words."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten._local_scalar_dense:
            raise RuntimeError("called a synchronizing CUDA operation")
        return func(*args, **(kwargs or {}))


@dataclass
class MadeUpCard(CardTools):
    """Answers what a card is asked."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    takes: float = 1.0  # factor on what is taken
    room: int = 2**40  # bytes
    waited: int = 0  # times that it was waited for

    def wait(self) -> None:
        self.waited += 1

    def room_bytes(self) -> int:
        return self.room

    @contextmanager
    def watched(self) -> Iterator[MeasuredMemory]:
        taken = MeasuredMemory()
        with Ceiling(2**60, []) as tracker:
            yield taken
            taken.allocated_bytes = taken.reserved_bytes = int(tracker.peak_bytes * self.takes)
            taken.kept_bytes = tracker.live_bytes

    @contextmanager
    def capped(self, more_bytes: int) -> Iterator[None]:
        with Ceiling(more_bytes, []):
            yield

    @contextmanager
    def refusing_to_wait(self) -> Iterator[None]:
        with Impatient():
            yield
