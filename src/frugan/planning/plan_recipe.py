"""`plan`: whether a recipe fits a card, or several that share every batch, how, and what it costs."""

import math
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from frugan.engine.plan import check_micro_batch
from frugan.errors import BadInput, checked
from frugan.planning.links import GUESSED, Link, parse_link
from frugan.planning.plan_report import PlanReport
from frugan.planning.plan_space import PlanConstraints
from frugan.planning.planner import NEAREST_SECONDS, Planner
from frugan.planning.several_cards import parse_cards, plan_together
from frugan.progress import Say, quiet
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.recipe.relatives import Largest, relatives
from frugan.setup.devices import choose_device
from frugan.setup.recipe_setup import frozen_layers
from frugan.stepmemory.calibration import calibrate, choose_card, save_calibration
from frugan.stepmemory.cards import TooSmall, left_bytes, named_card
from frugan.wording import GIB, MIB, parse_size, show_size, typed_size


@checked
@dataclass(frozen=True)
class PlanOptions:
    """How to plan."""

    # plan for a card of this name; None: the one here, or one that is not named. Several that train together:
    # "gtx-1080x8".
    card: str | None = None
    micro_batch: int | None = None  # samples in one forward; None: chosen
    use: Collection[str] = ()  # savings that a plan must use
    avoid: Collection[str] = ()  # savings that it must not
    gpus: int | None = None  # cards that share the batch; None: as many as `card` names
    link: str | None = None  # between them, such as "8GB/s"; None: a guess
    calibrate: bool = False  # measure the device here first
    tell: Callable[[int], None] = lambda _: None  # is told how many steps were run without data so far
    say: Say = quiet  # is given a line where what is asked for does not fit, before a change that would is looked for

    def __post_init__(self) -> None:
        """Refuse savings that are unknown or contradict each other.

        Raises:
            BadInput: they do.
        """
        _ = self.constraints

    @property
    def constraints(self) -> PlanConstraints:
        """Return what is asked of plans."""
        return PlanConstraints(self.micro_batch, self.use, self.avoid)


def options_of_choice(
    recipe: str | Recipe, overrides: Sequence[str], options: PlanOptions
) -> tuple[PlanOptions, tuple[str, ...]]:
    """Return options for one of several cards that would share a normalisation group, and a line that says so.

    How cards share a group is not predicted. Where they do not, the same options, and no line.

    Raises:
        BadInput: unknown recipe, or what is said of the cards contradicts itself.
    """
    name, count = parse_cards(options.card, options.gpus, options.link)
    loaded = load_recipe(recipe, overrides) if isinstance(recipe, str) else recipe
    if _can_be_shared(loaded, count, None):
        return options, ()
    line = f"cards: planned for one of the {count}; how they share a normalisation group is not predicted"
    return replace(options, card=name, gpus=None, link=None), (line,)


def fitting(name: str, smallest: Mapping[str, int | None], in_fp32: Mapping[str, int | None]) -> frozenset[str]:
    """Return the recipes that are predicted to fit a card of this name.

    Args:
        smallest: recipe -> GiB of the smallest common card that it fits; None: none of them.
        in_fp32: the same of cards without half-precision units.

    Raises:
        BadInput: the card is not known.
    """
    card = named_card(name)
    assert card.memory_bytes is not None  # as of all cards that have a name
    assert card.capability is not None
    gib_of = in_fp32 if card.precision("auto").name == "fp32" else smallest
    left = {gib: left_bytes(gib * GIB, card.capability) for gib in gib_of.values() if gib is not None}
    return frozenset(recipe for recipe, gib in gib_of.items() if gib is not None and left[gib] <= card.memory_bytes)


def planner_of(recipe: str | Recipe, overrides: Sequence[str], options: PlanOptions) -> Planner:
    """Return a planner for a recipe on one card, measured first if that is asked for.

    Raises:
        BadInput: unknown recipe or card, or what is asked for contradicts itself.
    """
    loaded = load_recipe(recipe, overrides) if isinstance(recipe, str) else recipe
    name = recipe if isinstance(recipe, str) else (loaded.about.summary or loaded.family)
    device, _ = choose_device()
    if options.calibrate and options.card is not None:
        raise BadInput(
            f"--calibrate measures this machine, --card {options.card} names another: leave out one of the two"
        )
    measured = calibrate(device) if options.calibrate else None
    if measured is not None:
        save_calibration(measured)
    card = choose_card(options.card, device)
    if measured is not None and measured.memory_bytes is None:
        # memory is planned for a card that is not here, time for the processor that is
        card = replace(measured, context_bytes=card.context_bytes, workspace_bytes=card.workspace_bytes)
    planner = Planner(
        recipe=loaded,
        card=card,
        precision=card.precision(loaded.training.precision, tf32=loaded.training.tf32),
        constraints=options.constraints,
        name=name,
        gpus=options.gpus or 1,
        tell=options.tell,
    )
    if options.micro_batch is not None:
        check_micro_batch(options.micro_batch, planner.training.batch, loaded.training.normalisation_batch or 1)
    return planner


