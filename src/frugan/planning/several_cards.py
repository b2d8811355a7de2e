"""Plans for equal cards that share every batch in whole normalisation groups."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from frugan.engine.plan import check_micro_batch
from frugan.engine.ranks.place import whole_parts
from frugan.engine.run.training import Training
from frugan.errors import BadInput
from frugan.planning.links import Link, Sum, parse_link, seconds_between, sums_of
from frugan.planning.plan_decisions import shares_in_words
from frugan.planning.plan_report import PlanReport, Together
from frugan.planning.plan_space import SaverName
from frugan.planning.planner import Planner
from frugan.progress import Say, quiet
from frugan.stepmemory.cards import Card, is_known

SHARDS: SaverName = "shard-optimizer"
"""The saving that all ranks use, or none."""
_COUNTED = re.compile(r"(.+)x(\d{1,3})")
"""A card's name and how many there are; "rtx9999" is no 9,999 cards."""


def parse_cards(card: str | None, gpus: int | None, link: str | None = None) -> tuple[str | None, int]:
    """Return name and number of the cards of "gtx-1080" or "gtx-1080x12"; None: the card here, or one without a name.

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
    counted = None if card is None else _COUNTED.fullmatch(card.strip())
    if counted is not None and is_known(counted[0]) and not is_known(counted[1]):
        counted = None  # gtx970 is one
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
    lone: Planner,
    count: int,
    link: Link,
    budget_bytes: int | None,
    *,
    in_one_forward: bool = False,
    only_fits: bool = False,
    say: Say = quiet,
) -> PlanReport:
    """Plan for equal cards.

    Args:
        lone: the planner of one of them, with the constraints of all.
        count: how many there are.
        link: between any two of them.
        budget_bytes: on each card in all; None: the plans worth having for one of them.
        in_one_forward: each card takes its part at once.
        only_fits: nothing is asked but whether it fits.
        say: is given a line where nothing fits, before a change that would is looked for.

    Returns:
        The plan of the card with the highest peak, with what all of them cost unless `only_fits`. Without a budget the
        ladder of one card.

    Raises:
        BadInput: more cards than groups, or as `Planner.report`.
    """
    shared, whole = replace(lone, gpus=count), lone.training
    largest_share = shared.training.batch  # refuses more cards than groups
    constraints = lone.constraints
    if constraints.micro_batch is not None:
        check_micro_batch(constraints.micro_batch, largest_share, whole.group)
    if budget_bytes is None:
        return _report(shared, None)
    # One of the cards, as if it trained alone: it has nobody to share with.
    alone = lone.constrained_by(replace(constraints, micro_batch=None, use={*constraints.use} - {SHARDS}))
    alone_seconds = 0.0 if only_fits else _report(alone, budget_bytes).chosen.whole_seconds

    # The batch is dealt as equally as whole groups allow.
    groups = whole_parts(-(-whole.batch // whole.group), [1.0] * count)
    dealt = Counter(part * whole.group for part in groups)  # samples -> ranks, in their order
    planned = _planned(shared, dealt, budget_bytes, in_one_forward=in_one_forward)
    planner, report = max(planned, key=lambda pair: pair[1].peak_bytes)  # it stands for all
    if only_fits:
        return report  # does not fit if any share does not

    # What all of them cost together, and what they wait for.
    if not report.fits and not in_one_forward:
        with planner:
            report = planner.report(budget_bytes, say=say)
    sums, between_seconds = _sums(whole, link, count, planner.card if SHARDS in report.savers else None)
    parts = tuple((dealt[report.share], report) for _, report in planned)
    together = Together(parts, alone_seconds, link, sums, between_seconds, whole.batch)
    return replace(
        report,
        duration_seconds=planner.recipe.training.duration.seconds(whole.batch, together.step_seconds),
        together=together,
        decisions=(*report.decisions, *_decisions(dealt, whole, together)),
    )


def _planned(
    shared: Planner, dealt: Iterable[int], budget_bytes: int, *, in_one_forward: bool
) -> list[tuple[Planner, PlanReport]]:
    """Return a plan for each share that cards have; all of them share out the optimizers' state, or none does."""
    planned: list[tuple[Planner, PlanReport]] = []
    for share in dealt:
        micro_batch = share if in_one_forward else shared.constraints.micro_batch
        most = None if micro_batch is None else min(micro_batch, share)
        planner = replace(shared, share=share, constraints=replace(shared.constraints, micro_batch=most))
        planned.append((planner, _report(planner, budget_bytes)))
    if any(SHARDS in report.savers for _, report in planned):
        for at, (planner, report) in enumerate(planned):
            if SHARDS not in report.savers:
                sharing = planner.constrained_by(replace(planner.constraints, use={*planner.constraints.use, SHARDS}))
                planned[at] = sharing, _report(sharing, budget_bytes)
    return planned


def _report(planner: Planner, budget_bytes: int | None) -> PlanReport:
    with planner:
        return planner.report(budget_bytes, nearest_seconds=0)


def _sums(training: Training, link: Link, cards: int, sharing: Card | None) -> tuple[tuple[Sum, ...], float]:
    """Return what is added up in an average step of the whole training, and the time that it takes.

    Args:
        sharing: the card, if optimizer state is sharded and weights are gathered after each update. Its step time
            has that at the speed of its bus already, so only the excess is added. None: it is not sharded.
    """
    networks = training.build("meta")
    sums: dict[str, Sum] = {}
    seconds = 0.0
    for stage in training.distinct_stages:
        here = sums_of(stage, networks)
        seconds += stage.share * seconds_between(link, here, cards)
        for phase in here:
            if sharing is not None:
                gathered = link.gathered_bytes(phase.size_bytes, cards)
                slower = max(0.0, gathered / link.bytes_per_s - gathered / sharing.host_bytes_per_s)
                seconds += stage.share * phase.updates * slower
            before = sums[phase.phase].updates if phase.phase in sums else 0.0
            sums[phase.phase] = replace(phase, updates=before + stage.share * phase.updates)
    return tuple(sums.values()), seconds


def _decisions(dealt: Counter[int], training: Training, together: Together) -> list[str]:
    """Return a line for each choice: what, why, how to override."""
    link = together.link
    said = "a guess for cards in one machine; give yours with --link 8GB/s" if link.guess else "as asked"
    return [
        f"shares: {shares_in_words(dealt, training.group)}, as equal as possible",
        f"link: {link.bytes_per_s / 1e9:.3g} GB/s to each card, {link.latency_s * 1e6:.3g} \u00b5s a message: {said}",
    ]
