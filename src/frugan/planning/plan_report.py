"""The answer to "does it fit": a plan, what it takes by category and phase, why it was chosen, and how that is said."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from frugan.accelerator.precision import Precision
from frugan.engine.run.training import Training
from frugan.planning.links import Link, Sum
from frugan.planning.plan_space import PlanConstraints, SaverName
from frugan.planning.rung import BesideDesktop, Rung, about_memory
from frugan.planning.search import Choice
from frugan.recipe.relatives import Largest
from frugan.stepmemory.cards import Card, generation_of
from frugan.wording import GIB, between, duration, show_size, typed_size

SIZES = "the sizes that this kind of model comes in"


def forwards(count: int) -> str:
    """How many, for people."""
    return "1 forward" if count == 1 else f"{count} forwards"


@dataclass(frozen=True)
class CardShare:
    """Cards that take equally much of every batch."""

    count: int  # how many
    report: "PlanReport"  # of one of them, on its part
    alone_seconds: float  # of an average step on the whole batch, if one of them trained alone

    @property
    def compute_seconds(self) -> float:
        """Of an average step on its part."""
        return self.report.choice.whole_seconds

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        own = self.report
        return {
            "card": own.card.name,
            "count": self.count,
            "samples": own.share,
            "micro_batch": own.micro_batch,
            "accumulation": own.accumulation,
            "savers": list(own.savers),
            "peak_bytes": own.peak_bytes,
            "budget_bytes": own.budget_bytes,
            "fits": own.fits,
            "compute_seconds": self.compute_seconds,
            "alone_seconds": self.alone_seconds,
        }


@dataclass(frozen=True)
class Together:
    """Several cards that share every batch; all of it predicted."""

    shares: tuple[CardShare, ...]  # in the order of ranks
    link: Link  # between any two of them
    sums: tuple[Sum, ...]  # what they add up in an average step of the whole training
    between_seconds: float  # that this takes; nothing travels while a card computes
    batch: int  # of them all

    @property
    def cards(self) -> int:
        """How many."""
        return sum(each.count for each in self.shares)

    @property
    def slowest_seconds(self) -> float:
        """What the slowest card computes in an average step; all others wait for it."""
        return max(each.compute_seconds for each in self.shares)

    @property
    def step_seconds(self) -> float:
        """Of an average step."""
        return self.slowest_seconds + self.between_seconds

    @property
    def images_per_second(self) -> float:
        """Of all cards together."""
        return self.batch / self.step_seconds

    def idle_share(self, compute_seconds: float) -> float:
        """Share of a step that a card waits for the slowest one."""
        return (self.slowest_seconds - compute_seconds) / self.step_seconds

    @property
    def idle(self) -> float:
        """The same on average over all cards."""
        return sum(each.count * self.idle_share(each.compute_seconds) for each in self.shares) / self.cards

    @property
    def efficiency(self) -> float:
        """Speed beside that of as many cards that each train alone, added up."""
        return 1 / sum(each.count / each.alone_seconds for each in self.shares) / self.step_seconds

    @property
    def summed_bytes(self) -> float:
        """That are added up in an average step."""
        return sum(each.updates * each.size_bytes for each in self.sums)

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        return {
            "cards": self.cards,
            "shares": [each.as_json() | {"idle_share": self.idle_share(each.compute_seconds)} for each in self.shares],
            "link": asdict(self.link),
            "sums": [asdict(each) for each in self.sums],
            "summed_bytes_per_step": self.summed_bytes,
            "sent_bytes_per_step": self.link.sent_bytes(self.summed_bytes, self.cards),
            "compute_seconds": self.slowest_seconds,
            "between_seconds": self.between_seconds,
            "step_seconds": self.step_seconds,
            "images_per_second": self.images_per_second,
            "idle_share": self.idle,
            "efficiency": self.efficiency,
        }

    def blocks(self, *, timed: bool) -> Iterator[RenderableType]:
        """For people to read: each card's part, and what all of them cost.

        Args:
            timed: whether the cards' speed is known: times mean nothing without.
        """
        columns = ["cards", "samples on each", "micro-batch", "memory savings", "peak", "of"]
        table = Table(*columns, *(["computes", "waits", "busy"] if timed else []), box=None, pad_edge=False)
        for each in self.shares:
            own, budget = each.report, _gib(each.report.budget_bytes or 0)
            busy = f"{own.choice.busy_share * each.compute_seconds / self.step_seconds:.0%}"
            row = [
                f"{each.count} x {own.card.name}",
                str(own.share),
                *_plan_cells(own.rung),
                _gib(own.peak_bytes),
                budget if own.fits else f"{budget}: too little",
            ]
            waits = f"{self.idle_share(each.compute_seconds):.1%}"
            table.add_row(*row, *([_time(each.compute_seconds), waits, busy] if timed else []))
        yield ""
        yield table
        sums = ", ".join(f"{each.phase} {_megabytes(each.size_bytes)}" for each in self.sums)
        sent = self.link.sent_bytes(self.summed_bytes, self.cards)
        yield (
            f"\ngradients summed in each update: {sums}; on average {_megabytes(self.summed_bytes)} a step, for "
            f"which {_megabytes(sent)} go through each card's link"
        )
        if timed:
            yield (
                f"a step: {_time(self.step_seconds)}, of which {_time(self.between_seconds)} summing gradients "
                f"({self.between_seconds / self.step_seconds:.1%}); cards wait for the slowest {self.idle:.1%} of "
                f"the time; {_three_digits(self.images_per_second)} images/s, {self.efficiency:.0%} of what the cards "
                "would do separately"
            )


@dataclass(frozen=True)
class PlanReport:
    """The answer to "does it fit"."""

    recipe: str  # its name
    fits: bool  # whether a plan fits the budget; without a budget always
    budget_bytes: int | None  # on the card in all; None: no budget
    rung: Rung  # the plan chosen, or the smallest there is where none fits
    choice: Choice  # the same for the engine
    # bytes on the card at the peak, by what they are for; they add up to `peak_bytes`
    categories: Mapping[str, int]
    by_phase: Mapping[str, int]  # phase -> peak of what lives, without context and libraries
    place: str  # phase and block in which the peak falls; the stage of training if there are several
    # precision, batch, normalisation_batch: as trained
    precision: str
    batch: int
    share: int  # samples of a batch that the card sees: all of them, where it trains alone
    normalisation_batch: int | None
    card: Card  # what it is for, and whether its figures were measured
    decisions: tuple[str, ...]  # a line for each choice: why, and how to override it
    shows_given: bool = False  # whether samples are made of given data, such as faces, and not drawn from random inputs
    ladder: tuple[Rung, ...] = ()  # plans from the fastest to the smallest, where no budget was given
    # the same where a named card also draws a desktop; None: it was not planned for the whole of one, or draws none
    beside_desktop: BesideDesktop | None = None
    nearest_change: tuple[str, ...] | None = None  # recipe fields with which it would fit, where it does not
    # predicted for the recipe's whole training, or its own where it is given as a time; None: the card's speed is not
    # known, or there is no end
    duration_seconds: float | None = None
    # what several cards cost that share every batch; the rest is then of the one with the least room. None: one
    # card, or no budget.
    together: Together | None = None
    # words of the command that asks for this plan, the recipe first; empty: it was asked for in Python
    command: tuple[str, ...] = ()
    # in what the recipe is the largest that fits, and the fields that make it so; None: that was not asked
    largest: tuple[Largest, tuple[str, ...]] | None = None
    timed: bool = False  # whether the card's speed is known: times mean nothing without

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
    def step_seconds(self) -> float:
        """Of an average step of the whole training, predicted."""
        return self.choice.whole_seconds if self.together is None else self.together.step_seconds

    @property
    def images_per_second(self) -> float:
        """Of all cards together, predicted."""
        return self.share / self.step_seconds if self.together is None else self.together.images_per_second

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
            "beside_desktop": None if self.beside_desktop is None else self.beside_desktop.as_json(),
            "smallest_bytes": None if self.fits else self.peak_bytes,
            "nearest_change": None if self.nearest_change is None else list(self.nearest_change),
            "duration_seconds": self.duration_seconds,
            "average_step_seconds": self.step_seconds,
            "images_per_second": self.images_per_second,
            "busy_share": self.choice.busy_share,
            "time_range": list(self.card.times),
            "together": None if self.together is None else self.together.as_json(),
            "plan": self.choice.plan.as_json(),
        }

    def price(self, per_hour: float) -> float | None:
        """Of the whole training, at a price of one card per hour; None: it has no end."""
        cards = 1 if self.together is None else self.together.cards
        return None if self.duration_seconds is None else self.duration_seconds / 3600 * per_hour * cards

    def blocks(self, price_per_hour: float | None = None) -> Iterator[RenderableType]:
        """For people to read, from top to bottom: lines and tables, to be printed without markup and uncropped."""
        if self.largest is not None:
            what, words = self.largest
            several = " on each card" if self.together is not None else ""
            meaning = (
                f" in one forward pass{several} (split into micro-batches, any batch fits)" if what == "batch" else ""
            )
            yield f"largest {what} that fits{meaning}, of {SIZES}: {' '.join(words)}"
        yield from self._ladder_blocks() if self.ladder else self._plan_blocks()
        if self.together is not None:
            yield from self.together.blocks(timed=self.timed)
        if self.timed:
            yield from self._time_blocks()
        if price_per_hour is not None:
            yield self._price_line(self.price(price_per_hour), price_per_hour)

    def _time_blocks(self) -> Iterator[RenderableType]:
        """What a step and the whole training take, and by what that is known."""
        if self.together is None and not self.ladder:
            waits = 1 - self.choice.busy_share
            busy = f"the card is predicted to be busy {self.choice.busy_share:.0%} of the time"
            busy += f" and to wait for its host {waits:.0%}" if waits >= 0.005 else ""
            yield f"\na step: {_time(self.step_seconds)}, {_three_digits(self.images_per_second)} images/s; {busy}"
        if self.duration_seconds is not None:
            yield (
                f"time: about {duration(self.duration_seconds)} for the whole recipe on {self._cards}, probably "
                f"{between(*(factor * self.duration_seconds for factor in self.card.times))}"
            )
        yield f"predicted from {self._known_from}"

    @property
    def _known_from(self) -> str:
        """Where speeds and their range come from."""
        least, most = self.card.times
        speeds, around = "published peak speeds, an estimate", f"{least:g} to {most:g} times that"
        if self.card.source == "measured":
            return f"this machine's measured speed; {around} is a guess"
        if self.card.capability is None:
            return f"{speeds}; {around} is a guess"
        generation = generation_of(self.card.capability)
        name = f"{generation.name} cards" if generation.rows else f"cards {generation.name}"
        if not generation.rows:
            return f"{speeds}; no training on {name} has been published to compare it with: {around} is a guess"
        return f"{speeds}; the {generation.rows} published times of {name} lie within {around}"

    def _plan_blocks(self) -> Iterator[RenderableType]:
        """Of one plan: the verdict, what it takes, why, and what to do next."""
        rung, budget = self.rung, _gib(self.budget_bytes or 0)
        verdict = "fits" if self.fits else "does NOT fit"
        card = ""
        if self.together is not None:
            card = f"{self._cards}; the one with the least memory to spare is {self.card.name}: "
        peak = f": predicted peak {_gib(rung.peak_bytes)} on the card"
        yield Text.assemble((f"{self._name} {verdict} {card}{budget}", "bold"), peak)
        groups = f", normalised in groups of {self.normalisation_batch}" if self.normalisation_batch else ""
        yield (
            f"micro-batch {rung.micro_batch}, {forwards(rung.accumulation)} for {self._part}{groups}; "
            f"{self.precision}; memory savings: {', '.join(rung.savers) or 'none'}"
        )
        yield f"extra compute {rung.extra_compute:.0%}, extra time {_share(rung.extra_time)} (predicted)\n"
        table = Table("at the peak", "GiB", box=None, pad_edge=False)
        table.columns[1].justify = "right"
        for category, size in sorted(self.categories.items(), key=lambda item: -item[1]):
            table.add_row(category, f"{size / GIB:.2f}")
        table.add_row(*map(Text.from_markup, ("[bold]total[/]", f"[bold]{rung.peak_bytes / GIB:.2f}[/]")))
        yield table
        phases = ", ".join(f"{phase} {size / GIB:.2f}" for phase, size in self.by_phase.items())
        where = f"the peak is in {self.place}; highest live GiB in each phase: {phases}"
        yield f"\n{where.replace('sheets', 'sample grids')}\n"  # predictions' files have them by that name
        for line in self.decisions:
            yield _unbroken(f"- {line}")
        yield from self._what_next(budget)

    def _what_next(self, budget: str) -> Iterator[RenderableType]:
        again = None
        if self.command and self.together is None and (self.largest is None or self.largest[0] != "batch"):
            again = shlex.join(self.command)
        if self.fits:
            if again is not None:
                data = "DATA" if self.shows_given else "PICTURES"
                yield _unbroken(f"Next: frugan train {again} --data {data} --out RUN")
            return
        yield f"\nthe plan that promises to take least fits --memory {typed_size(self.peak_bytes)}"
        if self.nearest_change:
            yield f"with {budget} this change would fit: {' '.join(self.nearest_change)}"
            return
        yield f"no smaller normalisation group, width or resolution that was tried fits {budget}"
        if again is not None:
            yield _unbroken(f"Next: frugan plan {again} --largest width")

    def _ladder_blocks(self) -> Iterator[RenderableType]:
        heading = f", {self._part}, {self.precision}: plans from the fastest to the smallest (predicted)"
        yield Text.assemble((self._name, "bold"), heading)
        columns = ["peak", "micro-batch", "memory savings", "extra compute", "extra time"]
        table = Table(*columns, *(["a step"] if self.timed else []), box=None, pad_edge=False)
        for rung in self.ladder:
            table.add_row(
                _gib(rung.peak_bytes),
                *_plan_cells(rung),
                f"{rung.extra_compute:.0%}",
                _share(rung.extra_time),
                *([_time(rung.step_seconds)] if self.timed else []),
            )
        yield table
        measured = self.card.source == "measured" and self.card.capability is not None
        own = _gib(self.card.context_bytes + self.card.workspace_bytes)
        context = f"{own} for CUDA and its libraries ({'measured' if measured else 'a guess'})"
        yield f"Peaks are for the whole card, including {context}. Next: frugan plan {self._name} --memory 6GiB"

    def _price_line(self, price: float | None, per_hour: float) -> str:
        if price is None:
            return "price: unknown, because this training has no end; give it one: training.duration='500k steps'"
        least, most = (factor * price for factor in self.card.times)
        sums = [_three_digits(each) for each in (price, least, most)]
        return f"price: about {sums[0]}, probably {sums[1]} to {sums[2]}, at {per_hour:g} per card and hour"

    @property
    def _name(self) -> str:
        return self.command[0] if self.command else self.recipe

    @property
    def _part(self) -> str:
        return f"batch {self.batch}" if self.share == self.batch else f"{self.share} of the batch of {self.batch}"

    @property
    def _cards(self) -> str:
        return self.card.name if self.together is None else f"{self.together.cards} x {self.card.name}"


def shares_in_words(dealt: Mapping[int, int], group: int) -> str:
    """How a batch is dealt: "6 on 4 cards, 5 on 8 cards (normalisation groups of 32)".

    Args:
        dealt: samples -> cards that see so many.
    """
    words = ", ".join(
        f"{samples // group} on {cards} card{'s' if cards > 1 else ''}" for samples, cards in dealt.items()
    )
    return f"{words} ({f'normalisation groups of {group}' if group > 1 else 'samples'})"


def _plan_cells(rung: Rung) -> tuple[str, str]:
    """Micro-batch and savings, as tables have them."""
    savers = ", ".join(saver for saver in rung.savers if saver != "micro-batch") or "-"
    return f"{rung.micro_batch} x {rung.accumulation}", savers


def _unbroken(line: str) -> RenderableType:
    """A line that is not wrapped, so that it can be copied. In a group: a console joins bare texts, and wraps them."""
    return Group(Text(line, no_wrap=True, overflow="ignore"))


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB"


def _share(share: float) -> str:
    return "under 1%" if 0 < share < 0.01 else f"{share:.0%}"


def _three_digits(number: float) -> str:
    """As many as an estimate has at most, and no power of ten: 0.123, 45.6, 14,700."""
    rounded = float(f"{number:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def _time(seconds: float) -> str:
    """With three digits, as cards' times are compared."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.3g} MB"


