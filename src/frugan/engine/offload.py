"""What recomputed blocks are given, kept in host memory between forward and backward.

A step that recomputes its blocks keeps little else, and each tensor is needed once: its way to the host and back is the
price. Copies are queued on the stream that computes, so that nobody waits for them but the card itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from frugan.engine.host_state import host_like

SMALLEST_BYTES = 1 << 20
"""What is smaller stays: class embeddings and other conditions are not worth a copy."""


class HostCopies:
    """Sends tensors to host memory, and brings them back."""

    def send(self, tensor: Tensor) -> Tensor:
        """A copy in host memory, pinned beside a card; the host does not wait for it."""
        return host_like(tensor, "what recomputed blocks are given").copy_(tensor, non_blocking=True)

    def bring(self, there: Tensor, device: torch.device) -> Tensor:
        """A copy of what was sent, on its device again, also where host and device are one."""
        return torch.empty_like(there, device=device, pin_memory=False).copy_(there, non_blocking=True)

    def is_worth_it(self, tensor: Tensor) -> bool:
        """Whether a tensor is large enough to go."""
        return tensor.nbytes >= SMALLEST_BYTES

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """What autograd keeps of what is called inside goes to the host, if it is large and no weight."""

        def pack(tensor: Tensor) -> tuple[Tensor, torch.device | None]:
            kept = tensor.detach()  # the tensor itself would keep its graph
            if isinstance(tensor, nn.Parameter) or not self.is_worth_it(tensor):
                return kept, None
            return self.send(kept), tensor.device

        def unpack(packed: tuple[Tensor, torch.device | None]) -> Any:
            kept, device = packed
            return kept if device is None else self.bring(kept, device)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
