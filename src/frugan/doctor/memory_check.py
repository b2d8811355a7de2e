"""What was predicted of a step, and what it takes on a card."""

import time
from dataclasses import dataclass, replace

import torch
from torch import nn

from frugan.doctor.card_tools import CudaCard, Taken
from frugan.doctor.finding import Finding, judged, left_out
from frugan.doctor.trial import STREAMS_SEED, Way, plan_by
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision
from frugan.engine.state import TrainingState
from frugan.engine.step import Step
from frugan.engine.streams import Streams
from frugan.engine.training import Training
from frugan.errors import TrainingFailed
from frugan.memory.blank_pictures import BlankPictures
from frugan.memory.cards import TIME_ERROR, Card
from frugan.memory.prediction import Prediction, predict
from frugan.memory.sizes import show_size

PREDICTED, TIME, RUNS_OUT = "memory as predicted", "time as predicted", "out of memory, by a cap"
ALLOCATED, RESERVED = 0.05, 0.10
"""Relative errors on a card that are let pass; workspaces count as far as they were measured or guessed."""
MEASURED_STEPS = 3
MOST_SECONDS = 30.0
"""For timing steps."""
CAPPED_STEPS = 2
ROOM_BESIDE = 0.08
"""More than the smaller plan took, so that it fits under the cap."""


@dataclass(frozen=True)
class _Begun:
    """A recipe's training on a card."""

    state: TrainingState
    step: Step
    networks: dict[str, nn.Module]


def real_size_on_a_card(subject: Training, card: CudaCard, figures: Card, precision: Precision) -> list[Finding]:
    """A recipe of ordinary size on a card: memory and time against their predictions, and a cap that is run into.

    Args:
        figures: what is known of the card.
    """
    way = Way(card.device, precision, micro_batch=subject.micro_batch)
    plan = plan_by(subject, subject.build("meta"), way)
    predicted = predict(subject, plan, "cuda", subject.stages[0])
    expected = predicted.reserved_bytes + figures.workspace_bytes
    if expected > card.room_bytes():
        why = f"takes {show_size(expected)}, and there is room for {show_size(card.room_bytes())}"
        return [left_out(check, subject.name, why) for check in (PREDICTED, TIME, RUNS_OUT)]
    with card.watched() as taken:
        begun = _begin(subject, plan, card)
        for _ in range(MEASURED_STEPS):
            begun.step.run(begun.state, plan, count_zeros=True)
    outcomes = [judge_memory(subject.name, predicted, taken, figures)]
    seconds = _time(subject, begun, plan, card)
    if seconds is None:
        outcomes.append(left_out(TIME, subject.name, f"all phases together take more than {MOST_SECONDS:.0f} s here"))
    else:
        outcomes.append(judge_time(subject.name, figures.seconds(predicted.work, precision), seconds))
    try:
        outcomes.append(_run_out(subject, begun, plan, card, taken))
    except RuntimeError as error:  # what was found before it is kept
        reason = str(error).partition("\n")[0]
        outcomes.append(judged(RUNS_OUT, subject.name, f"not survived: {reason}", passed=False))
    return outcomes


def _begin(subject: Training, plan: Plan, card: CudaCard) -> _Begun:
    networks = {name: network.to(card.device) for name, network in subject.make().items()}
    state = subject.state(plan, card.device, networks=networks)
    for scale in state.loss_scales.values():
        scale.found = True  # what is predicted is a step that is not repeated
    return _Begun(state, subject.step(BlankPictures(subject.stages[0].sources), Streams(STREAMS_SEED)), networks)


