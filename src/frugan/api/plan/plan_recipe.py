"""`plan`: does a recipe fit a card or several, by which savings, at what cost; and what is the largest that does."""

import math
from collections.abc import Sequence
from dataclasses import replace

from frugan.api.machine.devices import choose_device
from frugan.api.plan.planner import Planner, PlanOptions, choose_card
from frugan.api.plan.recipe_relatives import Largest, relatives
from frugan.api.plan.report import PlanReport, needed_size
from frugan.api.plan.several_cards import parse_cards, plan_together
from frugan.errors import BadInput
from frugan.memory.sizes import parse_size, show_size
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe


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
    report = _plan(recipe, _bytes(memory), overrides, options)
    return _asked(report, recipe, memory, overrides, options)


def largest(
    recipe: str | Recipe,
    what: Largest,
    memory: str | int | None,
    overrides: Sequence[str] = (),
    options: PlanOptions | None = None,
) -> tuple[tuple[str, ...], PlanReport]:
    """The biggest relative of a recipe that fits a budget: fields to override, and its plan.

    Resolution and width are the family's own steps. A batch of any size fits, in micro-batches: the largest is the one
    of which every card takes its part in a single forward.

    Args:
        memory: as for `plan`, but None only where a card is named.

    Raises:
        BadInput: as `plan`; or none of them fits.
    """
    options = options or PlanOptions()
    loaded = load_recipe(recipe, overrides) if isinstance(recipe, str) else recipe
    budget_bytes = _bytes(memory)
    if budget_bytes is None and options.card is None:
        raise BadInput(f"--largest {what}: add what it should fit: --memory 6GiB, or --card NAME")
    if options.calibrate:
        Planner.of(loaded, (), options).close()
    once = replace(options, calibrate=False)  # measured once is enough
    _, cards = parse_cards(options.card, options.gpus)
    sizes = [each for each in relatives(loaded, what) if _can_be_shared(each[1], cards, options.micro_batch)]
    least, most = 0, len(sizes)
    best: tuple[tuple[str, ...], PlanReport] | None = None
    while least < most:  # what is larger takes more
        middle = (least + most) // 2
        words, relative = sizes[middle]
        report = _plan(relative, budget_bytes, (), once, in_one_forward=what == "batch", only_fits=True)
        if report.fits:
            best, least = (words, report), middle + 1
        else:
            most = middle
    if best is None:
        size = "it" if budget_bytes is None else show_size(budget_bytes)
        raise BadInput(f"--largest {what}: none of {len(sizes)} fits {size}; allow more memory")
    words, report = best
    if cards > 1:  # what was left out while it was looked for
        relative = next(other for fields, other in sizes if fields == words)
        report = _plan(relative, budget_bytes, (), once, in_one_forward=what == "batch")
    report = _asked(report, recipe, memory, (*overrides, *words), options)
    return words, replace(report, largest=(what, words))


def check_price(price_per_hour: float, options: PlanOptions) -> None:
    """Refuse a price that is none, or of a card whose speed is not known.

    Raises:
        BadInput: it is such a one.
    """
    if not 0 < price_per_hour < math.inf:
        raise BadInput(f"--price-per-hour {price_per_hour}: expected an amount above 0")
    if options.card is None and not options.calibrate and choose_card(None, choose_device()[0]).source != "measured":
        raise BadInput("--price-per-hour: for which card? Name it with --card, or measure this one with --calibrate")


def _asked(
    report: PlanReport, recipe: str | Recipe, memory: str | int | None, fields: Sequence[str], options: PlanOptions
) -> PlanReport:
    """A report that knows how it was asked for."""
    timed = options.calibrate or options.card is not None or report.card.source == "measured"
    if not isinstance(recipe, str):
        return replace(report, timed=timed)
    size = needed_size(memory) if isinstance(memory, int) else memory
    words = [recipe, *fields, *(["--memory", size] if size is not None else [])]
    words += [word for name in options.use for word in ("--use", name)]
    words += [word for name in options.avoid for word in ("--avoid", name)]
    words += ["--micro-batch", str(options.micro_batch)] if options.micro_batch is not None else []
    return replace(report, command=tuple(words), timed=timed)


def _plan(
    recipe: str | Recipe,
    budget_bytes: int | None,
    overrides: Sequence[str],
    options: PlanOptions,
    *,
    in_one_forward: bool = False,
    only_fits: bool = False,
) -> PlanReport:
    """Plan for one card or several.

    Args:
        only_fits: nothing is asked but whether it fits.
    """
    card, count = parse_cards(options.card, options.gpus)
    if count > 1:
        return plan_together(
            recipe, overrides, budget_bytes, options, in_one_forward=in_one_forward, only_fits=only_fits
        )
    if options.link is not None:
        raise BadInput(f"--link {options.link}: a link is between several cards; say how many with --gpus")
    planner = Planner.of(recipe, overrides, replace(options, card=card))
    if in_one_forward:
        planner = planner.wishing(replace(planner.wishes, micro_batch=planner.training.batch))
    if budget_bytes is None and options.card is not None:
        budget_bytes = planner.card.memory_bytes  # asked about this card, and not about any
    with planner:
        return planner.report(budget_bytes, nearest=not only_fits, say=options.say)


def _can_be_shared(recipe: Recipe, cards: int, micro_batch: int | None) -> bool:
    """Whether a relative's batch has a group for each card, and a card's part holds the micro-batch asked for."""
    group = recipe.training.normalisation_batch or 1
    groups = recipe.training.batch // group
    return groups >= cards and (micro_batch is None or micro_batch <= groups // cards * group)


def _bytes(memory: str | int | None) -> int | None:
    if memory is None or isinstance(memory, str):
        return None if memory is None else parse_size(memory)
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
        raise BadInput(f'memory {memory!r}: expected a size such as "6GiB", or a whole number of bytes')
    return memory
