"""The architecture string of the original, such as "df-ud", the patch size, and the sizes that follow from them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

# The architecture string of the original, such as "df-ud", and the sizes that follow from it.

LETTERS = "udtc"

_FORM = re.compile(rf"^(df|liae)(?:-([{LETTERS}]+))?$")


@dataclass(frozen=True)
class Archi:
    """Which parts the networks are made of."""

    # "df": one code, a decoder for each side. "liae": two codes, one decoder.
    kind: Literal["df", "liae"]
    normalised: bool = False  # letter u, the encoder's output has unit root mean square
    doubled: bool = False  # letter d, the networks work on half the resolution and the heads double it
    deeper: bool = False  # letter t, one more level and residual blocks in the encoder
    cosine: bool = False  # letter c, activations are x·cos(x) instead of leaky ReLU

    @classmethod
    def parse(cls, text: str) -> "Archi":
        """Read "df", "liae-ud", "df-udtc" ...

        Raises:
            ValueError: another type or letter, or a letter twice.
        """
        match = _FORM.match(text)
        letters = (match.group(2) or "") if match else ""
        if not match or len(set(letters)) != len(letters):
            raise ValueError(
                f"archi {text!r}: expected df or liae, then perhaps a dash and some of the letters u, d, t, c, "
                "each once, such as df-ud or liae-udt"
            )
        kind: Literal["df", "liae"] = "df" if match.group(1) == "df" else "liae"
        return cls(kind, "u" in letters, "d" in letters, "t" in letters, "c" in letters)

    @property
    def multiple(self) -> int:
        """What the resolution must be a multiple of."""
        return 32 if self.doubled or self.deeper else 16

    def encoded_side(self, resolution: int) -> int:
        """Side of the encoder's last map in pixels."""
        return resolution // (32 if self.deeper else 16)

    def dense_side(self, resolution: int) -> int:
        """Side of the map that the second dense layer makes."""
        return resolution // (32 if self.doubled else 16)

    def code_side(self, resolution: int) -> int:
        """Side of the code that a decoder takes."""
        return self.dense_side(resolution) * (1 if self.deeper else 2)

    def nearest_resolution(self, resolution: int, least: int, most: int) -> int:
        """The valid resolution nearest to one that is not."""
        return min(most, max(least, round(resolution / self.multiple) * self.multiple))


# Which stack of 3x3 convolutions looks at patches of a wanted size.

MOST_LAYERS = 9


@dataclass(frozen=True)
class Stack:
    """Strides of a stack of 3x3 convolutions."""

    strides: tuple[int, ...]  # of each layer, 1 or 2

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
    known = stacks()
    fitting = (p for p in range(least, most + 1) if resolution % _nearest(known, p).total_stride == 0)
    return min(fitting, key=lambda p: (abs(p - patch), p))


def _nearest(known: Mapping[int, Stack], patch: int) -> Stack:
    return known[min(known, key=lambda field: (abs(field - patch), field))]
