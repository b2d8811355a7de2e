"""`plan`: does a recipe fit a card or several, by which savings, at what cost; and what is the largest that does."""

from collections.abc import Sequence
from dataclasses import replace

from frugan.api.plan.fit import PlanOptions, planner_of, report_of
from frugan.api.plan.fit_report import PlanReport
from frugan.api.plan.recipe_relatives import Largest, relatives
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
    return _plan(recipe, _bytes(memory), overrides, options or PlanOptions())


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
        planner_of(loaded, (), options)[0].close()
        options = replace(options, calibrate=False)  # once is enough
    _, cards = parse_cards(options.card, options.gpus)
    sizes = [each for each in relatives(loaded, what) if _can_be_shared(each[1], cards, options.micro_batch)]
    least, most = 0, len(sizes)
    best: tuple[tuple[str, ...], PlanReport] | None = None
    while least < most:  # what is larger takes more
        middle = (least + most) // 2
        words, relative = sizes[middle]
        report = _plan(relative, budget_bytes, (), options, in_one_forward=what == "batch", only_fits=True)
        if report.fits:
            best, least = (words, report), middle + 1
        else:
            most = middle
    if best is None:
        size = "it" if budget_bytes is None else show_size(budget_bytes)
        raise BadInput(f"--largest {what}: none of {len(sizes)} fits {size}; allow more memory")
    if cards > 1:  # what was left out while it was looked for
        words, relative = next(each for each in sizes if each[0] == best[0])
        return words, _plan(relative, budget_bytes, (), options, in_one_forward=what == "batch")
    return best


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
    planner, name = planner_of(recipe, overrides, replace(options, card=card))
    if in_one_forward:
        planner = replace(planner, wishes=replace(planner.wishes, micro_batch=planner.training.batch))
    try:
        if budget_bytes is None and options.card is not None:
            budget_bytes = planner.card.memory_bytes  # asked about this card, and not about any
        return report_of(planner, name, budget_bytes, nearest=not only_fits, say=options.say)
    finally:
        planner.remember()


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
