"""`frugan plan`."""

import math
import shlex
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.table import Table

from frugan.cli.output import print_json
from frugan.cli.together import print_together
from frugan.errors import BadInput

if TYPE_CHECKING:
    from frugan.api.plan.fit_report import PlanReport, Rung
    from frugan.api.plan.recipe_relatives import Largest

GIB = 2**30
SIZES = "the sizes that this kind of model comes in"
LARGEST = ("resolution", "batch", "width")


def plan(
    recipe: Annotated[str, typer.Argument(help="name of a built-in recipe, path of a .toml file, or a run folder")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="recipe fields to override")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="how much card memory to use in all, such as 6GiB")] = None,
    card: Annotated[
        str | None,
        typer.Option(
            help="plan for this card, such as rtx-3060, or for several: gtx-1080x8; without --memory: with all of its "
            "memory"
        ),
    ] = None,
    micro_batch: Annotated[int | None, typer.Option(help="samples per forward pass; default: chosen for you")] = None,
    use: Annotated[list[str] | None, typer.Option(help="use this memory saving; may be repeated")] = None,
    avoid: Annotated[list[str] | None, typer.Option(help="never use this memory saving; may be repeated")] = None,
    biggest: Annotated[
        str | None,
        typer.Option("--largest", help="resolution, batch or width: find the largest that fits --memory or --card"),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="number of cards that share each batch under torchrun (docs/cluster.md)")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(help="bandwidth between the cards, with latency if you know it: 8GB/s, 25Gbit/s or 8GB/s,50us"),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option(help="first measure this machine's card or CPU, in about ten seconds")
    ] = False,
    price_per_hour: Annotated[
        float | None, typer.Option(help="price of one card per hour: says what the training will cost")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Say whether a recipe fits a card, and how: micro-batch, memory savings, peak memory, extra time.

    Needs no card: it runs the training step itself on tensors without data. Without --memory or --card it lists every
    plan worth having, from the fastest to the smallest.

    Memory savings: keep-products, recompute, offload, dense-slices, ema-on-host, optimizer-on-host; with --gpus also
    shard-optimizer. None of them changes the result.

    Example: frugan plan saehd-df-ud-512 --memory 6GiB
    """
    from frugan.api.plan.fit import PlanOptions
    from frugan.api.plan.plan_recipe import largest
    from frugan.api.plan.plan_recipe import plan as make_plan

    _check_price(price_per_hour, card, calibrate=calibrate)
    with _Counting(quiet=as_json) as counting:
        options = PlanOptions(
            card,
            micro_batch,
            tuple(use or ()),
            tuple(avoid or ()),
            gpus,
            link,
            calibrate,
            counting,
            counting.say,
        )
        words: tuple[str, ...] = ()
        if biggest is None:
            report = make_plan(recipe, memory, overrides or [], options)
        else:
            if biggest not in LARGEST or (memory is None and card is None):
                raise BadInput(f"--largest {biggest}: expected {', '.join(LARGEST)}, together with --memory or --card")
            words, report = largest(recipe, cast("Largest", biggest), memory, overrides or [], options)
    timed = calibrate or card is not None or report.card.source == "measured"
    price = _price(report, price_per_hour) if price_per_hour is not None else None
    if as_json:
        print_json(report.as_json() | {"largest": list(words) or None, "price": price})
        return
    console = Console(highlight=False, width=max(Console().width, 100))
    if words:
        several = " on each card" if report.together is not None else ""
        meaning = (
            f" in one forward pass{several} (split into micro-batches, any batch fits)" if biggest == "batch" else ""
        )
        console.print(f"largest {biggest} that fits{meaning}, of {SIZES}: {' '.join(words)}", markup=False)
    if report.ladder:
        _print_ladder(console, recipe, report)
    else:
        fields = [*(overrides or ()), *words]
        asked = [word for name in use or () for word in ("--use", name)]
        asked += [word for name in avoid or () for word in ("--avoid", name)]
        asked += ["--micro-batch", str(micro_batch)] if micro_batch is not None else []
        budget = ["--memory", memory] if memory is not None else []
        alone = report.together is None and biggest != "batch"
        again = shlex.join([recipe, *fields, *budget, *asked]) if alone else None
        _print_plan(console, recipe, report, again)
    if report.together is not None:
        print_together(console, report.together, timed=timed)
    if timed and report.duration_seconds is not None:
        seconds = report.duration_seconds  # of all cards together
        kind = (
            "this machine's measured speed"
            if report.card.source == "measured"
            else "published peak speeds, an estimate"
        )
        console.print(
            f"time: about {_duration(seconds)}, give or take {report.time_error:.0%}, for the whole recipe on "
            f"{_cards_in_words(report)} (predicted from {kind})"
        )
    if price_per_hour is not None:
        console.print(_price_line(price, price_per_hour, report.time_error))


def _check_price(price_per_hour: float | None, card: str | None, *, calibrate: bool) -> None:
    """Refuse a price that is none, or of a card whose speed is not known."""
    from frugan.api.machine.devices import choose_device
    from frugan.api.plan.recipe_planner import choose_card

    if price_per_hour is None:
        return
    if not 0 < price_per_hour < math.inf:
        raise BadInput(f"--price-per-hour {price_per_hour}: expected an amount above 0")
    if card is None and not calibrate and choose_card(None, choose_device()[0]).source != "measured":
        raise BadInput("--price-per-hour: for which card? Name it with --card, or measure this one with --calibrate")


class _Counting:
    """Shows on stderr how many steps were run without data, in a line that goes away."""

    def __init__(self, *, quiet: bool) -> None:
        self._status = None if quiet else Console(stderr=True).status("running the step on tensors without data")

    def __call__(self, ran: int) -> None:
        if self._status is not None:
            if ran == 1:
                self._status.start()
            self._status.update(f"running the step on tensors without data: plan {ran}")

    def say(self, line: str) -> None:
        """Show a line above the one that goes away."""
        if self._status is not None:
            self._status.console.print(line, markup=False, highlight=False, soft_wrap=True, style="dim")

    def __enter__(self) -> "_Counting":
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


def _cards_in_words(report: "PlanReport") -> str:
    if report.together is None:
        return report.card.name
    return f"{report.together.cards} x {report.card.name}"


def _print_plan(console: Console, name: str, report: "PlanReport", again: str | None) -> None:
    from frugan.api.plan.fit import forwards
    from frugan.api.plan.fit_report import needed_size

    budget = f"{_gib(report.budget_bytes or 0)}"
    verdict = "fits" if report.fits else "does NOT fit"
    several = (
        f"{_cards_in_words(report)}; the one with the least memory to spare is " if report.together is not None else ""
    )
    card = f"{several}{report.card.name}: " if several else ""
    console.print(f"[bold]{name} {verdict} {card}{budget}[/]: predicted peak {_gib(report.peak_bytes)} on the card")
    rung = report.rung
    groups = f", normalised in groups of {report.normalisation_batch}" if report.normalisation_batch else ""
    console.print(
        f"micro-batch {rung.micro_batch}, {forwards(rung.accumulation)} for {_part(report)}{groups}; "
        f"{report.precision}; memory savings: {', '.join(rung.savers) or 'none'}"
    )
    console.print(f"extra compute {rung.extra_compute:.0%}, extra time {_share(rung.extra_time)} (predicted)\n")
    table = Table("at the peak", "GiB", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for category, size in sorted(report.categories.items(), key=lambda item: -item[1]):
        table.add_row(category, f"{size / GIB:.2f}")
    table.add_row("[bold]total[/]", f"[bold]{report.peak_bytes / GIB:.2f}[/]")
    console.print(table)
    phases = ", ".join(f"{phase} {size / GIB:.2f}" for phase, size in report.by_phase.items())
    where = f"the peak is in {report.place}; highest live GiB in each phase: {phases}"
    console.print(f"\n{where.replace('sheets', 'sample grids')}\n", markup=False)  # people know sheets by that name
    for line in report.decisions:
        console.print(f"- {line}", markup=False, soft_wrap=True)
    if report.fits:
        if again is None:
            return
        data = "DATA" if report.shows_given else "PICTURES"
        console.print(f"Next: frugan train {again} --data {data} --out RUN", markup=False, soft_wrap=True)
        return
    console.print(f"\nsmallest --memory that it fits: {needed_size(report.peak_bytes)}")
    if report.nearest_change:
        console.print(f"with {budget} this change would fit: {' '.join(report.nearest_change)}", markup=False)
    else:
        console.print(f"no smaller normalisation group, width or resolution that was tried fits {budget}")
        if again is not None:
            console.print(f"Next: frugan plan {again} --largest width", markup=False, soft_wrap=True)


def _part(report: "PlanReport") -> str:
    return f"batch {report.batch}" if report.share == report.batch else f"{report.share} of the batch of {report.batch}"


def _print_ladder(console: Console, name: str, report: "PlanReport") -> None:
    from frugan.api.plan.fit import COMPILED

    console.print(
        f"[bold]{name}[/], {_part(report)}, {report.precision}: plans from the fastest to the smallest (predicted)"
    )
    table = Table("peak", "micro-batch", "memory savings", "extra compute", "extra time", box=None, pad_edge=False)
    for rung in report.ladder:
        table.add_row(*_ladder_row(rung))
    console.print(table)
    for line in report.decisions:
        if line == COMPILED:
            console.print(f"- {line}", markup=False, soft_wrap=True)
    console.print(f"Peaks are for the whole card, including {_context(report)}. Next: frugan plan {name} --memory 6GiB")


def _ladder_row(rung: "Rung") -> tuple[str, ...]:
    savers = [saver for saver in rung.savers if saver != "micro-batch"]
    return (
        _gib(rung.peak_bytes),
        f"{rung.micro_batch} x {rung.accumulation}",
        ", ".join(savers) or "-",
        f"{rung.extra_compute:.0%}",
        _share(rung.extra_time),
    )


def _context(report: "PlanReport") -> str:
    measured = report.card.source == "measured" and report.card.capability is not None
    own = report.card.context_bytes + report.card.workspace_bytes
    return f"{_gib(own)} for CUDA and its libraries ({'measured' if measured else 'a guess'})"


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB"


def _share(share: float) -> str:
    return "under 1%" if 0 < share < 0.01 else f"{share:.0%}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} minutes"
    days = seconds / 86400
    return f"{seconds / 3600:.0f} hours" if days < 2 else f"{days:.1f} days" if days < 100 else f"{days:,.0f} days"


def _price_line(price: float | None, per_hour: float, error: float) -> str:
    if price is None:
        return "price: unknown, because this training has no end; give it one: training.duration='500k steps'"
    return f"price: about {price:,.2f}, give or take {error:.0%}, at {per_hour:g} per card and hour"


def _price(report: "PlanReport", per_hour: float) -> float | None:
    cards = 1 if report.together is None else report.together.cards
    return None if report.duration_seconds is None else report.duration_seconds / 3600 * per_hour * cards