@checked
def plan(
    recipe: str | Recipe,
    memory: str | int | None = None,
    overrides: Sequence[str] = (),
    options: PlanOptions | None = None,
) -> PlanReport:
    """Predict whether a recipe fits a memory budget, and choose the cheapest savings that make it fit.

    Runs the engine's own step on tensors without data: needs no card, and no memory to speak of.

    Args:
        recipe: built-in name, path of a TOML file, a run, or a loaded recipe.
        memory: budget on each card in all, "6GiB" or bytes; None: all of a named card, or without one the whole ladder.
        overrides: `key.sub=value` words.
        options: how to plan.

    Raises:
        BadInput: unknown recipe, size, card, link or saver, more cards than can share a batch, or a budget below the
            parameters themselves.
    """
    options = options or PlanOptions()
    name, count = parse_cards(options.card, options.gpus, options.link)
    planner = planner_of(recipe, overrides, replace(options, card=name, gpus=None))
    budget_bytes = _budget_bytes(memory, planner, options)
    if count > 1:
        report = plan_together(planner, count, _link(options), budget_bytes, say=options.say)
    else:
        with planner:
            report = planner.report(budget_bytes, say=options.say)
    return _with_command(report, recipe, memory, overrides, options)


@checked
def largest(
    recipe: str | Recipe,
    what: Largest,
    memory: str | int | None,
    overrides: Sequence[str] = (),
    options: PlanOptions | None = None,
) -> tuple[tuple[str, ...], PlanReport]:
    """Find the biggest relative of a recipe that fits a budget: fields to override, and its plan.

    Resolution and width are the family's own steps. A batch of any size fits, in micro-batches: the largest is the one
    of which every card takes its part in a single forward.

    Args:
        memory: as for `plan`, but None only where a card is named.

    Raises:
        BadInput: as `plan`; or none of them fits.
    """
    options = options or PlanOptions()
    loaded = load_recipe(recipe, overrides) if isinstance(recipe, str) else recipe
    if memory is None and options.card is None:
        raise BadInput(f"--largest {what}: add what it should fit: --memory 6GiB, or --card NAME")
    if options.calibrate:
        planner_of(loaded, (), options)
    once = replace(options, calibrate=False)  # measured once is enough
    _, cards = parse_cards(options.card, options.gpus)
    sizes = [size for size in relatives(loaded, what) if _can_be_shared(size[1], cards, options.micro_batch)]
    least, most = 0, len(sizes)
    while least < most:  # what is larger takes more
        middle = (least + most) // 2
        if _fitting(sizes[middle][1], what, memory, once, only_fits=True) is not None:
            least = middle + 1
        else:
            most = middle
    if not least:
        name = recipe if isinstance(recipe, str) else "RECIPE"
        raise BadInput(f"--largest {what}: {_why_none(what, name, [words for words, _ in sizes], memory, options)}")
    words, relative = sizes[least - 1]
    report = _fitting(relative, what, memory, once)
    assert report is not None  # it fitted before
    report = _with_command(report, recipe, memory, (*overrides, *words), options)
    beyond = f"{' '.join(sizes[least][0])} does not fit" if least < len(sizes) else "nothing larger is tried"
    tried = f"{what}: {len(sizes)} sizes, {_ends([words for words, _ in sizes])}; {beyond}"
    return words, replace(report, largest=(what, words), decisions=(tried, *report.decisions))


def _ends(sizes: Sequence[Sequence[str]]) -> str:
    first, last = " ".join(sizes[0]), " ".join(sizes[-1])
    return first if first == last else f"from {first} to {last}"


