"""Why a plan is as it is: a line for each choice, and how to override it."""

from collections.abc import Iterator

from frugan.api.plan.report import COMPILED, PlanReport, Rung, forwards
from frugan.engine.compiled_phases import refused
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision
from frugan.engine.training import Training
from frugan.memory.cards import Card
from frugan.memory.plan_space import Wishes
from frugan.memory.sizes import show_size


def decisions(
    report: PlanReport, training: Training, precision: Precision, wishes: Wishes, between_bytes: int
) -> Iterator[str]:
    """One line for each choice: what, why, how to override.

    Args:
        report: of the plan, without these lines.
        training: this card's share of it.
        precision: with the reason for it.
        wishes: what was asked of the plan.
        between_bytes: for summing gradients and for communication.
    """
    rung = report.rung
    yield from _about_budget(report.card, report.budget_bytes)
    other = "fp16" if precision.name == "fp32" else "fp32"
    yield f"precision: {precision.name} ({precision.reason}); override with training.precision={other}"
    floor = f"never less than a normalisation group, {training.group}" if training.group > 1 else "any size will do"
    yield (
        f"micro-batch: {rung.micro_batch} at a time, {forwards(rung.accumulation)} for {training.batch} ({floor}); "
        "override with --micro-batch"
    )
    yield "loss terms: one backward pass after the other where they are independent; saves activations, costs nothing"
    yield from _about_savings(wishes, rung, fits=report.fits)
    yield (
        "cuDNN autotuning: off, because how much memory it takes cannot be predicted (in one published training, 17.7 "
        "GB in the first steps instead of 10.9); with memory to spare, set torch.backends.cudnn.benchmark = True "
        "before frugan.train in Python"
    )
    yield from _compiled(training, report.choice.plan)
    if between_bytes:
        yield (
            f"{training.ranks} cards: {show_size(between_bytes)} on each for summing gradients and for "
            f"communication, a guess; to train: torchrun --nproc-per-node={training.ranks} -m frugan train ... "
            "(docs/cluster.md)"
        )
    yield from _about_card(report.card)


def _about_budget(card: Card, budget_bytes: int | None) -> Iterator[str]:
    if budget_bytes is not None and card.memory_bytes is not None and budget_bytes > card.memory_bytes:
        yield f"memory: {show_size(budget_bytes)} as asked, although {card.name} has {show_size(card.memory_bytes)}"
    if budget_bytes == card.memory_bytes is not None:
        yield f"memory: all of {card.name}; if it also drives your desktop, give less with --memory"


def _about_savings(wishes: Wishes, rung: Rung, *, fits: bool) -> Iterator[str]:
    for saver in rung.savers:
        if saver in wishes.use:
            yield f"{saver}: asked for"
        elif saver != "micro-batch":
            yield f"{saver}: {_why(saver, fits)}"
    if rung.host_bytes:
        yield (
            f"host memory: {show_size(rung.host_bytes)} for what this plan keeps there, most of it pinned; pictures "
            "and the program itself come on top"
        )
    if fits and not {"recompute", "keep-products"} & {*rung.savers}:
        yield "recompute: not needed, it fits without; switch it on with --use recompute"
    if wishes.avoid:
        yield f"ruled out: {', '.join(sorted({*wishes.avoid}))}"


def _about_card(card: Card) -> Iterator[str]:
    kind = "guesses; `frugan plan --calibrate` on the card measures them"
    if card.source == "measured":
        processor = "guesses: this machine's CPU was measured for its speed, and has no CUDA"
        kind = "measured on it" if card.capability is not None else processor
    taken = f"{show_size(card.context_bytes)} for CUDA's context, {show_size(card.workspace_bytes)} for its libraries"
    yield f"card: {card.name}; {taken}: {kind}"
    if card.figures_of is not None:
        yield f"speed: guessed from what is published of the {card.figures_of}"


def _compiled(training: Training, plan: Plan) -> Iterator[str]:
    """How compiled phases are priced, which are not, and how they are started."""
    if not training.compiled:
        return
    yield COMPILED
    reasons = {phase.name: refused(phase, plan, shared=training.in_parts) for phase in training.phases}
    for reason in dict.fromkeys(reason for reason in reasons.values() if reason is not None):
        names = ", ".join(name for name, found in reasons.items() if found == reason)
        yield f"phases {names}: priced without compiling: {reason}"
    if plan.cuda_graphs:
        yield (
            "CUDA graphs: starting the compiled step's kernels one by one takes the host longer than the card works at "
            "them; a graph keeps its memory, which is counted; on no card has this run so far"
        )


def _why(saver: str, fits: bool) -> str:
    if not fits:
        return "part of the smallest plan, which is still too large"
    return f"needed to fit, and the fastest way to; avoid it with --avoid {saver}"
