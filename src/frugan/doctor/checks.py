"""What the self-test checks: steps that must agree, memory as predicted, and whether the host waits for the device."""

import math
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from frugan.contract.phase import MicroBatch, Phase
from frugan.doctor.finding import Finding, judged, left_out
from frugan.doctor.trial import FP32, STREAMS_SEED, Way, begin, plan_by
from frugan.engine.accelerator.base import Accelerator
from frugan.engine.accelerator.choice import accelerator_of
from frugan.engine.device import release_memory
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision
from frugan.engine.state import TrainingState
from frugan.engine.step import Step
from frugan.engine.step_log import Readout
from frugan.engine.streams import Streams
from frugan.engine.training import Training
from frugan.engine.update import PhaseResult, Probe
from frugan.errors import TrainingFailed
from frugan.memory.cards import TIME_ERROR, Card, room_bytes
from frugan.memory.plan_space import SaverName
from frugan.memory.prediction import BlankPictures, Prediction, predict
from frugan.wording import first_line, show_size

# A card's own counters and switches.


@dataclass
class MeasuredMemory:
    """Memory that was taken inside `CardTools.watched`, known at its end."""

    allocated_bytes: int = 0  # most that lived at once
    reserved_bytes: int = 0  # most that torch's allocator reserved
    kept_bytes: int = 0  # what it still reserved at the end, for what lives on


@dataclass
class CardTools:
    """A card, by torch's own counters and switches."""

    device: torch.device  # with its number

    @property
    def card(self) -> Accelerator:
        """It, to the engine."""
        return accelerator_of(self.device)

    def wait(self) -> None:
        """Wait until all work that was queued is done."""
        self.card.synchronize()

    def refusing_to_wait(self) -> AbstractContextManager[None]:
        """Let whatever makes the host wait for the card raise RuntimeError."""
        return self.card.refusing_to_wait()

    def room_bytes(self) -> int:
        """What this process may come to reserve."""
        return room_bytes(self.device)

    @contextmanager
    def watched(self) -> Iterator[MeasuredMemory]:
        """Watch memory; what is there already does not count."""
        card = self.card
        card.synchronize()
        release_memory(self.device)
        live, reserved = card.live_bytes, card.reserved_bytes
        card.reset_peaks()
        taken = MeasuredMemory()
        yield taken
        card.synchronize()
        taken.allocated_bytes, taken.reserved_bytes = card.peak_live_bytes - live, (card.peak_bytes or 0) - reserved
        release_memory(self.device)
        taken.kept_bytes = card.reserved_bytes - reserved

    @contextmanager
    def capped(self, more_bytes: int) -> Iterator[None]:
        """Let this process have so much more than it has, and no more; what CUDA itself takes is not counted."""
        card = self.card
        card.synchronize()
        release_memory(self.device)
        before = card.limit_bytes
        card.limit(min(before, card.reserved_bytes + more_bytes))
        try:
            yield
        finally:
            card.limit(before)


def tools_of(device: torch.device) -> CardTools | None:
    """The tools of a device; None: it is no card."""
    return CardTools(device) if accelerator_of(device).is_card else None


# Memory and time of a recipe of ordinary size.

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


def real_size_on_a_card(subject: Training, card: CardTools, figures: Card, precision: Precision) -> list[Finding]:
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
        reason = first_line(error)
        outcomes.append(judged(RUNS_OUT, subject.name, f"not survived: {reason}", passed=False))
    return outcomes


def _begin(subject: Training, plan: Plan, card: CardTools) -> _Begun:
    networks = {name: network.to(card.device) for name, network in subject.make().items()}
    state = subject.state(plan, card.device, networks=networks)
    for scale in state.loss_scales.values():
        scale.found = True  # what is predicted is a step that is not repeated
    return _Begun(state, subject.step(BlankPictures(subject.stages[0].sources), Streams(STREAMS_SEED)), networks)


def judge_memory(name: str, predicted: Prediction, taken: MeasuredMemory, figures: Card) -> Finding:
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


def _time(subject: Training, begun: _Begun, plan: Plan, card: CardTools) -> float | None:
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


def _run_out(subject: Training, begun: _Begun, plan: Plan, card: CardTools, taken: MeasuredMemory) -> Finding:
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


# Whether the host waits.

WAITS = "the host waits for nothing"
MOST_FIRST_STEPS = 20
"""fp16 waits until it has found its loss scale; libraries are set up in the first steps."""
LEAST_FIRST_STEPS = 2


