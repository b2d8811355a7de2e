"""`plan`: whether a recipe fits a card, or several that share every batch, how, and what it costs."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from frugan.engine.plan import check_micro_batch
from frugan.engine.ranks.place import whole_parts
from frugan.engine.run.training import Training
from frugan.errors import BadInput
from frugan.planning.links import GUESSED, Link, Sum, parse_link, seconds_between, sums_of
from frugan.planning.plan_report import CardShare, PlanReport, Together, shares_in_words
from frugan.planning.plan_space import PlanConstraints, SaverName
from frugan.planning.planner import NEAREST_SECONDS, Planner
from frugan.progress import Say, quiet
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.recipe.relatives import Largest, relatives
from frugan.setup.devices import choose_device
from frugan.stepmemory.calibration import calibrate, choose_card, save_calibration
from frugan.stepmemory.cards import Card, TooSmall, is_known
from frugan.wording import parse_size, show_size, typed_size

SHARDS: SaverName = "shard-optimizer"
"""The saving that all ranks use, or none."""
_COUNTED = re.compile(r"(.+)x(\d{1,3})")
"""A card's name and how many there are; "rtx9999" is no 9,999 cards."""


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
        """What is asked of plans."""
        return PlanConstraints(self.micro_batch, self.use, self.avoid)


def options_of_choice(
    recipe: str | Recipe, overrides: Sequence[str], options: PlanOptions
) -> tuple[PlanOptions, tuple[str, ...]]:
    """For cards that would share a normalisation group, which is not predicted, one of them, and a line that says so;
    else the same options and none.

    Raises:
        BadInput: unknown recipe, or what is said of the cards contradicts itself.
    """
    name, count = parse_cards(options.card, options.gpus, options.link)
    loaded = load_recipe(recipe, overrides) if isinstance(recipe, str) else recipe
    if _can_be_shared(loaded, count, None):
        return options, ()
    line = f"cards: planned for one of the {count}; how they share a normalisation group is not predicted"
    return replace(options, card=name, gpus=None, link=None), (line,)


