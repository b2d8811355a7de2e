"""The architecture string of the original, such as "df-ud", and the sizes that follow from it."""

import re
from dataclasses import dataclass
from typing import Literal

LETTERS = "udtc"

_FORM = re.compile(rf"^(df|liae)(?:-([{LETTERS}]+))?$")


@dataclass(frozen=True)
class Archi:
    """Which parts the networks are made of.

    Attributes:
        kind: "df": one code, a decoder for each side. "liae": two codes, one decoder.
        normalised: letter u, the encoder's output has unit root mean square.
        doubled: letter d, the networks work on half the resolution and the heads double it.
        deeper: letter t, one more level and residual blocks in the encoder.
        cosine: letter c, activations are x·cos(x) instead of leaky ReLU.
    """

    kind: Literal["df", "liae"]
    normalised: bool = False
    doubled: bool = False
    deeper: bool = False
    cosine: bool = False

    @classmethod
    def parse(cls, text: str) -> "Archi":
        """Read "df", "liae-ud", "df-udtc" ...

        Raises:
            ValueError: another type or letter, or a letter twice.
        """
        found = _FORM.match(text)
        letters = (found.group(2) or "") if found else ""
        if not found or len(set(letters)) != len(letters):
            raise ValueError(
                f"archi {text!r}: expected df or liae, then perhaps a dash and some of the letters u, d, t, c, "
                "each once, such as df-ud or liae-udt"
            )
        kind: Literal["df", "liae"] = "df" if found.group(1) == "df" else "liae"
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