def waits_on_a_card(subject: Training, card: CardTools, precision: Precision = FP32) -> Finding:
    """A step on a card in which torch refuses whatever waits."""
    trial = begin(subject, Way(card.device, precision))
    for step in range(MOST_FIRST_STEPS):
        trial.run()
        if step + 1 >= LEAST_FIRST_STEPS and all(scale.found for scale in trial.state.loss_scales.values()):
            break
    card.wait()
    refusal = None
    try:
        with card.refusing_to_wait():
            readout = Readout.start(trial.state.step, trial.run(), {})
        readout.read()
    except RuntimeError as error:
        refusal = f"{first_line(error)} ({_where(error)})"
    return judged(
        WAITS,
        subject.family,
        refusal or f"a step in {precision.name} that is never waited for",
        passed=refusal is None,
        found=[refusal] if refusal else [],
        beside="a card",
    )


def _where(error: RuntimeError) -> str:
    """The last line outside torch: it asked."""
    torch_folder = Path(torch.__file__).parent
    own = [f for f in traceback.extract_tb(error.__traceback__) if torch_folder not in Path(f.filename).parents]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "within torch"


# Steps that must agree.

HOST = torch.device("cpu")
EXACT = 1e-5
"""In float64, where losses alone are fp32: 1.4e-6 was seen where a batch is split."""
EXACT_ON_CARDS = 1e-4
"""Sums that run in another order there; no card has been seen yet."""
FP32_TERMS, FP32_GRADIENTS = 5e-4, 5e-3
"""Relative; 6e-7 and 5e-6 were seen on a processor. What has eleven bits, as TF32 and fp16 do, was 0.001 to 0.002 and
0.007 to 0.024 away."""
HALF_TERMS = 0.1
"""Relative, of bf16's 8 bits; 0.015 was seen on a processor, 0.002 in fp16."""
FOUND_SCALE = 256.0
"""A loss scale such as fp16 comes down to; at its first one gradients within losses may be infinite."""
SMALL = 0.1
"""Terms nearer to zero are compared as if they were so large."""
REFUSED = ("during selective activation checkpoint", "under selective activation checkpoint")
"""What torch says of activations that are computed in place, and of double backward: the planner then offers none."""
SAME_STEP = "same step as the processor's"
ONLY_BESIDE_A_CARD: tuple[SaverName, ...] = ("offload", "ema-on-host", "optimizer-on-host")


def same_as_the_processor(subject: Training, device: torch.device) -> Finding:
    """One step on a card against the same step on the processor, both in float64."""
    there, here = begin(subject, Way(device, exact=True)), begin(subject, Way(HOST, exact=True))
    there.run()
    here.run()
    difference, where = largest_difference(there.tensors(), here.tensors())
    return judged(
        SAME_STEP,
        subject.family,
        f"largest difference {difference:.1e} ({where}), in float64",
        passed=difference < EXACT_ON_CARDS,
        difference=difference,
        limit=EXACT_ON_CARDS,
        where=where,
    )


def fp32_arithmetic(subject: Training, device: torch.device) -> Finding:
    """One step in fp32 against the processor's in float64: losses and gradient norms."""
    exact, here = begin(subject, Way(HOST, exact=True)).run(), begin(subject, Way(device)).run()
    terms, where = _terms_apart(exact, here, SMALL)
    gradients = max(
        _apart(float(a.gradients.norm), float(b.gradients.norm), 1e-6) for a, b in zip(exact, here, strict=True)
    )
    return judged(
        "fp32 against float64",
        subject.family,
        f"losses differ by {terms:.1e} ({where}), gradient norms by {gradients:.1e}",
        passed=terms < FP32_TERMS and gradients < FP32_GRADIENTS and _all_accepted(here),
        losses=terms,
        gradients=gradients,
        limits=[FP32_TERMS, FP32_GRADIENTS],
    )


def half_precision(subject: Training, device: torch.device, precision: Precision) -> Finding:
    """One step in half precision against the same in fp32, on the same device."""
    trial = begin(subject, Way(device, precision))
    for scale in trial.state.loss_scales.values():
        scale.scale.clamp_(max=FOUND_SCALE)
    full, half = begin(subject, Way(device)).run(), trial.run()
    difference, where = _terms_apart(full, half, SMALL)
    finite = all(result.finite_terms() for result in half)
    same = all(torch.equal(a.terms[n], b.terms[n]) for a, b in zip(full, half, strict=True) for n in a.terms)
    line = f"losses differ by {difference:.1%} ({where})"
    if not finite:
        line = f"losses are not finite in {precision.name}: set training.precision=fp32 on this card"
    elif same:
        line = f"losses are fp32's to the last digit: {precision.name} has not been used"
    return judged(
        f"{precision.name} against fp32",
        subject.family,
        line,
        passed=finite and not same and difference < HALF_TERMS,
        losses=difference if finite else None,
        limit=HALF_TERMS,
        finite=finite,
    )