def judge_memory(name: str, predicted: Prediction, taken: Taken, figures: Card) -> Finding:
    """A step may take what its libraries were found to; beyond that and below, the prediction is off."""
    live_off = _off(taken.allocated_bytes, predicted.live_bytes, figures.workspace_bytes)
    reserved = predicted.reserved_bytes + figures.workspace_bytes
    reserved_off = _off(taken.reserved_bytes, predicted.reserved_bytes, figures.workspace_bytes)
    return judged(
        PREDICTED,
        name,
        (
            f"lives: predicted {show_size(predicted.live_bytes)}, taken {show_size(taken.allocated_bytes)}; reserved: "
            f"predicted {show_size(reserved)} with {show_size(figures.workspace_bytes)} of workspaces, taken "
            f"{show_size(taken.reserved_bytes)}"
        ),
        passed=abs(live_off) < ALLOCATED and abs(reserved_off) < RESERVED,
        predicted_live_bytes=predicted.live_bytes,
        taken_live_bytes=taken.allocated_bytes,
        predicted_reserved_bytes=predicted.reserved_bytes,
        workspace_bytes=figures.workspace_bytes,
        taken_reserved_bytes=taken.reserved_bytes,
        live_off=live_off,
        reserved_off=reserved_off,
        limits=[ALLOCATED, RESERVED],
    )


def _off(taken: int, predicted: int, workspaces: int) -> float:
    """By which share what was taken lies outside what was predicted, without workspaces or with."""
    if taken < predicted:
        return taken / predicted - 1
    return max(0.0, taken / (predicted + workspaces) - 1)


def judge_time(name: str, predicted_seconds: float, measured_seconds: float) -> Finding:
    """A step's time, which is predicted to about a third."""
    off = predicted_seconds / measured_seconds - 1
    return judged(
        TIME,
        name,
        f"predicted {predicted_seconds:.3g} s a step, measured {measured_seconds:.3g} s: {off:+.0%}",
        passed=abs(off) <= TIME_ERROR,
        predicted_seconds=predicted_seconds,
        measured_seconds=measured_seconds,
        off=off,
        limit=TIME_ERROR,
    )


def _time(subject: Training, begun: _Begun, plan: Plan, card: CudaCard) -> float | None:
    """Seconds of an average step, over as many as there are between two updates of the rarest phase; None: too many."""
    period = max(MEASURED_STEPS, *(phase.every for phase in subject.stages[0].phases))
    card.wait()
    began = time.perf_counter()
    for _ in range(period):
        begun.step.run(begun.state, plan)
        if time.perf_counter() - began > MOST_SECONDS:
            return None
    card.wait()
    return (time.perf_counter() - began) / period


def _run_out(subject: Training, begun: _Begun, plan: Plan, card: CudaCard, taken: Taken) -> Finding:
    """Steps by a plan that takes too much, under a cap that a smaller one keeps: they are repeated, and go on."""
    asked: list[str] = []
    least = replace(plan, recompute=subject.recomputable(begun.networks))

    def smaller(before: Plan, phase: str, message: str) -> Plan:
        if before == least:
            raise TrainingFailed(f"the smallest plan does not fit either, in phase {phase}: {message}")
        asked.append(phase)
        return plan if before.micro_batch > plan.micro_batch else least

    first, large = begun.state.step, replace(plan, micro_batch=subject.batch)
    with card.capped(int((1 + ROOM_BESIDE) * taken.reserved_bytes) - taken.kept_bytes):
        for _ in range(CAPPED_STEPS):
            begun.step.run(begun.state, large, next_plan=smaller)
    begun.step.run(begun.state, plan)
    if not asked:
        return left_out(RUNS_OUT, subject.name, "the larger plan kept within the cap as well")
    finite = all(bool(torch.isfinite(p).all()) for n in begun.networks.values() for p in n.parameters())
    told = ", ".join(dict.fromkeys(asked))
    return judged(
        RUNS_OUT,
        subject.name,
        f"ran out in {told}; repeated by a smaller plan, and {begun.state.step - first} steps done"
        if finite
        else f"ran out in {told}, and weights are not finite after that",
        passed=finite,
        repeated=len(asked),
        finite=finite,
    )