def planner_of(recipe: str | Recipe, overrides: Sequence[str], options: PlanOptions) -> Planner:
    """A planner for a recipe on one card, measured first if that is asked for.

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
        precision=card.precision(loaded.training.precision),
        constraints=options.constraints,
        name=name,
        gpus=options.gpus or 1,
        tell=options.tell,
    )
    if options.micro_batch is not None:
        check_micro_batch(options.micro_batch, planner.training.batch, loaded.training.normalisation_batch or 1)
    return planner


def parse_cards(card: str | None, gpus: int | None, link: str | None = None) -> tuple[str | None, int]:
    """Name and number of the cards of "gtx-1080" or "gtx-1080x12"; no name: the card here, or one that is not named.

    Args:
        gpus: how many there are; None: as many as `card` says.
        link: what is between them; None: a guess.

    Raises:
        BadInput: none, another number than `card` says, or cards of several kinds; a link of one card, or that is none.
    """
    if gpus is not None and gpus < 1:
        raise BadInput(f"--gpus {gpus}: expected at least one")
    if card is not None and "," in card:
        raise BadInput(
            f"--card {card}: a plan is for cards of one kind. Ask for each kind as if all cards were of it, such as "
            "--card gtx-1080x12: the slowest kind says how long a step takes, the smallest what fits; in training, "
            "--shares gives each rank its part of the batch"
        )
    counted = None if card is None or is_known(card) else _COUNTED.fullmatch(card.strip())
    name, count = (card, gpus or 1) if counted is None else (counted[1], int(counted[2]))
    if count < 1:
        raise BadInput(f"--card {card}: expected at least one of them, or leave it out")
    if gpus is not None and gpus != count:
        raise BadInput(f"--gpus {gpus}: --card {card} names {count}; leave --gpus out, or make them agree")
    if link is not None:
        if count == 1:
            raise BadInput(f"--link {link}: a link is between several cards; say how many with --gpus")
        parse_link(link)
    return name, count


def plan_together(
    recipe: str | Recipe,
    overrides: Sequence[str],
    budget_bytes: int | None,
    options: PlanOptions,
    *,
    in_one_forward: bool = False,
    only_fits: bool = False,
) -> PlanReport:
    """Plan for equal cards that share every batch in whole normalisation groups.

    Args:
        budget_bytes: on each card in all; None: all of each that is named.
        in_one_forward: each card takes its part at once.
        only_fits: nothing is asked but whether it fits.

    Returns:
        The plan of the card with the least room, and what all of them cost, but where only the first is asked. Without
        a budget, and a card to take it from: the ladder of one card.

    Raises:
        BadInput: more cards than groups, or as `Planner.report`.
    """
    link = GUESSED if options.link is None else parse_link(options.link)
    card, count = parse_cards(options.card, options.gpus)
    # One of the cards, as if it trained alone: it has nobody to share with.
    alone = replace(options, card=card, gpus=None, link=None, micro_batch=None, use={*options.use} - {SHARDS})
    lone = planner_of(recipe, overrides, alone)
    shared = replace(lone, gpus=count)
    _ = shared.training  # refuses more cards than groups
    if budget_bytes is None and options.card is None:
        return _ladder(shared, options)

    # The batch is dealt as equally as whole groups allow.
    whole = lone.training
    groups = whole_parts(-(-whole.batch // whole.group), [1.0] * count)
    dealt = Counter(each * whole.group for each in groups)  # samples -> ranks, in their order
    if options.micro_batch is not None:
        check_micro_batch(options.micro_batch, max(dealt), whole.group)
    if budget_bytes is None:
        budget_bytes = lone.card.memory_bytes
    assert budget_bytes is not None  # a card that is named has a size
    alone_seconds = 0.0 if only_fits else _report(lone, budget_bytes).choice.whole_seconds

    planned = _planned(shared, dealt, budget_bytes, options, in_one_forward=in_one_forward)
    planner, report = max(planned, key=lambda pair: pair[1].peak_bytes)  # it stands for all
    if only_fits:
        return report  # that does not fit, if any does not

    # What all of them cost together, and what they wait for.
    if not report.fits and not in_one_forward:
        with planner:
            report = planner.report(budget_bytes, say=options.say)
    sums, between_seconds = _sums(whole, link, count, planner.card if SHARDS in report.savers else None)
    shares = tuple(CardShare(dealt[each.share], each, alone_seconds) for _, each in planned)
    together = Together(shares, link, sums, between_seconds, whole.batch)
    return replace(
        report,
        duration_seconds=planner.recipe.training.duration.seconds(whole.batch, together.step_seconds),
        together=together,
        decisions=(*report.decisions, *_decisions(dealt, whole, together)),
    )


def _planned(
    shared: Planner, dealt: Iterable[int], budget_bytes: int, options: PlanOptions, *, in_one_forward: bool
) -> list[tuple[Planner, PlanReport]]:
    """A plan for each share that cards have; all of them share out the optimizers' state, or none does."""
    planned: list[tuple[Planner, PlanReport]] = []
    for own in dealt:
        micro_batch = own if in_one_forward else options.micro_batch
        most = None if micro_batch is None else min(micro_batch, own)
        planner = replace(shared, share=own, constraints=replace(options.constraints, micro_batch=most))
        planned.append((planner, _report(planner, budget_bytes)))
    if any(SHARDS in report.savers for _, report in planned):
        for at, (planner, report) in enumerate(planned):
            if SHARDS not in report.savers:
                sharing = planner.constrained_by(replace(planner.constraints, use={*planner.constraints.use, SHARDS}))
                planned[at] = sharing, _report(sharing, budget_bytes)
    return planned


