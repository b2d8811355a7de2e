"""What a request may ask of families whose pictures are made of styles, one for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

Noise = Literal["const", "random", "none"]
"""What layers add: their own noise, the same for every picture; another for each; or nothing."""


@dataclass(frozen=True)
class StyleMixing:
    """A grid of pictures that take the styles of some layers from others.

    Attributes:
        rows, columns: numbers of latents, as `SheetRequest.seeds` counts them: a row and a column for each.
        layers: whose styles are the column's, counted from 0; the others' are the row's.
    """

    rows: Sequence[int]
    columns: Sequence[int]
    layers: Sequence[int]


@runtime_checkable
class Styled(Protocol):
    """A family whose generator has a mapping network, from latents to styles."""

    def styles(self, networks: Any) -> int:
        """How many layers take a style."""
