"""Copies that a verdict on the device may hold back, of many small tensors in four operations."""

from collections.abc import Sequence

import torch
from torch import Tensor


def copy_where(accepted: Tensor | None, targets: Sequence[Tensor], values: Tensor) -> None:
    """Copy values into tensors where accepted (a bool scalar on the device; None: always).

    Args:
        targets: of one dtype, on one device.
        values: for all of them, one after the other [numbers]; those that are not accepted are not even multiplied.
    """
    if accepted is not None:
        values = torch.where(accepted, values, flat(targets))
    parts = values.split([target.numel() for target in targets])
    torch._foreach_copy_(list(targets), [part.view(to.shape) for part, to in zip(parts, targets, strict=True)])


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Elements of many tensors, one after the other [numbers]."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
