"""What only the full self-test tries on a card, at sizes that people train at: each figure beside its prediction."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, supported_activities

from frugan.api.plan.plan_recipe import plan
from frugan.api.setup import training_of
from frugan.doctor.cards import CardTools
from frugan.doctor.checks import EXACT_ON_CARDS, largest_difference, waiting_refused
from frugan.doctor.finding import Finding, judged, left_out, out_of_time
from frugan.doctor.real_size import begin_as_predicted
from frugan.doctor.trial import FP32, PinnedPictures, Trial, Way, begin, plan_by
from frugan.engine.accelerator.choice import accelerator_of
from frugan.engine.accelerator.cuda import Cuda
from frugan.engine.compiled_phases import CompiledPhases, missing_compiler
from frugan.engine.host_memory import host_like
from frugan.engine.plan import Plan
from frugan.engine.precision import PrecisionName
from frugan.engine.training import Training
from frugan.engine.update import Probe
from frugan.errors import TrainingFailed
from frugan.files import Folders
from frugan.memory.calibration import measure_latency
from frugan.memory.cards import TIME_ERROR, Budget, Card
from frugan.memory.plan_space import SaverName
from frugan.memory.prediction import BlankPictures, predict
from frugan.memory.work import WorkCounter
from frugan.recipe.loading import load_recipe
from frugan.wording import GIB, MIB, show_size


@dataclass(frozen=True)
class Sized:
    """A built-in recipe at a size that a card trains in seconds."""

    recipe: str
    overrides: tuple[str, ...] = ()
    precision: PrecisionName = "fp32"
    saver: SaverName | None = None  # beside the smaller micro-batch

    @property
    def training(self) -> Training:
        """From its first step on, as steps are written."""
        made = training_of(load_recipe(self.recipe, self.overrides))
        return replace(made, name=self.recipe, compiled=False, make_grids=None)


EIGHT = (
    Sized("biggan-imagenet-128", ("training.batch=64",), "auto", "recompute"),
    Sized("stylegan2-ffhq-256", ("training.batch=16",), "auto"),
    Sized("saehd-df-ud-256", (), "auto"),
    Sized("biggan-deep-imagenet-128", ("training.batch=64",), "auto", "keep-products"),
    Sized("stylegan2-cifar10"),
    Sized("biggan-cifar10-32", ("training.batch=100",)),
    Sized("saehd-demo-64", (), "fp32", "optimizer-on-host"),
    Sized("biggan-digits-32", ("training.batch=48",)),
)
"""The largest first; of every family one that a slow card trains too."""
COUNTED = (Sized("biggan-digits-32"), Sized("stylegan2-digits-32"), Sized("saehd-demo-64"))
"""In which a host has most to start beside what a card has to do."""
LARGE_HELD, SMALL_HELD = (
    Sized("biggan-imagenet-128", ("training.batch=64",)),
    Sized("biggan-digits-32", ("training.batch=96", "training.precision=fp32")),
)
HELD_BYTES = 6 * GIB
SMALL_SHARE = 0.6
"""Of what its fastest plan reserves: the small recipe's limit."""
RUNS_OUT_SMALL = Sized("biggan-digits-32", ("training.batch=96",))
COMPILED = Sized("biggan-digits-32")

LAUNCHES, WAITS = "launches as predicted", "the host waits for nothing in two steps"
HELD = "held under a limit"
SAME_WEIGHTS = "out of memory under a limit, to the same weights"
COMPILES = "compiled, and as graphs"
COPIES = "copies to and from the host"
MISCOUNTED = 0.3
"""Relative: torch does in one operation on one kind of device what it does in several on another; on a processor it was
0.2."""
HELD_STEPS, TIMED_STEPS = 4, 3
COMPILE_SECONDS = 90.0
COMPILED_APART = 1e-3
"""Relative, of gradient norms in fp32: fused kernels add up in an order of their own."""
COPIED_BYTES = 256 * MIB