def memory_saving(subject: Training, device: torch.device, saver: SaverName) -> Finding:
    """One step with a memory saving against the same without, in float64."""
    check, on_card = f"memory saving {saver}", accelerator_of(device).is_card
    if saver == "shard-optimizer":
        return left_out(check, subject.family, "this process is alone: there is nobody to share it with")
    if not on_card and saver in ONLY_BESIDE_A_CARD:
        return left_out(check, subject.family, "host and device are one memory here")
    plain, saving = begin(subject, Way(device, exact=True)), begin(subject, Way(device, exact=True, saver=saver))
    if saving.plan == plain.plan:
        return left_out(check, subject.family, "this kind of model has nothing that it could save")
    try:
        saving.run()
    except RuntimeError as error:
        if saver != "keep-products" or not any(words in str(error) for words in REFUSED):
            raise
        return left_out(check, subject.family, "never offered: torch refuses it for these networks")
    plain.run()
    difference, where = largest_difference(plain.tensors(), saving.tensors())
    limit = EXACT_ON_CARDS if on_card else EXACT
    line = f"largest difference {difference:.1e} ({where})"
    unused = saver == "offload" and saving.sent.count == 0
    return judged(
        check,
        subject.family,
        "nothing went to host memory" if unused else line,
        passed=difference < limit and not unused,
        difference=difference,
        limit=limit,
        where=where,
    )


class _RunsOut(Probe):
    """Lets memory run out at the first micro-batch that is as large as the batch, as torch says it."""

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def micro_batch_begins(self, state: TrainingState, phase: Phase, micro: MicroBatch) -> MicroBatch:
        """See `Probe`."""
        if micro.size == self._batch:
            raise torch.OutOfMemoryError("out of memory on purpose")
        return micro


def out_of_memory_is_survived(subject: Training, device: torch.device) -> Finding:
    """Memory that runs out in a step: the phase is repeated by a smaller plan, and the step is the same as without."""
    batch, asked = subject.batch, list[str]()

    def smaller(plan: Plan, phase: str, message: str) -> Plan:
        asked.append(phase)
        return replace(plan, micro_batch=subject.micro_batch)

    free, tight = begin(subject, Way(device, exact=True)), begin(subject, Way(device, exact=True), _RunsOut(batch))
    tight.step.run(tight.state, tight.plan, next_plan=smaller)
    free.run()
    difference, where = largest_difference(free.tensors(), tight.tensors())
    limit = EXACT_ON_CARDS if accelerator_of(device).is_card else EXACT
    return judged(
        "out of memory, on purpose",
        subject.family,
        f"repeated by a smaller plan in phase {asked[0]}; largest difference {difference:.1e} ({where})"
        if asked
        else "nothing was repeated",
        passed=bool(asked) and difference < limit,
        difference=difference,
        limit=limit,
        repeated=len(asked),
    )


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[float, str]:
    """Largest absolute difference between two sets of tensors, and where it is; what is missing is infinitely far."""
    if one.keys() != other.keys():
        return math.inf, ", ".join(sorted(one.keys() ^ other.keys())[:3])
    return max((_or_infinite(float((one[name].double() - other[name].double()).abs().max())), name) for name in one)


def _terms_apart(one: list[PhaseResult], other: list[PhaseResult], least: float) -> tuple[float, str]:
    """Largest relative difference of losses, and of which."""
    apart = [
        (_apart(float(a.terms[name].mean()), float(b.terms[name].mean()), least), f"{a.phase}/{name}")
        for a, b in zip(one, other, strict=True)
        for name in a.terms
    ]
    return max(apart)


def _apart(one: float, other: float, least: float) -> float:
    return _or_infinite(abs(one - other) / max(abs(one), least))


def _or_infinite(difference: float) -> float:
    """NaN is infinitely far from everything; in a maximum it would go unseen."""
    return math.inf if math.isnan(difference) else difference


def _all_accepted(results: list[PhaseResult]) -> bool:
    return all(bool(result.accepted) for result in results)
