"""The answer to "does it fit": a plan, what it takes by category and phase, and why it was chosen."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from frugan.api.plan.together import Together
from frugan.memory.cards import TIME_ERROR, Card
from frugan.memory.savers import SaverName
from frugan.memory.search import Choice
from frugan.memory.sizes import GIB, MIB


def needed_size(size_bytes: int) -> str:
    """A size for people that is enough when it is typed back: rounded up, never down."""
    return f"{math.ceil(size_bytes / GIB * 100) / 100:.2f}GiB" if size_bytes >= GIB else f"{-(-size_bytes // MIB)}MiB"


@dataclass(frozen=True)
class Rung:
    """One plan and what it costs.

    Attributes:
        micro_batch: samples in one forward.
        accumulation: forwards for one update.
        savers: savings that it uses.
        peak_bytes: on the card in all: what the allocator reserves, CUDA's context and its libraries' workspaces.
        host_bytes: most that it keeps in the host's memory: averages, optimizer state, what blocks are given.
        extra_compute: multiply-accumulates beyond those without recompute, as a share.
        extra_time: predicted time beyond the fastest plan's, as a share.
        step_seconds: predicted, within `frugan.memory.cards.TIME_ERROR`.
    """

    micro_batch: int
    accumulation: int
    savers: tuple[SaverName, ...]
    peak_bytes: int
    host_bytes: int
    extra_compute: float
    extra_time: float
    step_seconds: float


@dataclass(frozen=True)
class PlanReport:
    """The answer to "does it fit".

    Attributes:
        recipe: its name.
        fits: whether a plan fits the budget; without a budget always.
        budget_bytes: on the card in all; None: no budget.
        rung: the plan chosen, or the smallest there is where none fits.
        choice: the same for the engine.
        categories: bytes on the card at the peak, by what they are for; they add up to `peak_bytes`.
        by_phase: phase -> peak of what lives, without context and libraries.
        place: phase and block in which the peak falls; the stage of training if there are several.
        precision, batch, normalisation_batch: as trained.
        share: samples of a batch that the card sees: all of them, where it trains alone.
        card: what it is for, and whether its figures were measured.
        decisions: a line for each choice: why, and how to override it.
        ladder: plans from the fastest to the smallest, where no budget was given.
        nearest_change: recipe fields with which it would fit, where it does not.
        shows_given: whether samples are made of given data, such as faces, and not drawn from random inputs.
        duration_seconds: predicted for the recipe's whole training, or its own where it is given as a time; None: the
            card's speed is not known, or there is no end.
        together: what several cards cost that share every batch; the rest is then of the one with the least room. None:
            one card, or no budget.
    """

    recipe: str
    fits: bool
    budget_bytes: int | None
    rung: Rung
    choice: Choice
    categories: Mapping[str, int]
    by_phase: Mapping[str, int]
    place: str
    precision: str
    batch: int
    share: int
    normalisation_batch: int | None
    card: Card
    decisions: tuple[str, ...]
    shows_given: bool = False
    ladder: tuple[Rung, ...] = ()
    nearest_change: tuple[str, ...] | None = None
    duration_seconds: float | None = None
    together: Together | None = None

    @property
    def peak_bytes(self) -> int:
        """Predicted peak on the card."""
        return self.rung.peak_bytes

    @property
    def micro_batch(self) -> int:
        """Samples in one forward."""
        return self.rung.micro_batch

    @property
    def accumulation(self) -> int:
        """Forwards for one update."""
        return self.rung.accumulation

    @property
    def savers(self) -> tuple[SaverName, ...]:
        """Savings used."""
        return self.rung.savers

    @property
    def extra_compute(self) -> float:
        """Multiply-accumulates beyond those without recompute, as a share."""
        return self.rung.extra_compute

    @property
    def time_error(self) -> float:
        """Share by which a predicted time may be off."""
        return TIME_ERROR

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        return {
            "recipe": self.recipe,
            "fits": self.fits,
            "budget_bytes": self.budget_bytes,
            **asdict(self.rung),
            "categories": dict(self.categories),
            "by_phase": dict(self.by_phase),
            "place": self.place,
            "precision": self.precision,
            "batch": self.batch,
            "share": self.share,
            "normalisation_batch": self.normalisation_batch,
            "card": {"name": self.card.name, "source": self.card.source, "memory_bytes": self.card.memory_bytes},
            "decisions": list(self.decisions),
            "ladder": [asdict(rung) for rung in self.ladder],
            "smallest_bytes": None if self.fits else self.peak_bytes,
            "nearest_change": None if self.nearest_change is None else list(self.nearest_change),
            "duration_seconds": self.duration_seconds,
            "time_error": self.time_error,
            "together": None if self.together is None else self.together.as_json(),
            "plan": self.choice.plan.as_json(),
        }
