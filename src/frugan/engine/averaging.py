"""How averages move, all tensors of a network in one operation, and only where a verdict on the device says so.

No torch operation on lists takes its weight from the device. Its fused SGD takes a verdict, though: with a weight decay
of 1, and the new values as gradients to climb, a step of rate w gives average - w·(average - value).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from frugan.contract.gated_copy import copy_where, flat


def follow(averages: Sequence[Tensor], values: Sequence[Tensor], weight: float, held_back: Tensor) -> None:
    """Move averages towards values by a weight from 0 to 1, at 1 to exactly these.

    Args:
        averages, values: floating point.
        held_back: scalar beside the averages; where 1, they stay, where 0, they move.
    """
    alike: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for average, value in zip(averages, values, strict=True):
        if average.stride() == value.stride() and average.dtype == value.dtype:
            found = alike.setdefault((average.dtype, average.device), ([], []))
            found[0].append(average)
            found[1].append(value)
        else:
            average.lerp_(value.to(average.dtype), ((1 - held_back) * weight).to(average.dtype))
    for old, new in alike.values():
        if weight < 1:
            _move(old, new, weight, held_back, decay=1.0)
        else:
            _move(old, old, -1.0, held_back)  # 0, and then what is new: neither rounds
            _move(old, new, 1.0, held_back)


def descend(weights: list[Tensor], changes: list[Tensor], rate: Tensor, held_back: Tensor) -> None:
    """weights -= rate·changes; the rate is an fp32 scalar beside them. `held_back` as for `follow`."""
    _move(weights, changes, rate, held_back, climb=False)


def _move(
    weights: list[Tensor],
    changes: list[Tensor],
    rate: float | Tensor,
    held_back: Tensor,
    decay: float = 0.0,
    *,
    climb: bool = True,
) -> None:
    """weights += rate·(changes - decay·weights), or the other way."""
    torch._fused_sgd_(
        weights,
        changes,
        [],
        weight_decay=decay,
        momentum=0.0,
        lr=rate,
        dampening=0.0,
        nesterov=False,
        maximize=climb,
        is_first_step=False,
        grad_scale=None,
        found_inf=held_back,
    )


def copy_accepted(targets: Sequence[Tensor], values: Sequence[Tensor], accepted: Tensor) -> None:
    """Copy values of any dtype where accepted."""
    alike: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, value in zip(targets, values, strict=True):
        found = alike.setdefault(target.dtype, ([], []))
        found[0].append(target)
        found[1].append(value.to(target.dtype))
    for old, new in alike.values():
        copy_where(accepted, old, flat(new))
