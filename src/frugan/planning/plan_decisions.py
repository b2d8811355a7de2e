"""Lines that say why a plan is as it is, one for each choice, with the way to override it."""

from collections.abc import Iterator, Mapping

from frugan.accelerator.precision import Precision
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.planning.candidate import PlanCandidate
from frugan.planning.links import bytes_between
from frugan.planning.plan_report import PlanReport
from frugan.planning.plan_space import PlanConstraints
from frugan.stepmemory.cards import DESKTOP_BYTES, PUBLISHED, Card
from frugan.wording import count, show_size, typed_size

NOTABLE_GAIN = 1.1
"""Speed of products in TF32 over that in fp32 from which on it is offered."""


def refusal(report: PlanReport) -> str:
    """Say that nothing fits."""
    return f"does NOT fit {show_size(report.budget_bytes or 0)}: it takes {show_size(report.peak_bytes)}"


def decisions(
    report: PlanReport,
    training: Training,
    precision: Precision,
    constraints: PlanConstraints,
    *,
    is_fastest: bool,
    blocks: Mapping[str, tuple[str, ...]],
) -> Iterator[str]:
    """Yield one line for each choice: what, why, how to override.

    Args:
        report: of the plan, without these lines.
        training: this card's share of it.
        precision: with the reason for it.
        constraints: what was asked of the plan.
        is_fastest: it is the fastest of all that were allowed, so that nothing was given up to fit.
        blocks: network -> blocks that may be recomputed.
    """
    chosen = report.chosen
    yield from _about_memory(report)
    best = report.card.precision("auto").name
    other = "fp32" if precision.name != "fp32" else "fp16" if best == "fp32" else best
    yield f"precision: {precision.name} ({precision.reason}); override with training.precision={other}"
    if precision.tf32:
        yield "TF32: on, so products of fp32 numbers have three digits; override with training.tf32=false"
    elif precision.name == "fp32" and (gain := report.card.tf32_gain) > NOTABLE_GAIN:
        yield (
            f"TF32: off, so products keep all digits of fp32; with training.tf32=true they have three and are up to "
            f"{gain:.2g} times as fast"
        )
    floor = f"never less than a normalisation group, {training.group}" if training.group > 1 else "any size will do"
    yield (
        f"micro-batch: {chosen.micro_batch} at a time, {count(chosen.accumulation, 'forward')} for {training.batch} "
        f"({floor}); "
        "override with --micro-batch"
    )
    yield "loss terms: one backward pass after the other where they are independent; saves activations, costs nothing"
    yield from _about_savings(report, constraints, is_fastest=is_fastest, blocks=blocks)
    yield (
        "cuDNN autotuning: off, because how much memory it takes cannot be predicted (in one published training, 17.7 "
        "GB in the first steps instead of 10.9); with memory to spare, set torch.backends.cudnn.benchmark = True "
        "before frugan.train in Python"
    )
    if between_bytes := sum(bytes_between(training.ranks).values()):
        yield (
            f"{training.ranks} cards: {show_size(between_bytes)} on each for summing gradients and for "
            f"communication, a guess; to train: torchrun --nproc-per-node={training.ranks} -m frugan train ... "
            "(docs/cluster.md)"
        )
    yield from _about_card(report.card)


def _about_savings(
    report: PlanReport,
    constraints: PlanConstraints,
    *,
    is_fastest: bool,
    blocks: Mapping[str, tuple[str, ...]],
) -> Iterator[str]:
    chosen = report.chosen
    for saver in chosen.savers:
        if saver in constraints.use:
            yield f"{saver}: asked for"
        elif saver != "micro-batch":
            why = _why(saver, fits=report.fits, is_fastest=is_fastest)
            yield f"{saver}: {_fewer_blocks(chosen.plan, blocks) if saver == 'recompute' else ''}{why}"
    if chosen.host_bytes:
        yield (
            f"host memory: {show_size(chosen.host_bytes)} for what this plan keeps there, most of it pinned; pictures "
            "and the program itself come on top"
        )
    if report.fits and blocks and not {"recompute", "keep-products"} & {*chosen.savers, *constraints.avoid}:
        yield "recompute: not needed, it fits without; switch it on with --use recompute"
    if constraints.avoid:
        yield f"ruled out: {', '.join(sorted({*constraints.avoid}))}"