def refusal(report: PlanReport) -> str:
    """What is said at once where nothing fits."""
    return f"does NOT fit {show_size(report.budget_bytes or 0)}: it takes {show_size(report.peak_bytes)}"


@dataclass(frozen=True)
class Found:
    """What the search has found out about the plan that it chose."""

    fastest: bool  # whether it is the fastest of all that are wished for, so that nothing was given up to fit
    has_blocks: bool  # whether there is anything to recompute


def decisions(
    report: PlanReport,
    training: Training,
    precision: Precision,
    constraints: PlanConstraints,
    between_bytes: int,
    found: Found,
) -> Iterator[str]:
    """One line for each choice: what, why, how to override.

    Args:
        report: of the plan, without these lines.
        training: this card's share of it.
        precision: with the reason for it.
        constraints: what was asked of the plan.
        between_bytes: for summing gradients and for communication.
        found: why the plan was chosen.
    """
    rung = report.rung
    yield from about_memory(report.card, report.budget_bytes, report.rung, report.beside_desktop)
    other = "fp16" if precision.name == "fp32" else "fp32"
    yield f"precision: {precision.name} ({precision.reason}); override with training.precision={other}"
    floor = f"never less than a normalisation group, {training.group}" if training.group > 1 else "any size will do"
    yield (
        f"micro-batch: {rung.micro_batch} at a time, {forwards(rung.accumulation)} for {training.batch} ({floor}); "
        "override with --micro-batch"
    )
    yield "loss terms: one backward pass after the other where they are independent; saves activations, costs nothing"
    yield from _about_savings(constraints, rung, found, fits=report.fits)
    yield (
        "cuDNN autotuning: off, because how much memory it takes cannot be predicted (in one published training, 17.7 "
        "GB in the first steps instead of 10.9); with memory to spare, set torch.backends.cudnn.benchmark = True "
        "before frugan.train in Python"
    )
    if between_bytes:
        yield (
            f"{training.ranks} cards: {show_size(between_bytes)} on each for summing gradients and for "
            f"communication, a guess; to train: torchrun --nproc-per-node={training.ranks} -m frugan train ... "
            "(docs/cluster.md)"
        )
    yield from _about_card(report.card)


