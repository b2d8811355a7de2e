"""A memory budget on a card: how it divides, how it is kept, and what is free."""

import platform
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from frugan.errors import BadInput
from frugan.memory.cards import Card
from frugan.memory.sizes import MIB, show_size

MARGIN = 0.05
"""Share of what is free that is left alone: a desktop's windows come and go."""
LEAST_MARGIN_BYTES = 200 * MIB


@dataclass(frozen=True)
class Budget:
    """Memory of a card for one process.

    Attributes:
        total_bytes: for everything.
        context_bytes: of it, outside torch's allocator.
        workspace_bytes: of it, for libraries within torch's allocator.
    """

    total_bytes: int
    context_bytes: int
    workspace_bytes: int

    @classmethod
    def on(cls, card: Card, total_bytes: int) -> "Budget":
        """A budget on a card."""
        return cls(total_bytes, card.context_bytes, card.workspace_bytes)

    @property
    def step_bytes(self) -> int:
        """What a step's own tensors may make the allocator reserve."""
        return self.total_bytes - self.context_bytes - self.workspace_bytes

    def check(self, parameter_bytes: int) -> None:
        """Refuse a budget in which nothing can be trained.

        Raises:
            BadInput: the fp32 parameters alone do not fit.
        """
        if self.step_bytes < parameter_bytes:
            raise BadInput(
                f"a budget of {show_size(self.total_bytes)}: the parameters alone take {show_size(parameter_bytes)}, "
                f"CUDA and its libraries {show_size(self.context_bytes + self.workspace_bytes)}, and training several "
                "times as much; without --memory you are shown what it takes, down to the smallest plan"
            )

    def enforce(self, device: torch.device) -> None:
        """Cap this process on a CUDA card: what would go beyond fails here and leaves other programs alone.

        The cap counts what torch's allocator reserves, not the context, so that is taken off.
        """
        whole = torch.cuda.get_device_properties(device).total_memory
        share = (self.total_bytes - self.context_bytes) / whole
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)


def free_bytes(device: torch.device) -> tuple[int, int]:
    """What a process may plan with on a CUDA card by default, and what the card has in all.

    What is free now, and what this process's allocator holds without use, less a margin. CUDA's context and the
    libraries of a training step are loaded first: they take their memory when they are first used.
    """
    load_libraries(device)
    free, whole = torch.cuda.mem_get_info(device)
    own = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    usable = free + own
    return usable - max(LEAST_MARGIN_BYTES, int(MARGIN * usable)), whole


def room_bytes(device: torch.device) -> int:
    """What the allocator of this process may come to reserve on a CUDA card: what it has, and what is free."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)


def load_libraries(device: torch.device) -> None:
    """Run a convolution and a product, forward and backward, and give back what they took from the allocator."""
    x = torch.zeros(1, 8, 8, 8, device=device, requires_grad=True)
    out = F.conv2d(x, torch.zeros(8, 8, 3, 3, device=device), padding=1).flatten(1) @ torch.zeros(512, 8, device=device)
    out.sum().backward()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def is_spilling(device: torch.device) -> bool:
    """Whether the driver has begun to move a full card's memory to the system's, as it does on Windows: slow."""
    if device.type != "cuda" or platform.system() != "Windows":
        return False
    free, whole = torch.cuda.mem_get_info(device)
    return free < 0.01 * whole