class OperationCounter(WorkCounter):
    """Counts operations as those of a step without data are counted; what makes no memory is told by its kind."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `WorkCounter`."""
        if func.is_view:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def launches_and_waits(sized: Sized, card: CardTools, figures: Card, left_seconds: float) -> list[Finding]:
    """Two steps in which torch refuses whatever waits; operations and kernels that a step starts."""
    subject, device = sized.training, card.device
    by = plan_by(subject, subject.build("meta"), Way(device, FP32, micro_batch=subject.micro_batch))
    work = predict(subject, by, "cuda", subject.stages[0]).work
    period = max(phase.every for phase in subject.stages[0].phases)
    needed_seconds = 2 * (2 + period) * figures.seconds(work, FP32)
    if needed_seconds > left_seconds:
        return [out_of_time(check, sized.recipe, needed_seconds, left_seconds) for check in (WAITS, LAUNCHES)]
    pinned = PinnedPictures(BlankPictures(subject.stages[0].sources), device)
    trial = begin_as_predicted(subject, by, device, pictures=pinned)
    _steps(trial, 2)
    card.wait()
    refusal = waiting_refused(card, trial, 2)
    waits = judged(
        WAITS,
        sized.recipe,
        refusal or "two steps in fp32 that are never waited for",
        passed=refusal is None,
        predicted_waits=0,
        measured_waits=0 if refusal is None else 1,
        found=[refusal] if refusal else [],
    )
    trial = begin_as_predicted(subject, by, device)  # what was refused may have left it half a step
    _steps(trial, 2)
    with OperationCounter() as counter:
        _steps(trial, period)
    measured = counter.work.operations / period
    off = work.operations / measured - 1
    kernels = _kernels(trial, period)
    told = f", {kernels:,.0f} kernels" if kernels is not None else "; this torch's profiler sees no kernels of the card"
    line = f"{measured:,.0f} operations a step, predicted {work.operations:,.0f} ({off:+.1%}){told}"
    launches = judged(
        LAUNCHES,
        sized.recipe,
        line,
        passed=abs(off) <= MISCOUNTED,
        predicted_operations=work.operations,
        measured_operations=measured,
        predicted_kernels=work.operations,
        measured_kernels=kernels,
        off=off,
        limit=MISCOUNTED,
    )
    return [waits, launches]


def _kernels(trial: Trial, steps: int) -> float | None:
    """Kernels that a card runs in a step; None: torch's profiler does not see them."""
    own = accelerator_of(trial.state.device)
    if ProfilerActivity.CUDA not in supported_activities() or own.kind != Cuda.kind:
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        _steps(trial, steps)
        own.synchronize()
    kernels = sum(event.device_type.name == "CUDA" for event in seen.events() or ())
    return float(kernels) / steps


def _steps(trial: Trial, count: int) -> None:
    for _ in range(count):
        trial.run()


def held_under_a_limit(
    sized: Sized, card: CardTools, figures: Card, left_seconds: float, *, large: bool
) -> list[Finding]:
    """Steps by the plan for a budget on a card that is held to it."""
    room = card.room_bytes() + figures.context_bytes
    if large:
        budget_bytes = min(HELD_BYTES, room)
    else:
        fastest = plan(sized.recipe, room, sized.overrides).choice.prediction.reserved_bytes
        budget_bytes = figures.context_bytes + figures.workspace_bytes + int(SMALL_SHARE * fastest)
    report = plan(sized.recipe, budget_bytes, sized.overrides)
    name, chosen = f"{sized.recipe}, {show_size(budget_bytes)}", report.choice
    if not report.fits:
        return [left_out(HELD, name, f"the smallest plan takes {show_size(report.peak_bytes)}")]
    needed_seconds = HELD_STEPS * figures.seconds(chosen.work, chosen.plan.precision)
    if needed_seconds > left_seconds:
        return [out_of_time(HELD, name, needed_seconds, left_seconds)]
    own = card.card
    before = own.limit_bytes
    Budget.on(figures, budget_bytes).enforce(card.device)
    try:
        with card.watched() as taken:
            trial = begin_as_predicted(sized.training, chosen.plan, card.device)
            _steps(trial, HELD_STEPS)
            held_bytes = own.total_bytes - own.free_bytes
            del trial
    finally:
        own.limit(before)
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
    asked: list[str] = []

    def smaller(before: Plan, phase: str, message: str) -> Plan:
        if before.micro_batch == subject.micro_batch:
            raise TrainingFailed(f"the smaller plan does not fit either, in phase {phase}: {message}")
        asked.append(phase)
        return replace(before, micro_batch=subject.micro_batch)

    with card.capped(cap_bytes):
        tight = begin(subject, large, Probe())
        tight.step.run(tight.state, tight.plan, next_plan=smaller)
    difference, where = largest_difference(expected, tight.tensors())
    line = f"ran out in {asked[0]}; largest difference {difference:.1e} ({where}), in float64" if asked else ""
    return [
        judged(
            SAME_WEIGHTS,
            subject.name,
            line or f"never ran out under {show_size(cap_bytes)}, though it took {show_size(reserved[0])}",
            passed=bool(asked) and difference < EXACT_ON_CARDS,
            taken_bytes=reserved[0],
            taken_by_smaller_bytes=reserved[1],
            limit_bytes=cap_bytes,
            repeated=len(asked),
            difference=difference,
            limit=EXACT_ON_CARDS,
        )
    ]