def _about_savings(constraints: PlanConstraints, rung: Rung, found: Found, *, fits: bool) -> Iterator[str]:
    for saver in rung.savers:
        if saver in constraints.use:
            yield f"{saver}: asked for"
        elif saver != "micro-batch":
            yield f"{saver}: {_why(saver, found, fits=fits)}"
    if rung.host_bytes:
        yield (
            f"host memory: {show_size(rung.host_bytes)} for what this plan keeps there, most of it pinned; pictures "
            "and the program itself come on top"
        )
    if fits and found.has_blocks and not {"recompute", "keep-products"} & {*rung.savers, *constraints.avoid}:
        yield "recompute: not needed, it fits without; switch it on with --use recompute"
    if constraints.avoid:
        yield f"ruled out: {', '.join(sorted({*constraints.avoid}))}"


def _about_card(card: Card) -> Iterator[str]:
    kind = "guesses; `frugan plan --calibrate` on the card measures them"
    if card.source == "measured":
        processor = "guesses: this machine's CPU was measured for its speed, and has no CUDA"
        kind = "measured on it" if card.capability is not None else processor
    taken = f"{show_size(card.context_bytes)} for CUDA's context, {show_size(card.workspace_bytes)} for its libraries"
    yield f"card: {card.name}; {taken}: {kind}"
    if card.figures_of is not None:
        yield f"speed: guessed from what is published of the {card.figures_of}"


def _why(saver: str, found: Found, *, fits: bool) -> str:
    if not fits:
        return "part of the plan that promises to take least, which is still too large"
    if found.fastest:
        return f"part of the fastest plan; avoid it with --avoid {saver}"
    return f"every faster plan takes more than there is; avoid it with --avoid {saver}"
