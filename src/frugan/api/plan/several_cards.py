"""Plans for several cards that share every batch: how it is dealt to them, and what they wait for."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from frugan.api.plan.fit import PlanOptions, duration_seconds, planner_of, report_of
from frugan.api.plan.fit_report import PlanReport
from frugan.api.plan.recipe_planner import Planner, planned_precision
from frugan.api.plan.recipe_relatives import with_training
from frugan.api.plan.together import CardShare, Together, shares_in_words
from frugan.engine.plan import check_micro_batch
from frugan.engine.ranks.place import whole_parts
from frugan.errors import BadInput
from frugan.memory.cards import Card, is_known
from frugan.memory.link import GUESSED, Link, Sum, parse_link, seconds_between, sums_of
from frugan.memory.plan_space import Wishes
from frugan.memory.savers import SaverName
from frugan.memory.task import Task
from frugan.recipe.recipe import Recipe

SHARDS: SaverName = "shard-optimizer"
"""The saving that all ranks use, or none."""
_COUNTED = re.compile(r"(.+)x(\d+)")


@dataclass(frozen=True)
class CardKind:
    """Cards of one name.

    Attributes:
        name: as it was written; None: the card here, or one that is not named.
        count: how many.
    """

    name: str | None
    count: int


def parse_kinds(card: str | None, gpus: int | None) -> tuple[CardKind, ...]:
    """The cards of "gtx-1080", "gtx-1080x12" or "gtx-1080x8,rtx-3060x4".

    Args:
        gpus: how many there are in all; None: as many as are named.

    Raises:
        BadInput: none, or another number than are named.
    """
    if gpus is not None and gpus < 1:
        raise BadInput(f"--gpus {gpus}: expected at least one")
    if card is None:
        return (CardKind(None, gpus or 1),)
    words = card.split(",")
    counted = [None if is_known(word) else _COUNTED.fullmatch(word.strip()) for word in words]
    if len(words) == 1 and counted[0] is None:
        return (CardKind(card, gpus or 1),)
    kinds = tuple(
        CardKind(word.strip(), 1) if found is None else CardKind(found[1], int(found[2]))
        for word, found in zip(words, counted, strict=True)
    )
    for word, kind in zip(words, kinds, strict=True):
        if kind.count < 1:
            raise BadInput(f"--card {word.strip()}: expected at least one of them, or leave it out")
    if gpus is not None and gpus != (named := sum(kind.count for kind in kinds)):
        raise BadInput(f"--gpus {gpus}: --card {card} names {named}; leave --gpus out, or make them agree")
    return kinds


def plan_together(
    recipe: str | Recipe,
    overrides: Sequence[str],
    kinds: Sequence[CardKind],
    budget_bytes: int | None,
    options: PlanOptions,
    *,
    in_one_forward: bool = False,
    speeds: Sequence[float] | None = None,
) -> PlanReport:
    """Plan for cards that share every batch in whole normalisation groups, in proportion to their speed.

    Args:
        budget_bytes: on each card in all; None: all of each that is named.
        in_one_forward: each card takes its part at once.
        speeds: of each kind, where nothing is asked but whether it fits; None: as predicted.

    Returns:
        The plan of the card with the least room, and what all of them cost, but for given speeds. Without a budget, and
        a card to take it from: the ladder of one card.

    Raises:
        BadInput: more cards than groups, or as `report_of`.
    """
    link = GUESSED if options.link is None else parse_link(options.link)
    alone_use = tuple(name for name in options.use if name != SHARDS)  # one card has nobody to share with
    alone = replace(options, gpus=None, link=None, micro_batch=None, use=alone_use)
    named = [planner_of(recipe, overrides, replace(alone, card=kind.name)) for kind in kinds]
    name, planners = named[0][1], _in_one_precision([planner for planner, _ in named])
    count = sum(kind.count for kind in kinds)
    shared = replace(planners[0], gpus=count)
    _ = shared.task  # refuses more cards than groups
    if budget_bytes is None and options.card is None:
        return _ladder(shared, name, options)

    # The batch is dealt in proportion to how fast each card would train all of it alone.
    whole = planners[0].task
    alone_seconds = [1 / speed for speed in speeds or ()] or _alone_seconds(planners, name, budget_bytes)
    kind_of_rank = [number for number, kind in enumerate(kinds) for _ in range(kind.count)]
    parts = whole_parts(-(-whole.batch // whole.group), [1 / alone_seconds[number] for number in kind_of_rank])
    samples = [part * whole.group for part in parts]
    if options.micro_batch is not None:
        check_micro_batch(options.micro_batch, max(samples), whole.group)

    # A plan for each kind of card and each share that cards of it have; the one with the least room stands for all.
    dealt = Counter(zip(kind_of_rank, samples, strict=True))  # (kind, samples) -> ranks, in their order
    found: list[tuple[PlanReport, Planner]] = []
    for number, own in dealt:
        micro_batch = own if in_one_forward else options.micro_batch
        most = None if micro_batch is None else min(micro_batch, own)
        wishes = Wishes(most, frozenset(options.use), frozenset(options.avoid))
        planner = replace(planners[number], gpus=count, share=own, wishes=wishes)
        found.append((_report(planner, name, _budget_of(planner, budget_bytes)), planner))
    found = _all_sharing(found, name)
    report, planner = min(found, key=lambda pair: (pair[0].budget_bytes or 0) - pair[0].peak_bytes)
    if speeds is not None:
        return report  # that does not fit, if any does not

    # What all of them cost together, and what they wait for.
    shares = [
        _share(report, dealt[number, own], own, alone_seconds[number])
        for (report, _), (number, own) in zip(found, dealt, strict=True)
    ]
    if not report.fits and not in_one_forward:
        report = report_of(planner, name, report.budget_bytes, say=options.say)
        planner.remember()
    asked = named[0][0].recipe.training.precision
    sums, between_seconds = _sums(whole, link, count, planner.card if SHARDS in report.savers else None)
    together = Together(tuple(shares), link, sums, between_seconds, whole.batch)
    return replace(
        report,
        duration_seconds=duration_seconds(planner.recipe, together.step_seconds),
        together=together,
        decisions=(
            *report.decisions,
            *_decisions(planners, samples, whole, together, asked),
        ),
    )


def _ladder(shared: Planner, name: str, options: PlanOptions) -> PlanReport:
    """Plans worth having for one of several cards that nobody has named.

    Raises:
        BadInput: a link between cards that nobody knows.
    """
    if options.link is not None:
        raise BadInput(f"--link {options.link}: between which cards? Name them with --card, or give --memory")
    if options.micro_batch is not None:
        check_micro_batch(options.micro_batch, shared.task.batch, shared.task.group)
        shared = replace(shared, wishes=replace(shared.wishes, micro_batch=options.micro_batch))
    return _report(shared, name, None)


def relative_speeds(
    recipe: Recipe, kinds: Sequence[CardKind], budget_bytes: int | None, options: PlanOptions
) -> tuple[float, ...]:
    """How fast cards of each kind train a recipe; 1 where they are all of one."""
    if len(kinds) == 1:
        return (1.0,)
    alone = replace(options, gpus=None, link=None, micro_batch=None, use=())
    planners = _in_one_precision([planner_of(recipe, (), replace(alone, card=kind.name))[0] for kind in kinds])
    return tuple(1 / seconds for seconds in _alone_seconds(planners, recipe.family, budget_bytes))


def _alone_seconds(planners: Sequence[Planner], name: str, budget_bytes: int | None) -> list[float]:
    """Of an average step on the whole batch, if one card of each kind trained alone."""
    reports = [_report(planner, name, _budget_of(planner, budget_bytes)) for planner in planners]
    return [report.choice.whole_seconds for report in reports]


def _all_sharing(found: Sequence[tuple[PlanReport, Planner]], name: str) -> list[tuple[PlanReport, Planner]]:
    """All ranks share out the optimizers' state, where one of them has to."""
    if len({SHARDS in report.savers for report, _ in found}) == 1:
        return list(found)
    shared: list[tuple[PlanReport, Planner]] = []
    for report, planner in found:
        if SHARDS in report.savers:
            shared.append((report, planner))
            continue
        sharing = replace(planner, wishes=replace(planner.wishes, use=planner.wishes.use | {SHARDS}))
        shared.append((_report(sharing, name, report.budget_bytes), sharing))
    return shared