def _fewer_blocks(plan: Plan, blocks: Mapping[str, tuple[str, ...]]) -> str:
    """Say how many blocks are recomputed where others keep everything."""
    counts = {network: (len(plan.recompute.get(network, ())), len(names)) for network, names in blocks.items()}
    if all(recomputed == number for recomputed, number in counts.values()):
        return ""
    of_each = ", ".join(f"{recomputed} of {network}'s {number}" for network, (recomputed, number) in counts.items())
    return f"{of_each} blocks, as few as fit; "


def _about_card(card: Card) -> Iterator[str]:
    kind = "guesses; `frugan plan --calibrate` on the card measures them"
    if card.source == "measured":
        processor = "guesses: this machine's CPU was measured for its speed, and has no CUDA"
        kind = "measured on it" if card.capability is not None else processor
    taken = f"{show_size(card.context_bytes)} for CUDA's context, {show_size(card.workspace_bytes)} for its libraries"
    yield f"card: {card.name}; {taken}: {kind}"
    if card.figures_of is not None:
        yield f"speed: guessed from what is published of the {card.figures_of}"


def _why(saver: str, *, fits: bool, is_fastest: bool) -> str:
    if not fits:
        return "part of the plan that promises to take least, which is still too large"
    if is_fastest:
        return f"part of the fastest plan; avoid it with --avoid {saver}"
    return f"every faster plan takes more than there is; avoid it with --avoid {saver}"


def _about_memory(report: PlanReport) -> Iterator[str]:
    """Yield a line for the memory that is planned with, and one for what is left of it beside a desktop."""
    card, budget_bytes = report.card, report.budget_bytes
    if budget_bytes is not None and card.memory_bytes is not None and budget_bytes > card.memory_bytes:
        has = f"{card.name} has {show_size(card.memory_bytes)} for programs"
        yield f"memory: {show_size(budget_bytes)} as asked, although {has}"
    if budget_bytes is not None and budget_bytes == card.memory_bytes and card.name in PUBLISHED:
        known = "as people have shown it" if PUBLISHED[card.name].left_mib is not None else "predicted"
        yield (
            f"memory: {show_size(budget_bytes)}, what the driver leaves of {card.name}'s {PUBLISHED[card.name].gib} GB "
            f"under Linux ({known}); override with --memory"
        )
    if report.desktop_budget_bytes is not None:
        yield (
            f"desktop: if one is drawn by this card, with a browser, about {show_size(DESKTOP_BYTES)} less is left, "
            f"{show_size(report.desktop_budget_bytes)}: {_beside_desktop(report.desktop_chosen, report.chosen)}"
        )


def _beside_desktop(candidate: PlanCandidate | None, alone: PlanCandidate) -> str:
    """Say whether a plan also fits beside a desktop, and which one does if not."""
    if candidate is None:
        return "no plan fits there"
    if candidate == alone:
        return "this plan fits there too"
    savers = ", ".join(saver for saver in candidate.savers if saver != "micro-batch") or "no other savings"
    peak_bytes = candidate.peak_bytes
    return (
        f"this plan does not fit there, but one of {show_size(peak_bytes)} does: micro-batch {candidate.micro_batch}, "
        f"{savers}, extra time {candidate.extra_time:.0%} (--memory {typed_size(peak_bytes)})"
    )


def shares_in_words(dealt: Mapping[int, int], group: int) -> str:
    """Say how a batch is dealt: "6 on 4 cards, 5 on 8 cards (normalisation groups of 32)".

    Args:
        dealt: samples -> cards that see so many.
    """
    words = ", ".join(
        f"{samples // group} on {cards} card{'s' if cards > 1 else ''}" for samples, cards in dealt.items()
    )
    return f"{words} ({f'normalisation groups of {group}' if group > 1 else 'samples'})"
