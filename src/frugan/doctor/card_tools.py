"""What the self-test asks of a card alone: its memory, a cap on it, and whether the host waits for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from frugan.engine.out_of_memory import release_memory
from frugan.memory.budget import room_bytes


@dataclass
class Taken:
    """Memory that was taken inside `CudaCard.watched`, known at its end.

    Attributes:
        allocated_bytes: most that lived at once.
        reserved_bytes: most that torch's allocator reserved.
        kept_bytes: what it still reserved at the end, for what lives on.
    """

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    kept_bytes: int = 0


@dataclass
class CudaCard:
    """A card, by torch's own counters and switches.

    Attributes:
        device: with its number.
    """

    device: torch.device

    def wait(self) -> None:
        """Wait until all work that was queued is done."""
        torch.cuda.synchronize(self.device)

    def room_bytes(self) -> int:
        """What this process may come to reserve."""
        return room_bytes(self.device)

    @contextmanager
    def watched(self) -> Iterator[Taken]:
        """Watch memory; what is there already does not count."""
        self.wait()
        release_memory(self.device)
        allocated, reserved = torch.cuda.memory_allocated(self.device), torch.cuda.memory_reserved(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        taken = Taken()
        yield taken
        self.wait()
        taken.allocated_bytes = torch.cuda.max_memory_allocated(self.device) - allocated
        taken.reserved_bytes = torch.cuda.max_memory_reserved(self.device) - reserved
        release_memory(self.device)
        taken.kept_bytes = torch.cuda.memory_reserved(self.device) - reserved

    @contextmanager
    def capped(self, more_bytes: int) -> Iterator[None]:
        """Let this process have so much more than it has, and no more; what CUDA itself takes is not counted."""
        self.wait()
        release_memory(self.device)
        whole = torch.cuda.get_device_properties(self.device).total_memory
        before = torch.cuda.get_per_process_memory_fraction(self.device)
        allowed = (torch.cuda.memory_reserved(self.device) + more_bytes) / whole
        torch.cuda.set_per_process_memory_fraction(min(before, allowed), self.device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(before, self.device)

    @contextmanager
    def refusing_to_wait(self) -> Iterator[None]:
        """Let whatever makes the host wait for the card raise RuntimeError."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def tools_of(device: torch.device) -> CudaCard | None:
    """The tools of a device; None: it is no card."""
    return CudaCard(device) if device.type == "cuda" else None