def _in_one_precision(planners: Sequence[Planner]) -> list[Planner]:
    """All ranks train in one precision: in the one that every card has, where the recipe leaves the choice."""
    names = {planner.precision.name for planner in planners}
    if len(names) == 1:
        return list(planners)
    recipe = with_training(planners[0].recipe, precision="fp32" if "fp32" in names else "fp16")
    return [replace(planner, recipe=recipe, precision=planned_precision(recipe, planner.card)) for planner in planners]


def _report(planner: Planner, name: str, budget_bytes: int | None) -> PlanReport:
    try:
        return report_of(planner, name, budget_bytes, nearest=False)
    finally:
        planner.remember()


def _budget_of(planner: Planner, asked_bytes: int | None) -> int:
    found = planner.card.memory_bytes if asked_bytes is None else asked_bytes
    assert found is not None  # a card that is named has a size
    return found


def _share(report: PlanReport, count: int, samples: int, alone_seconds: float) -> CardShare:
    assert report.budget_bytes is not None
    return CardShare(
        card=report.card.name,
        count=count,
        samples=samples,
        micro_batch=report.micro_batch,
        accumulation=report.accumulation,
        savers=report.savers,
        peak_bytes=report.peak_bytes,
        budget_bytes=report.budget_bytes,
        fits=report.fits,
        compute_seconds=report.choice.whole_seconds,
        alone_seconds=alone_seconds,
    )


