"""Tensors that belong to a parameter and live in host memory: made there, brought beside it, and sent back."""

import warnings

import torch
from torch import Tensor


def zeros_for(parameter: Tensor, *, on_host: bool) -> Tensor:
    """A statistic of a parameter before its first update, in its layout; pinned where a card will copy it."""
    like = parameter.detach()
    if not on_host:
        return torch.zeros_like(like)
    return host_like(parameter, "optimizer state").zero_()


def host_like(tensor: Tensor, what: str) -> Tensor:
    """Host memory for a copy of a tensor, in its layout; pinned beside a card, as far as the system lets.

    Args:
        what: it is for, in the warning where nothing more can be pinned.
    """
    like = tensor.detach()
    if tensor.is_cuda:
        try:
            return torch.empty_like(like, device="cpu", pin_memory=True)
        except RuntimeError as error:  # systems limit how much may be pinned
            warnings.warn(
                f"no more host memory can be pinned ({str(error).partition(chr(10))[0]}): {what} lies in pageable "
                "memory, and its way to the card takes about twice as long",
                stacklevel=3,
            )
    return torch.empty_like(like, device="cpu")


def beside(kept: Tensor, parameter: Tensor) -> Tensor:
    """A copy on a parameter's device, also where host and device are one; the host does not wait for it."""
    return torch.empty_like(kept, device=parameter.device, pin_memory=False).copy_(kept, non_blocking=True)