def _why_none(
    what: Largest, recipe: str, sizes: Sequence[Sequence[str]], memory: str | int | None, options: PlanOptions
) -> str:
    """Say what was tried where no relative of a recipe fits, and what to do."""
    if not sizes:
        cards = parse_cards(options.card, options.gpus)[1]
        if cards > 1 or options.micro_batch is not None:
            return "each size leaves some card without a normalisation group, or with fewer samples than --micro-batch"
        return f"this kind of model comes in one {what} alone"
    budget_bytes = _bytes(memory)
    budget = f"what {options.card} has" if budget_bytes is None else show_size(budget_bytes)
    smallest = " ".join(sizes[0])
    return (
        f"none of {len(sizes)} sizes fits {budget}, not even {smallest}; allow more memory, or see what that one "
        f"takes: frugan plan {shlex.quote(recipe)} {smallest}"
    )


def _fitting(
    relative: Recipe, what: Largest, memory: str | int | None, options: PlanOptions, *, only_fits: bool = False
) -> PlanReport | None:
    """Return the plan of a recipe's relative, whose batch is taken in one forward where that is in question.

    Args:
        only_fits: nothing is asked but whether it fits.

    Returns:
        None: it does not fit.
    """
    name, count = parse_cards(options.card, options.gpus, options.link)
    planner = planner_of(relative, (), replace(options, card=name, gpus=None))
    budget_bytes, in_one_forward = _budget_bytes(memory, planner, options), what == "batch"
    with suppress(TooSmall):
        if count > 1:
            report = plan_together(
                planner,
                count,
                _link(options),
                budget_bytes,
                in_one_forward=in_one_forward,
                only_fits=only_fits,
                say=options.say,
            )
        else:
            if in_one_forward:
                planner = planner.constrained_by(replace(planner.constraints, micro_batch=planner.training.batch))
            with planner:
                report = planner.report(budget_bytes, nearest_seconds=0 if only_fits else NEAREST_SECONDS)
        return report if report.fits else None
    return None


def _link(options: PlanOptions) -> Link:
    return GUESSED if options.link is None else parse_link(options.link)


def _budget_bytes(memory: str | int | None, planner: Planner, options: PlanOptions) -> int | None:
    """Return the budget on each card: all of a named one where none is asked for; None: any.

    Raises:
        BadInput: it is no size; or a link is given between cards that nobody knows.
    """
    if memory is not None:
        return _bytes(memory)
    if options.card is not None:
        return planner.card.memory_bytes  # asked about this card, and not about any
    if options.link is not None:
        raise BadInput(f"--link {options.link}: between which cards? Name them with --card, or give --memory")
    return None


def check_price(price_per_hour: float, options: PlanOptions) -> None:
    """Refuse a price that is none, or of a card whose speed is not known.

    Raises:
        BadInput: it is such a one.
    """
    if not 0 < price_per_hour < math.inf:
        raise BadInput(f"--price-per-hour {price_per_hour}: expected an amount above 0")
    if options.card is None and not options.calibrate and choose_card(None, choose_device()[0]).source != "measured":
        raise BadInput("--price-per-hour: for which card? Name it with --card, or measure this one with --calibrate")


def _with_command(
    report: PlanReport, recipe: str | Recipe, memory: str | int | None, fields: Sequence[str], options: PlanOptions
) -> PlanReport:
    """Return the report with the words that asked for it."""
    timed = options.calibrate or options.card is not None or report.card.source == "measured"
    if not isinstance(recipe, str):
        return replace(report, timed=timed)
    size = typed_size(memory) if isinstance(memory, int) else memory
    words = [recipe, *fields, *(["--memory", size] if size is not None else [])]
    words += [word for name in options.use for word in ("--use", name)]
    words += [word for name in options.avoid for word in ("--avoid", name)]
    words += ["--micro-batch", str(options.micro_batch)] if options.micro_batch is not None else []
    needs_weights = bool(frozen_layers(load_recipe(recipe, fields)))
    return replace(report, command=tuple(words), needs_weights=needs_weights, timed=timed)


def _can_be_shared(recipe: Recipe, cards: int, micro_batch: int | None) -> bool:
    """Return whether a relative's batch has a group for each card, and a card's part holds the micro-batch."""
    group = recipe.training.normalisation_batch or 1
    groups = recipe.training.batch // group
    return groups >= cards and (micro_batch is None or micro_batch <= groups // cards * group)


def _bytes(memory: str | int | None) -> int | None:
    if memory is None or isinstance(memory, str):
        return None if memory is None else parse_size(memory)
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < MIB:
        raise BadInput(f'memory {memory!r}: expected a size such as "6GiB", or a whole number of bytes from 1 MiB on')
    return memory
