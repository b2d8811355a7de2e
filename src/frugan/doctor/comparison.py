"""How far apart two small trainings are."""

import math
from collections.abc import Mapping

from torch import Tensor

Tensors = Mapping[str, Tensor]
"""Everything that a training moves, on the host, as `Trial.tensors` names it."""


def or_infinite(difference: float) -> float:
    """NaN is infinitely far from everything; in a maximum it would go unseen."""
    return math.inf if math.isnan(difference) else difference


def largest_difference(one: Tensors, other: Tensors) -> tuple[float, str]:
    """Largest absolute difference between two sets of tensors, and where it is; what is missing is infinitely far."""
    if one.keys() != other.keys():
        return math.inf, ", ".join(sorted(one.keys() ^ other.keys())[:3])
    return max((or_infinite(float((one[name].double() - other[name].double()).abs().max())), name) for name in one)


EVERYTHING = "everything"


def movement_apart(start: Tensors, one: Tensors, other: Tensors) -> dict[str, float]:
    """Distance between what two trainings have become, as a share of how far the first one has moved from its start.

    Returns:
        Of each network, average and optimizer as a whole, for an element that barely moves is mostly rounding; and of
        the weights of all networks together, as "everything".
    """
    parts: dict[str, list[str]] = {EVERYTHING: []}
    for name in one:
        if one[name].is_floating_point():
            part = name.partition(".")[0]
            parts.setdefault(part, []).append(name)
            if " " not in part:  # a network
                parts[EVERYTHING].append(name)
    shares = {}
    for part, names in parts.items():
        apart, moved = (
            sum(float((a[name].double() - b[name].double()).square().sum()) for name in names)
            for a, b in ((one, other), (one, start))
        )
        shares[part] = 0.0 if apart == 0 else or_infinite(math.sqrt(apart / moved)) if moved else math.inf
    return shares
