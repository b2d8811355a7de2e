"""How averages move, all tensors of a network in one operation, and only where a verdict on the device says so.

No torch operation on lists takes its weight from the device. Its fused SGD takes a verdict, though: with a weight decay
of 1, and the new values as gradients to climb, a step of rate w gives average - w·(average - value).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from frugan.contract.layers import copy_where, flat

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
            _step(old, new, [], held_back, rate=weight, decay=1.0, climb=True)
        else:
            _step(old, old, [], held_back, rate=-1.0, climb=True)  # 0, and then what is new: neither rounds
            _step(old, new, [], held_back, rate=1.0, climb=True)


def follow_and_subtract(averages: list[Tensor], values: list[Tensor], weight: float, held_back: Tensor) -> None:
    """Move averages towards values by a weight, and leave in the values how far these are from the new averages.

    Momentum is such an average, and a step of rate 1 subtracts it. `held_back` as for `follow`.
    """
    _step(values, values, averages, held_back, rate=1.0, momentum=1 - weight)


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


def _step(
    weights: list[Tensor],
    changes: list[Tensor],
    averages: list[Tensor],
    held_back: Tensor,
    *,
    rate: float,
    decay: float = 0.0,
    momentum: float = 0.0,
    climb: bool = False,
) -> None:
    """averages <- momentum·averages + (1 - momentum)·changes; weights -= rate·averages.

    Args:
        averages: empty: the changes themselves count, and weights -= rate·(changes + decay·weights).
        climb: weights += rate·(changes - decay·weights) instead.
    """
    torch._fused_sgd_(
        weights,
        changes,
        averages,
        weight_decay=decay,
        momentum=momentum,
        lr=rate,
        dampening=momentum,
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