def _sums(task: Task, link: Link, cards: int, sharing: Card | None) -> tuple[tuple[Sum, ...], float]:
    """What is added up in an average step of the whole training, and the time that it takes.

    Args:
        sharing: the card, where weights are gathered after each update because their optimizers' state is shared out.
            What that takes at the pace of the card's own bus is in its time already; None: it is not.
    """
    networks = task.build("meta")
    found: dict[str, Sum] = {}
    seconds = 0.0
    for stage in task.stages:
        here = sums_of(stage, networks)
        seconds += stage.share * seconds_between(link, here, cards)
        for each in here:
            if sharing is not None:
                gathered = link.gathered_bytes(each.size_bytes, cards)
                slower = max(0.0, gathered / link.bytes_per_s - gathered / sharing.host_bytes_per_s)
                seconds += stage.share * each.updates * slower
            before = found[each.phase].updates if each.phase in found else 0.0
            found[each.phase] = replace(each, updates=before + stage.share * each.updates)
    return tuple(found.values()), seconds


def _decisions(
    planners: Sequence[Planner], samples: Sequence[int], task: Task, together: Together, asked: str
) -> list[str]:
    """A line for each choice: what, why, how to override."""
    kinds = {planner.card.name for planner in planners}
    by_speed = "in proportion to their predicted speed; to train like this, by measured speed: --shares auto"
    why = by_speed if len(kinds) > 1 else "as equal as possible"
    lines = [f"shares: {shares_in_words(samples, task.group)}, {why}"]
    link = together.link
    said = "a guess for cards in one machine; give yours with --link 8GB/s" if link.guess else "as asked"
    lines.append(
        f"link: {link.bytes_per_s / 1e9:.3g} GB/s to each card, {link.latency_s * 1e6:.3g} \u00b5s a message: {said}"
    )
    recipe = planners[0].recipe
    if recipe.training.precision != asked:
        lines.append(
            f"precision: {recipe.training.precision}, which all of these cards support; all of them must train in the "
            f"same, so add training.precision={recipe.training.precision} when you train"
        )
    return lines
