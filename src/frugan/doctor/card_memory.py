"""Checks of a card's memory in the full self-test: limits, running out and copies, beside predictions."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from frugan.accelerator.host_memory import host_like
from frugan.doctor.cards import CardTools
from frugan.doctor.checks import EXACT_ON_CARDS
from frugan.doctor.comparison import largest_difference
from frugan.doctor.finding import Finding, judged, left_out, out_of_time
from frugan.doctor.real_size import Sized, begin_as_predicted
from frugan.doctor.trial import Way, begin, run_steps
from frugan.engine.plan import Plan
from frugan.engine.step.update import Probe
from frugan.errors import TrainingFailed
from frugan.planning.plan_report import PlanReport
from frugan.planning.planner import Planner
from frugan.recipe.loading import load_recipe
from frugan.stepmemory.calibration import measure_latency
from frugan.stepmemory.cards import TIME_ERROR, Budget, Card
from frugan.wording import GIB, MIB, show_size

LARGE_HELD, SMALL_HELD = (
    Sized("biggan-imagenet-128", ("training.batch=64",)),
    Sized("biggan-digits-32", ("training.batch=96", "training.precision=fp32")),
)
HELD_BYTES = 6 * GIB
SMALL_SHARE = 0.6
"""Limit of the small recipe, as a share of what its fastest plan reserves."""
RUNS_OUT_SMALL = Sized("biggan-digits-32", ("training.batch=96",))

HELD = "held under a limit"
SAME_WEIGHTS = "out of memory under a limit, to the same weights"
COPIES = "copies to and from the host"
HELD_STEPS = 4
COPIED_BYTES = 256 * MIB


def planned(sized: Sized, figures: Card, budget_bytes: int) -> PlanReport:
    """Plan a recipe for a budget on the card that these figures are of."""
    recipe = load_recipe(sized.recipe, sized.overrides)
    precision = figures.precision(recipe.training.precision)
    with Planner(recipe, figures, precision, name=sized.recipe) as planner:
        return planner.report(budget_bytes, nearest_seconds=0)


def held_under_a_limit(
    sized: Sized, card: CardTools, figures: Card, left_seconds: float, *, large: bool
) -> list[Finding]:
    """Steps by the plan for a budget on a card that is held to it."""
    room = card.room_bytes() + figures.context_bytes
    if large:
        budget_bytes = min(HELD_BYTES, room)
    else:
        fastest = planned(sized, figures, room).chosen.prediction.reserved_bytes
        budget_bytes = figures.context_bytes + figures.workspace_bytes + int(SMALL_SHARE * fastest)
    report = planned(sized, figures, budget_bytes)
    name, chosen = f"{sized.recipe}, {show_size(budget_bytes)}", report.chosen
    if not report.fits:
        return [left_out(HELD, name, f"the smallest plan takes {show_size(report.peak_bytes)}")]
    needed_seconds = HELD_STEPS * figures.seconds(chosen.work, chosen.plan.precision)
    if needed_seconds > left_seconds:
        return [out_of_time(HELD, name, needed_seconds, left_seconds)]
    accelerator = card.card
    before = accelerator.limit_bytes
    Budget.on(figures, budget_bytes).enforce(card.device)
    try:
        with card.watched() as taken:
            trial = begin_as_predicted(sized.training, chosen.plan, card.device)
            run_steps(trial, HELD_STEPS)
            held_bytes = accelerator.total_bytes - accelerator.free_bytes
            del trial
    finally:
        accelerator.limit(before)
    taken_bytes = taken.reserved_bytes + figures.context_bytes
    savers = ", ".join(report.savers) or "no savings"
    line = (
        f"{HELD_STEPS} steps by micro-batches of {report.micro_batch} ({savers}): taken {show_size(taken_bytes)} with "
        f"CUDA's context, predicted {show_size(report.peak_bytes)}; all programs on the card held "
        f"{show_size(held_bytes)}"
    )
    return [
        judged(
            HELD,
            name,
            line,
            passed=taken_bytes <= budget_bytes,
            budget_bytes=budget_bytes,
            predicted_bytes=report.peak_bytes,
            taken_bytes=taken_bytes,
            held_by_all_bytes=held_bytes,
            off=report.peak_bytes / taken_bytes - 1,
            micro_batch=report.micro_batch,
            savers=list(report.savers),
        )
    ]


def same_weights_after_running_out(card: CardTools, left_seconds: float) -> list[Finding]:
    """A step whose memory runs out under a limit goes on by a smaller plan, to the weights of one that had room."""
    subject, device = RUNS_OUT_SMALL.training, card.device
    large, small = Way(device, exact=True), Way(device, exact=True, micro_batch=subject.micro_batch)
    begun = time.perf_counter()
    reserved: list[int] = []
    for way in (large, small):
        with card.watched() as taken:
            trial = begin(subject, way, Probe())
            trial.run()
            if way is large:
                expected = trial.tensors()
            del trial
        reserved.append(taken.reserved_bytes)
    needed_seconds = time.perf_counter() - begun
    if needed_seconds > left_seconds - needed_seconds:
        return [out_of_time(SAME_WEIGHTS, subject.name, needed_seconds, left_seconds - needed_seconds)]
    cap_bytes = sum(reserved) // 2
    if cap_bytes <= reserved[1]:
        return [left_out(SAME_WEIGHTS, subject.name, "micro-batches take no less here than the batch at once")]
    phases: list[str] = []

    def smaller(before: Plan, phase: str, message: str) -> Plan:
        if before.micro_batch == subject.micro_batch:
            raise TrainingFailed(f"the smaller plan does not fit either, in phase {phase}: {message}")
        phases.append(phase)
        return replace(before, micro_batch=subject.micro_batch)

    with card.capped(cap_bytes):
        tight = begin(subject, large, Probe())
        tight.step.run(tight.state, tight.plan, next_plan=smaller)
    difference, where = largest_difference(expected, tight.tensors())
    line = f"ran out in {phases[0]}; largest difference {difference:.1e} ({where}), in float64" if phases else ""
    return [
        judged(
            SAME_WEIGHTS,
            subject.name,
            line or f"never ran out under {show_size(cap_bytes)}, though it took {show_size(reserved[0])}",
            passed=bool(phases) and difference < EXACT_ON_CARDS,
            taken_bytes=reserved[0],
            taken_by_smaller_bytes=reserved[1],
            limit_bytes=cap_bytes,
            repeated=len(phases),
            difference=difference,
            limit=EXACT_ON_CARDS,
        )
    ]


def copies(card: CardTools, figures: Card, _: float = math.inf) -> list[Finding]:
    """Bytes per second to the card and back, from pinned and from pageable memory."""
    here = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=card.device)
    pageable = torch.zeros(COPIED_BYTES, dtype=torch.uint8)
    pinned = host_like(here, "what is copied to measure the bus")
    ways: Mapping[str, Callable[[], object]] = {
        "pinned, to the card": partial(here.copy_, pinned, non_blocking=True),
        "pinned, to the host": partial(pinned.copy_, here, non_blocking=True),
        "pageable, to the card": partial(here.copy_, pageable),
        "pageable, to the host": partial(pageable.copy_, here),
    }
    return [_copied(way, call, card, figures) for way, call in ways.items()]


def _copied(way: str, call: Callable[[], object], card: CardTools, figures: Card) -> Finding:
    """Pinned memory is what plans count on; nothing is predicted of other memory."""
    reached = COPIED_BYTES / measure_latency(call, card.device, repeats=5)
    if not way.startswith("pinned"):
        return judged(COPIES, way, f"{reached / 1e9:.1f} GB/s", passed=True, measured_bytes_per_s=reached)
    off = figures.host_bytes_per_s / reached - 1
    return judged(
        COPIES,
        way,
        f"{reached / 1e9:.1f} GB/s, {figures.source} for plans: {figures.host_bytes_per_s / 1e9:.1f} GB/s ({off:+.0%})",
        passed=abs(off) <= TIME_ERROR,
        predicted_bytes_per_s=figures.host_bytes_per_s,
        measured_bytes_per_s=reached,
        off=off,
        limit=TIME_ERROR,
    )
