"""The answer to "does it fit": a plan, what it takes by category and phase, and what several cards cost together."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from frugan.planning.candidate import PlanCandidate
from frugan.planning.links import Link, Sum
from frugan.planning.plan_space import SaverName
from frugan.planning.plan_text import report_text
from frugan.recipe.relatives import Largest
from frugan.stepmemory.cards import Card


@dataclass(frozen=True)
class Together:
    """Several cards of one kind that share every batch; all of it predicted."""

    parts: tuple[tuple[int, "PlanReport"], ...]  # how many cards take a part, and the plan of one; in order of ranks
    alone_seconds: float  # of an average step on the whole batch, if one card trained alone
    link: Link  # between any two of them
    sums: tuple[Sum, ...]  # what they add up in an average step of the whole training
    between_seconds: float  # that this takes; nothing travels while a card computes
    batch: int  # of them all

    @property
    def cards(self) -> int:
        """Number of cards."""
        return sum(count for count, _ in self.parts)

    @property
    def slowest_seconds(self) -> float:
        """Seconds that the slowest card computes in an average step; all others wait for it."""
        return max(report.chosen.whole_seconds for _, report in self.parts)

    @property
    def step_seconds(self) -> float:
        """Seconds of an average step."""
        return self.slowest_seconds + self.between_seconds

    @property
    def images_per_second(self) -> float:
        """Speed of all cards together."""
        return self.batch / self.step_seconds

    def idle_share(self, compute_seconds: float) -> float:
        """Return the share of a step that a card waits for the slowest one."""
        return (self.slowest_seconds - compute_seconds) / self.step_seconds

    @property
    def idle(self) -> float:
        """Average of `idle_share` over all cards."""
        waits = (count * self.idle_share(report.chosen.whole_seconds) for count, report in self.parts)
        return sum(waits) / self.cards

    @property
    def efficiency(self) -> float:
        """Speed beside that of as many cards that each train alone, added up."""
        return self.alone_seconds / self.cards / self.step_seconds

    @property
    def summed_bytes(self) -> float:
        """Bytes that are added up in an average step."""
        return sum(phase.updates * phase.size_bytes for phase in self.sums)

    def as_json(self) -> dict[str, Any]:
        """Return all of it for a program to read."""
        return {
            "cards": self.cards,
            "shares": [self._part_json(count, report) for count, report in self.parts],
            "link": asdict(self.link),
            "sums": [asdict(phase) for phase in self.sums],
            "summed_bytes_per_step": self.summed_bytes,
            "sent_bytes_per_step": self.link.sent_bytes(self.summed_bytes, self.cards),
            "compute_seconds": self.slowest_seconds,
            "between_seconds": self.between_seconds,
            "step_seconds": self.step_seconds,
            "images_per_second": self.images_per_second,
            "idle_share": self.idle,
            "efficiency": self.efficiency,
        }

    def _part_json(self, count: int, report: "PlanReport") -> dict[str, Any]:
        compute_seconds = report.chosen.whole_seconds
        return {
            "card": report.card.name,
            "count": count,
            "samples": report.share,
            "micro_batch": report.micro_batch,
            "accumulation": report.accumulation,
            "savers": list(report.savers),
            "peak_bytes": report.peak_bytes,
            "budget_bytes": report.budget_bytes,
            "fits": report.fits,
            "compute_seconds": compute_seconds,
            "alone_seconds": self.alone_seconds,
            "idle_share": self.idle_share(compute_seconds),
        }


@dataclass(frozen=True)
class PlanReport:
    """The answer to "does it fit"; printed, it says what `frugan plan` does."""

    recipe: str  # its name
    fits: bool  # whether a plan fits the budget; without a budget always
    budget_bytes: int | None  # on the card in all; None: no budget
    chosen: PlanCandidate  # the plan, or the smallest there is where none fits
    categories: Mapping[str, int]  # bytes on the card at the peak, by what they are for; they add up to `peak_bytes`
    by_phase: Mapping[str, int]  # phase -> peak of what lives, without context and libraries
    place: str  # phase and block in which the peak falls; the stage of training if there are several
    precision: str  # of the working weights
    batch: int  # samples of a step, on all cards
    share: int  # samples of a batch that the card sees: all of them, where it trains alone
    normalisation_batch: int | None  # samples that layers normalise over together; None: they do not
    card: Card  # what it is for, and whether its figures were measured
    decisions: tuple[str, ...]  # a line for each choice: why, and how to override it
    shows_given: bool = False  # whether samples are made of given data, such as faces, and not drawn from random inputs
    ladder: tuple[PlanCandidate, ...] = ()  # plans from the fastest to the smallest, where no budget was given
    # what is left of a named card while it draws a desktop; None: it draws none, or not all of it was planned for
    desktop_budget_bytes: int | None = None
    desktop_chosen: PlanCandidate | None = None  # the plan for that; None: none fits, or it was not looked for
    nearest_change: tuple[str, ...] | None = None  # recipe fields with which it would fit, where it does not
    # predicted for the recipe's whole training, or its own where it is given as a time; None: the card's speed is not
    # known, or there is no end
    duration_seconds: float | None = None
    # what several cards cost that share every batch; the rest is then of the one with the least room. None: one
    # card, or no budget.
    together: Together | None = None
    # words of the command that asks for this plan, the recipe first; empty: it was asked for in Python
    command: tuple[str, ...] = ()
    needs_weights: bool = False  # the recipe freezes layers, so that a training needs --init
    # in what the recipe is the largest that fits, and the fields that make it so; None: that was not asked
    largest: tuple[Largest, tuple[str, ...]] | None = None
    timed: bool = False  # whether the card's speed is known: times mean nothing without

    def __str__(self) -> str:
        return report_text(self)

    @property
    def peak_bytes(self) -> int:
        """Predicted peak on the card."""
        return self.chosen.peak_bytes

    @property
    def micro_batch(self) -> int:
        """Samples in one forward."""
        return self.chosen.micro_batch

    @property
    def accumulation(self) -> int:
        """Forwards for one update."""
        return self.chosen.accumulation

    @property
    def savers(self) -> tuple[SaverName, ...]:
        """Savings used."""
        return self.chosen.savers

    @property
    def extra_compute(self) -> float:
        """Multiply-accumulates beyond those without recompute, as a share."""
        return self.chosen.extra_compute

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of an average step of the whole training."""
        return self.chosen.whole_seconds if self.together is None else self.together.step_seconds

    @property
    def images_per_second(self) -> float:
        """Speed of all cards together, predicted."""
        return self.share / self.step_seconds if self.together is None else self.together.images_per_second

    def as_json(self) -> dict[str, Any]:
        """Return the report for a program to read."""
        return {
            "recipe": self.recipe,
            "fits": self.fits,
            "budget_bytes": self.budget_bytes,
            **self.chosen.as_json(),
            "categories": dict(self.categories),
            "by_phase": dict(self.by_phase),
            "place": self.place,
            "precision": self.precision,
            "batch": self.batch,
            "share": self.share,
            "normalisation_batch": self.normalisation_batch,
            "card": {"name": self.card.name, "source": self.card.source, "memory_bytes": self.card.memory_bytes},
            "decisions": list(self.decisions),
            "ladder": [candidate.as_json() for candidate in self.ladder],
            "beside_desktop": self._beside_desktop_json(),
            "smallest_bytes": None if self.fits else self.peak_bytes,
            "nearest_change": None if self.nearest_change is None else list(self.nearest_change),
            "duration_seconds": self.duration_seconds,
            "average_step_seconds": self.step_seconds,
            "images_per_second": self.images_per_second,
            "busy_share": self.chosen.busy_share,
            "time_range": list(self.card.times),
            "together": None if self.together is None else self.together.as_json(),
            "plan": self.chosen.plan.as_json(),
        }

    def _beside_desktop_json(self) -> dict[str, Any] | None:
        if self.desktop_budget_bytes is None:
            return None
        plan = None if self.desktop_chosen is None else self.desktop_chosen.as_json()
        return {"budget_bytes": self.desktop_budget_bytes, "plan": plan}

    def price(self, per_hour: float) -> float | None:
        """Return the price of the whole training, at that of one card per hour; None: it has no end."""
        cards = 1 if self.together is None else self.together.cards
        return None if self.duration_seconds is None else self.duration_seconds / 3600 * per_hour * cards
