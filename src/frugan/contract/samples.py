"""What a grid of samples shall show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from frugan.contract.styles import Noise, StyleMixing


class Previews(Protocol):
    """Where a sheet takes given pictures from."""

    def preview(self, source: str, count: int) -> Mapping[str, Tensor]:
        """The same few pictures each time."""


@dataclass(frozen=True)
class SheetRequest:
    """What a sheet of samples shall show; a family may ignore what it has no use for.

    Attributes:
        seed: of its random inputs.
        classes: class of each row; None: the family's own choice.
        columns: pictures per row.
        truncation: standard deviation of the latents (1: as trained).
        psi: where styles lie between the mean one (0) and their own (1); below 0 on the mean's other side.
        psi_layers: how many of the first layers psi holds for; None: all.
        interpolate: "class", "latent" or "both": rows become interpolations.
        spherical: latents go along a great circle, and not along a straight line.
        rows: rows of an interpolation.
        micro_batch: samples in one forward.
        noise: what layers add; of `Styled` families alone, like psi and the next two.
        seeds: numbers of latents, as NVlabs' programs count them: a column for each, or with `interpolate` the stations
            that a row goes by.
        mixing: a grid of mixed styles, with the pictures that they come from above it and to its left.
        pictures: source -> name -> tensor [rows, ...], for a family that shows what it makes of given pictures.
        masked: show pictures through their masks.
        titles: names of the columns; none: they need none.
    """

    seed: int = 0
    classes: Sequence[int] | None = None
    columns: int = 10
    truncation: float = 1.0
    psi: float = 1.0
    psi_layers: int | None = None
    interpolate: Literal["class", "latent", "both"] | None = None
    spherical: bool = False
    rows: int = 10
    micro_batch: int = 16
    noise: Noise = "const"
    seeds: Sequence[int] = ()
    mixing: StyleMixing | None = None
    pictures: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    masked: bool = False
    titles: tuple[str, ...] = ()
