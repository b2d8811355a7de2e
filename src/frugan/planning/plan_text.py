"""Words and tables for people that say what a plan takes."""

import shlex
from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from frugan.planning.candidate import PlanCandidate
from frugan.stepmemory.cards import Card, generation_of
from frugan.wording import GIB, between, count, duration, typed_size

if TYPE_CHECKING:
    from frugan.planning.plan_report import PlanReport, Together  # which prints itself by this

SIZES = "the sizes that this kind of model comes in"


def report_blocks(report: "PlanReport", price_per_hour: float | None = None) -> Iterator[RenderableType]:
    """Yield a report from top to bottom: lines and tables, to be printed without markup and uncropped."""
    if report.largest is not None:
        what, words = report.largest
        several = " on each card" if report.together is not None else ""
        meaning = f" in one forward pass{several} (split into micro-batches, any batch fits)" if what == "batch" else ""
        yield f"largest {what} that fits{meaning}, of {SIZES}: {' '.join(words)}"
    yield from _ladder_blocks(report) if report.ladder else _plan_blocks(report)
    if report.together is not None:
        yield from _together_blocks(report.together, timed=report.timed)
    if report.timed:
        yield from _time_blocks(report)
    if price_per_hour is not None:
        yield _price_line(report, report.price(price_per_hour), price_per_hour)


def report_text(report: "PlanReport") -> str:
    """Return a report as text of 100 columns."""
    console = Console(file=StringIO(), width=100, highlight=False, color_system=None)
    with console.capture() as captured:
        for block in report_blocks(report):
            console.print(block, markup=False, crop=False)
    return captured.get().rstrip()


def _time_blocks(report: "PlanReport") -> Iterator[RenderableType]:
    """Yield what a step and the whole training take, and by what that is known."""
    if report.together is None and not report.ladder:
        waits = 1 - report.chosen.busy_share
        busy = f"the card is predicted to be busy {report.chosen.busy_share:.0%} of the time"
        busy += f" and to wait for its host {waits:.0%}" if waits >= 0.005 else ""
        yield f"\na step: {_time(report.step_seconds)}, {_three_digits(report.images_per_second)} images/s; {busy}"
    if report.duration_seconds is not None:
        slower = ": a laptop's power limit may make it slower" if _limited(report.card) else ""
        yield (
            f"time: about {duration(report.duration_seconds)} for the whole recipe on {_cards(report)}, probably "
            f"{between(*(factor * report.duration_seconds for factor in report.card.times))}{slower}"
        )
    yield f"predicted from {_known_from(report)}"


def _known_from(report: "PlanReport") -> str:
    """Say where speeds and their range come from."""
    least, most = report.card.times
    speeds, around = "published peak speeds, an estimate", f"{least:g} to {most:g} times that"
    if report.card.source == "measured":
        return f"this machine's measured speed; {around} is a guess"
    if report.card.capability is None:
        return f"{speeds}; {around} is a guess"
    generation = generation_of(report.card.capability)
    name = f"{generation.name} cards" if generation.rows else f"cards {generation.name}"
    if not generation.rows:
        return f"{speeds}; no training on {name} has been published to compare it with: {around} is a guess"
    within = f"{speeds}; the {generation.rows} published times of {name} lie within"
    if _limited(report.card):
        return f"{within} {least:g} to {generation.most:g} times that, and {most:g} for a laptop is a guess"
    return f"{within} {around}"


def _limited(card: Card) -> bool:
    """Whether a card's speeds are those of its processor in a desktop, with more power than a laptop's may have."""
    return card.in_laptop and card.source != "measured"


