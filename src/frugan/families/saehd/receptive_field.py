"""Which stack of 3x3 convolutions looks at patches of a wanted size."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

MOST_LAYERS = 9


@dataclass(frozen=True)
class Stack:
    """Strides of a stack of 3x3 convolutions.

    Attributes:
        strides: of each layer, 1 or 2.
    """

    strides: tuple[int, ...]

    @property
    def receptive_field(self) -> int:
        """Side of the patch that one value of the last map depends on, in pixels."""
        field, step = 3, 1
        for stride in self.strides[:-1]:
            step *= stride
            field += 2 * step
        return field

    @property
    def total_stride(self) -> int:
        """Pixels per value of the last map."""
        total = 1
        for stride in self.strides:
            total *= stride
        return total


@cache
def stacks() -> Mapping[int, Stack]:
    """The stack for each receptive field that 1 to 9 layers can have: fewest layers, then largest strides.

    The first layer has stride 2. Of equals the first one found stays, trying strides of 2 early before late.
    """
    best: dict[int, Stack] = {}
    for layers in range(1, MOST_LAYERS + 1):
        for bits in reversed(range(2 ** (layers - 1))):
            stack = Stack((2, *(2 if bits >> i & 1 else 1 for i in range(layers - 1))))
            known = best.get(stack.receptive_field)
            if known is None or (len(known.strides) == layers and sum(stack.strides) > sum(known.strides)):
                best[stack.receptive_field] = stack
    return MappingProxyType(best)


def stack_for(patch: int) -> Stack:
    """The stack whose receptive field is nearest to `patch` pixels; of two as near the smaller."""
    return _nearest(stacks(), patch)


@cache
def nearest_patch(patch: int, resolution: int, least: int, most: int) -> int:
    """The patch size from `least` to `most` nearest to `patch` whose stack divides `resolution` pixels."""
    found = stacks()
    fitting = (p for p in range(least, most + 1) if resolution % _nearest(found, p).total_stride == 0)
    return min(fitting, key=lambda p: (abs(p - patch), p))


def _nearest(found: Mapping[int, Stack], patch: int) -> Stack:
    return found[min(found, key=lambda field: (abs(field - patch), field))]
