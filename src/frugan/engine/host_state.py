"""Tensors that belong to a parameter and live in host memory: made there, brought beside it, and sent back."""

import torch
from torch import Tensor


def zeros_for(parameter: Tensor, *, on_host: bool) -> Tensor:
    """A statistic of a parameter before its first update, in its layout; pinned where a card will copy it."""
    like = parameter.detach()
    if not on_host:
        return torch.zeros_like(like)
    return torch.zeros_like(like, device="cpu", pin_memory=parameter.is_cuda)


def beside(kept: Tensor, parameter: Tensor) -> Tensor:
    """A copy on a parameter's device, also where host and device are one; the host does not wait for it."""
    return torch.empty_like(kept, device=parameter.device, pin_memory=False).copy_(kept, non_blocking=True)
