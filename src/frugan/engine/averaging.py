"""How averages move, all tensors of a network in one operation, and only where a verdict on the device says so.

No torch operation on lists takes its weight from the device. Its fused SGD takes a verdict, though: with a weight decay
of 1, and the new values as gradients to climb, a step of rate w gives average - w·(average - value).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from frugan.contract.gated_copy import copy_where, flat

NEXT_TO_ONE = 1 - 2.0**-53
"""The largest number below 1: all its powers are 1, but for the infinite one, which is 0."""


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


def follow_and_subtract(averages: list[Tensor], values: list[Tensor], weight: float, held_back: Tensor) -> None:
    """Move averages towards values by a weight, and leave in the values how far these are from the new averages.

    Momentum is such an average, and a step of rate 1 subtracts it. `held_back` as for `follow`.
    """
    torch._fused_sgd_(
        values,
        values,
        averages,
        weight_decay=0.0,
        momentum=1 - weight,
        lr=1.0,
        dampening=1 - weight,
        nesterov=False,
        maximize=False,
        is_first_step=False,
        grad_scale=None,
        found_inf=held_back,
    )


def descend_by_roots(
    weights: list[Tensor],
    steps: list[Tensor],
    squares: list[Tensor],
    values: list[Tensor],
    decay: float,
    eps: float,
    rate: Tensor,
    held_back: Tensor,
) -> None:
    """squares <- decay·squares + (1 - decay)·values², then weights -= rate·steps/(√squares + eps), in one pass.

    That is Adam without its corrections for the first steps, which are gone after infinitely many, and with first
    moments that are given: they would follow the values by 1e-16 of these, which no sum in fp32 shows.

    Args:
        steps: may be the values themselves.
        rate: fp32 scalar beside the weights.
        held_back: as for `follow`.
    """
    after_many = torch.full((), math.inf, device=rate.device)
    torch._fused_adam_(
        weights,
        values,
        steps,
        squares,
        [],
        [after_many] * len(weights),
        lr=rate,
        beta1=NEXT_TO_ONE,
        beta2=decay,
        weight_decay=0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
        grad_scale=None,
        found_inf=held_back,
    )


def _move(
    weights: list[Tensor],
    changes: list[Tensor],
    rate: float,
    held_back: Tensor,
    decay: float = 0.0,
) -> None:
    """weights += rate·(changes - decay·weights)."""
    torch._fused_sgd_(
        weights,
        changes,
        [],
        weight_decay=decay,
        momentum=0.0,
        lr=rate,
        dampening=0.0,
        nesterov=False,
        maximize=True,
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
