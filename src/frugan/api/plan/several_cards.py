"""Plans for several equal cards that share every batch: how it is dealt to them, and what they wait for."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from frugan.api.plan.fit import PlanOptions, duration_seconds, planner_of, report_of
from frugan.api.plan.fit_report import PlanReport
from frugan.api.plan.recipe_planner import Planner
from frugan.api.plan.together import CardShare, Together, shares_in_words
from frugan.engine.plan import check_micro_batch
from frugan.engine.ranks.place import whole_parts
from frugan.engine.training import Training
from frugan.errors import BadInput
from frugan.memory.cards import Card, is_known
from frugan.memory.link import GUESSED, Link, Sum, parse_link, seconds_between, sums_of
from frugan.memory.plan_space import Wishes
from frugan.memory.savers import SaverName
from frugan.recipe.recipe import Recipe

SHARDS: SaverName = "shard-optimizer"
"""The saving that all ranks use, or none."""
_COUNTED = re.compile(r"(.+)x(\d+)")


def parse_cards(card: str | None, gpus: int | None) -> tuple[str | None, int]:
    """Name and number of the cards of "gtx-1080" or "gtx-1080x12"; no name: the card here, or one that is not named.

    Args:
        gpus: how many there are; None: as many as `card` says.

    Raises:
        BadInput: none, another number than `card` says, or cards of several kinds.
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
    if counted is None:
        return card, gpus or 1
    name, count = counted[1], int(counted[2])
    if count < 1:
        raise BadInput(f"--card {card}: expected at least one of them, or leave it out")
    if gpus is not None and gpus != count:
        raise BadInput(f"--gpus {gpus}: --card {card} names {count}; leave --gpus out, or make them agree")
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
        BadInput: more cards than groups, or as `report_of`.
    """
    link = GUESSED if options.link is None else parse_link(options.link)
    card, count = parse_cards(options.card, options.gpus)
    alone_use = tuple(name for name in options.use if name != SHARDS)  # one card has nobody to share with
    alone = replace(options, card=card, gpus=None, link=None, micro_batch=None, use=alone_use)
    lone, name = planner_of(recipe, overrides, alone)
    shared = replace(lone, gpus=count)
    _ = shared.training  # refuses more cards than groups
    if budget_bytes is None and options.card is None:
        return _ladder(shared, name, options)

    # The batch is dealt as equally as whole groups allow.
    whole = lone.training
    parts = whole_parts(-(-whole.batch // whole.group), [1.0] * count)
    samples = [part * whole.group for part in parts]
    if options.micro_batch is not None:
        check_micro_batch(options.micro_batch, max(samples), whole.group)
    if budget_bytes is None:
        budget_bytes = lone.card.memory_bytes

    alone_seconds = 0.0 if only_fits else _report(lone, name, budget_bytes).choice.whole_seconds

    # A plan for each share that cards have; the one with the least room stands for all.
    dealt = Counter(samples)  # samples -> ranks, in their order
    found: list[tuple[PlanReport, Planner]] = []
    for own in dealt:
        micro_batch = own if in_one_forward else options.micro_batch
        most = None if micro_batch is None else min(micro_batch, own)
        wishes = Wishes(most, frozenset(options.use), frozenset(options.avoid))
        planner = replace(lone, gpus=count, share=own, wishes=wishes)
        found.append((_report(planner, name, budget_bytes), planner))
    found = _all_sharing(found, name)
    report, planner = min(found, key=lambda pair: (pair[0].budget_bytes or 0) - pair[0].peak_bytes)
    if only_fits:
        return report  # that does not fit, if any does not

    # What all of them cost together, and what they wait for.
    shares = [_share(report, dealt[own], own, alone_seconds) for (report, _), own in zip(found, dealt, strict=True)]
    if not report.fits and not in_one_forward:
        report = report_of(planner, name, report.budget_bytes, say=options.say)
        planner.remember()
    sums, between_seconds = _sums(whole, link, count, planner.card if SHARDS in report.savers else None)
    together = Together(tuple(shares), link, sums, between_seconds, whole.batch)
    return replace(
        report,
        duration_seconds=duration_seconds(planner.recipe, together.step_seconds),
        together=together,
        decisions=(*report.decisions, *_decisions(samples, whole, together)),
    )


def _ladder(shared: Planner, name: str, options: PlanOptions) -> PlanReport:
    """Plans worth having for one of several cards that nobody has named.

    Raises:
        BadInput: a link between cards that nobody knows.
    """
    if options.link is not None:
        raise BadInput(f"--link {options.link}: between which cards? Name them with --card, or give --memory")
    if options.micro_batch is not None:
        check_micro_batch(options.micro_batch, shared.training.batch, shared.training.group)
        shared = replace(shared, wishes=replace(shared.wishes, micro_batch=options.micro_batch))
    return _report(shared, name, None)


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


def _report(planner: Planner, name: str, budget_bytes: int | None) -> PlanReport:
    try:
        return report_of(planner, name, budget_bytes, nearest=False)
    finally:
        planner.remember()


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


def _sums(training: Training, link: Link, cards: int, sharing: Card | None) -> tuple[tuple[Sum, ...], float]:
    """What is added up in an average step of the whole training, and the time that it takes.

    Args:
        sharing: the card, where weights are gathered after each update because their optimizers' state is shared out.
            What that takes at the pace of the card's own bus is in its time already; None: it is not.
    """
    networks = training.build("meta")
    found: dict[str, Sum] = {}
    seconds = 0.0
    for stage in training.distinct_stages:
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


def _decisions(samples: Sequence[int], training: Training, together: Together) -> list[str]:
    """A line for each choice: what, why, how to override."""
    link = together.link
    said = "a guess for cards in one machine; give yours with --link 8GB/s" if link.guess else "as asked"
    return [
        f"shares: {shares_in_words(samples, training.group)}, as equal as possible",
        f"link: {link.bytes_per_s / 1e9:.3g} GB/s to each card, {link.latency_s * 1e6:.3g} \u00b5s a message: {said}",
    ]