def _ladder(shared: Planner, options: PlanOptions) -> PlanReport:
    """Plans worth having for one of several cards that nobody has named.

    Raises:
        BadInput: a link between cards that nobody knows.
    """
    if options.link is not None:
        raise BadInput(f"--link {options.link}: between which cards? Name them with --card, or give --memory")
    if options.micro_batch is not None:
        check_micro_batch(options.micro_batch, shared.training.batch, shared.training.group)
        shared = shared.constrained_by(replace(shared.constraints, micro_batch=options.micro_batch))
    return _report(shared, None)


def _report(planner: Planner, budget_bytes: int | None) -> PlanReport:
    with planner:
        return planner.report(budget_bytes, nearest_seconds=0)


def _sums(training: Training, link: Link, cards: int, sharing: Card | None) -> tuple[tuple[Sum, ...], float]:
    """What is added up in an average step of the whole training, and the time that it takes.

    Args:
        sharing: the card, where weights are gathered after each update because their optimizers' state is shared out.
            What that takes at the pace of the card's own bus is in its time already; None: it is not.
    """
    networks = training.build("meta")
    sums: dict[str, Sum] = {}
    seconds = 0.0
    for stage in training.distinct_stages:
        here = sums_of(stage, networks)
        seconds += stage.share * seconds_between(link, here, cards)
        for each in here:
            if sharing is not None:
                gathered = link.gathered_bytes(each.size_bytes, cards)
                slower = max(0.0, gathered / link.bytes_per_s - gathered / sharing.host_bytes_per_s)
                seconds += stage.share * each.updates * slower
            before = sums[each.phase].updates if each.phase in sums else 0.0
            sums[each.phase] = replace(each, updates=before + stage.share * each.updates)
    return tuple(sums.values()), seconds


def _decisions(dealt: Counter[int], training: Training, together: Together) -> list[str]:
    """A line for each choice: what, why, how to override."""
    link = together.link
    said = "a guess for cards in one machine; give yours with --link 8GB/s" if link.guess else "as asked"
    return [
        f"shares: {shares_in_words(dealt, training.group)}, as equal as possible",
        f"link: {link.bytes_per_s / 1e9:.3g} GB/s to each card, {link.latency_s * 1e6:.3g} \u00b5s a message: {said}",
    ]


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
        planner_of(loaded, (), options)
    once = replace(options, calibrate=False)  # measured once is enough
    _, cards = parse_cards(options.card, options.gpus)
    sizes = [each for each in relatives(loaded, what) if _can_be_shared(each[1], cards, options.micro_batch)]
    least, most = 0, len(sizes)
    best: tuple[tuple[str, ...], PlanReport] | None = None
    while least < most:  # what is larger takes more
        middle = (least + most) // 2
        words, relative = sizes[middle]
        with suppress(TooSmall):
            report = _plan(relative, budget_bytes, (), once, in_one_forward=what == "batch", only_fits=True)
            if report.fits:
                best, least = (words, report), middle + 1
                continue
        most = middle
    if best is None:
        size = "it" if budget_bytes is None else show_size(budget_bytes)
        raise BadInput(f"--largest {what}: none of {len(sizes)} fits {size}; allow more memory")
    words, report = best
    if cards > 1 or options.card is not None:  # what was left out while it was looked for
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
    size = typed_size(memory) if isinstance(memory, int) else memory
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
    card, count = parse_cards(options.card, options.gpus, options.link)
    if count > 1:
        return plan_together(
            recipe, overrides, budget_bytes, options, in_one_forward=in_one_forward, only_fits=only_fits
        )
    planner = planner_of(recipe, overrides, replace(options, card=card))
    if in_one_forward:
        planner = planner.constrained_by(replace(planner.constraints, micro_batch=planner.training.batch))
    if budget_bytes is None and options.card is not None:
        budget_bytes = planner.card.memory_bytes  # asked about this card, and not about any
    with planner:
        return planner.report(budget_bytes, nearest_seconds=0 if only_fits else NEAREST_SECONDS, say=options.say)


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