def _plan_blocks(report: "PlanReport") -> Iterator[RenderableType]:
    """Yield the verdict on one plan, what it takes, why, and what to do next."""
    chosen, budget = report.chosen, _gib(report.budget_bytes or 0)
    verdict = "fits" if report.fits else "does NOT fit"
    card = ""
    if report.together is not None:
        card = f"{_cards(report)}; the one with the least memory to spare is {report.card.name}: "
    peak = f": predicted peak {_gib(chosen.peak_bytes)} on the card"
    yield Text.assemble((f"{_name(report)} {verdict} {card}{budget}", "bold"), peak)
    groups = f", normalised in groups of {report.normalisation_batch}" if report.normalisation_batch else ""
    yield (
        f"micro-batch {chosen.micro_batch}, {count(chosen.accumulation, 'forward')} for {_part(report)}{groups}; "
        f"{report.precision}; memory savings: {', '.join(chosen.savers) or 'none'}"
    )
    yield f"extra compute {chosen.extra_compute:.0%}, extra time {_share(chosen.extra_time)} (predicted)\n"
    table = Table("at the peak", "GiB", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for category, size in sorted(report.categories.items(), key=lambda item: -item[1]):
        table.add_row(category, f"{size / GIB:.2f}")
    table.add_row(*map(Text.from_markup, ("[bold]total[/]", f"[bold]{chosen.peak_bytes / GIB:.2f}[/]")))
    yield table
    phases = ", ".join(f"{phase} {size / GIB:.2f}" for phase, size in report.by_phase.items())
    where = f"the peak is in {report.place}; highest live GiB in each phase: {phases}"
    yield f"\n{where.replace('sheets', 'sample grids')}\n"  # predictions' files have them by that name
    for line in report.decisions:
        yield _unbroken(f"- {line}")
    yield from _what_next(report, budget)


def _what_next(report: "PlanReport", budget: str) -> Iterator[RenderableType]:
    again = None
    if report.command and report.together is None and (report.largest is None or report.largest[0] != "batch"):
        again = shlex.join(report.command)
    if report.fits:
        if again is not None:
            data = "DATA" if report.shows_given else "PICTURES"
            init = " --init WEIGHTS" if report.needs_weights else ""
            yield _unbroken(f"Next: frugan train {again}{init} --data {data} --out RUN")
        return
    yield f"\nthe plan that promises to take least fits --memory {typed_size(report.peak_bytes)}"
    if report.nearest_change:
        yield f"with {budget} this change would fit: {' '.join(report.nearest_change)}"
        return
    yield f"no smaller normalisation group, width or resolution that was tried fits {budget}"
    if again is not None:
        yield _unbroken(f"Next: frugan plan {again} --largest width")


def _ladder_blocks(report: "PlanReport") -> Iterator[RenderableType]:
    heading = f", {_part(report)}, {report.precision}: plans from the fastest to the smallest (predicted)"
    yield Text.assemble((_name(report), "bold"), heading)
    columns = ["peak", "micro-batch", "memory savings", "extra compute", "extra time"]
    table = Table(*columns, *(["a step"] if report.timed else []), box=None, pad_edge=False)
    for candidate in report.ladder:
        table.add_row(
            _gib(candidate.peak_bytes),
            *_plan_cells(candidate),
            f"{candidate.extra_compute:.0%}",
            _share(candidate.extra_time),
            *([_time(candidate.step_seconds)] if report.timed else []),
        )
    yield table
    measured = report.card.source == "measured" and report.card.capability is not None
    outside = _gib(report.card.context_bytes + report.card.workspace_bytes)
    context = f"{outside} for CUDA and its libraries ({'measured' if measured else 'a guess'})"
    again = f"frugan plan {shlex.quote(_name(report))} --memory 6GiB"
    yield f"Peaks are for the whole card, including {context}. Next: {again}"


def _price_line(report: "PlanReport", price: float | None, per_hour: float) -> str:
    if price is None:
        return "price: unknown, because this training has no end; give it one: training.duration='500k steps'"
    least, most = (factor * price for factor in report.card.times)
    sums = [_three_digits(amount) for amount in (price, least, most)]
    return f"price: about {sums[0]}, probably {sums[1]} to {sums[2]}, at {per_hour:g} per card and hour"


def _name(report: "PlanReport") -> str:
    return report.command[0] if report.command else report.recipe


def _part(report: "PlanReport") -> str:
    return f"batch {report.batch}" if report.share == report.batch else f"{report.share} of the batch of {report.batch}"


def _cards(report: "PlanReport") -> str:
    return report.card.name if report.together is None else f"{report.together.cards} x {report.card.name}"


def _together_blocks(together: "Together", *, timed: bool) -> Iterator[RenderableType]:
    """Yield each card's part, and what all of them cost.

    Args:
        timed: whether the cards' speed is known: times mean nothing without.
    """
    columns = ["cards", "samples on each", "micro-batch", "memory savings", "peak", "of"]
    table = Table(*columns, *(["computes", "waits", "busy"] if timed else []), box=None, pad_edge=False)
    for cards, report in together.parts:
        compute_seconds, budget = report.chosen.whole_seconds, _gib(report.budget_bytes or 0)
        row = [
            f"{cards} x {report.card.name}",
            str(report.share),
            *_plan_cells(report.chosen),
            _gib(report.peak_bytes),
            budget if report.fits else f"{budget}: too little",
        ]
        waits = f"{together.idle_share(compute_seconds):.1%}"
        busy = f"{report.chosen.busy_share * compute_seconds / together.step_seconds:.0%}"
        table.add_row(*row, *([_time(compute_seconds), waits, busy] if timed else []))
    yield ""
    yield table
    sums = ", ".join(f"{phase.phase} {_megabytes(phase.size_bytes)}" for phase in together.sums)
    sent = together.link.sent_bytes(together.summed_bytes, together.cards)
    yield (
        f"\ngradients summed in each update: {sums}; on average {_megabytes(together.summed_bytes)} a step, for "
        f"which {_megabytes(sent)} go through each card's link"
    )
    if timed:
        yield (
            f"a step: {_time(together.step_seconds)}, of which {_time(together.between_seconds)} summing gradients "
            f"({together.between_seconds / together.step_seconds:.1%}); cards wait for the slowest "
            f"{together.idle:.1%} of the time; {_three_digits(together.images_per_second)} images/s, "
            f"{together.efficiency:.0%} of what the cards would do separately"
        )


def _plan_cells(candidate: PlanCandidate) -> tuple[str, str]:
    """Return micro-batch and savings, as tables have them."""
    savers = ", ".join(saver for saver in candidate.savers if saver != "micro-batch") or "-"
    return f"{candidate.micro_batch} x {candidate.accumulation}", savers


def _unbroken(line: str) -> RenderableType:
    """Return a line that is not wrapped, so that it can be copied; in a group, as a console joins bare texts."""
    return Group(Text(line, no_wrap=True, overflow="ignore"))


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB"


def _share(share: float) -> str:
    return "under 1%" if 0 < share < 0.01 else f"{share:.0%}"


def _three_digits(number: float) -> str:
    """Return the number with as many digits as an estimate has, and no power of ten: 0.123, 45.6, 14,700."""
    rounded = float(f"{number:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def _time(seconds: float) -> str:
    """Return a time with three digits, as cards' times are compared."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.3g} MB"