def compiled_and_as_graphs(card: CardTools, figures: Card, left_seconds: float) -> list[Finding]:
    """A step as it is written, compiled, and started as CUDA graphs: gradients, time, memory."""
    subject, device = COMPILED.training, card.device
    if (missing := missing_compiler(device)) is not None:
        return [left_out(COMPILES, subject.name, missing)]
    if left_seconds < COMPILE_SECONDS:
        return [out_of_time(COMPILES, subject.name, COMPILE_SECONDS, left_seconds)]
    by = plan_by(subject, subject.build("meta"), Way(device, FP32, micro_batch=subject.micro_batch))
    written = begin_as_predicted(subject, by, device)
    norms = [result.gradients.norm for result in written.run()]
    ways = {"compiled": by} | ({"as graphs": replace(by, cuda_graphs=True)} if card.card.has_graphs else {})
    return [_compiled(way, subject, how, card, figures, written, norms) for way, how in ways.items()]


def _compiled(
    way: str, subject: Training, by: Plan, card: CardTools, figures: Card, written: Trial, norms: list[Tensor]
) -> Finding:
    warnings: list[str] = []
    predicted = predict(replace(subject, compiled=True), by, "cuda", subject.stages[0])
    phases = CompiledPhases(lambda _: None, warnings.append, Folders.from_environment().cache / "inductor")
    began = time.perf_counter()
    with card.watched() as taken:
        trial = begin_as_predicted(subject, by, card.device, backward=phases)
        results = trial.run()
        card.wait()
        seconds = time.perf_counter() - began
        _steps(trial, TIMED_STEPS)
    apart = max(
        (
            abs(float(a) - float(b.gradients.norm)) / max(abs(float(a)), 1e-6)
            for a, b in zip(norms, results, strict=True)
        )
    )
    period = max(phase.every for phase in subject.stages[0].phases)
    times = {name: _seconds(each, period, card) for name, each in (("written", written), ("compiled", trial))}
    phases.forget()
    predicted_seconds = figures.seconds(predicted.work, by.precision)
    line = (
        f"{way} in {seconds:.0f} s; gradient norms {apart:.1e} apart; {times['compiled']:.3g} s a step, as written "
        f"{times['written']:.3g} s; reserved {show_size(taken.reserved_bytes)}, predicted "
        f"{show_size(predicted.unlimited_bytes)}" + "".join(f"; {warning}" for warning in warnings)
    )
    return judged(
        COMPILES,
        f"{subject.name}, {way}",
        line,
        passed=apart <= COMPILED_APART and not warnings,
        compile_seconds=seconds,
        gradients_apart=apart,
        limit=COMPILED_APART,
        predicted_seconds=predicted_seconds,
        measured_seconds=times["compiled"],
        written_seconds=times["written"],
        predicted_reserved_bytes=predicted.unlimited_bytes,
        taken_reserved_bytes=taken.reserved_bytes,
        warnings=warnings,
    )


def _seconds(trial: Trial, steps: int, card: CardTools) -> float:
    """Of an average step."""
    card.wait()
    began = time.perf_counter()
    _steps(trial, steps)
    card.wait()
    return (time.perf_counter() - began) / steps


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
