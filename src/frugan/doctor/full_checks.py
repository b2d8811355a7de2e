"""What only the full self-test tries of a step on a card: launches, waits, compiling; each figure with a prediction."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.profiler import ProfilerActivity, profile, supported_activities

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.cuda import Cuda
from frugan.doctor.cards import CardTools
from frugan.doctor.checks import waiting_refused
from frugan.doctor.finding import Finding, judged, left_out, out_of_time
from frugan.doctor.real_size import Sized, begin_as_predicted
from frugan.doctor.trial import FP32, PinnedPictures, Trial, Way, plan_by, run_steps
from frugan.engine.compiled_phases import CompiledPhases, missing_compiler
from frugan.engine.plan import Plan
from frugan.files import Folders
from frugan.planning.prediction import BlankPictures, predict
from frugan.stepmemory.cards import Card
from frugan.stepmemory.work import WorkCounter
from frugan.wording import show_size

COMPILED = Sized("biggan-digits-32")

LAUNCHES, WAITS = "launches as predicted", "the host waits for nothing"
COMPILES = "compiled step"
GRAPHS_LEFT_OUT = "this kind of card keeps no queue of kernels to start as one"
MISCOUNTED = 0.3
"""Relative: torch does in one operation on one kind of device what it does in several on another; on a processor it was
0.2."""
TIMED_STEPS = 3
COMPILE_SECONDS = 90.0
COMPILED_APART = 1e-3
"""Relative, of gradient norms in fp32: fused kernels add up in an order of their own."""


class OperationCounter(WorkCounter):
    """Counts operations as those of a step without data are counted; what makes no memory is told by its kind."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `WorkCounter`."""
        if func.is_view:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def launches_and_waits(sized: Sized, card: CardTools, figures: Card, left_seconds: float) -> list[Finding]:
    """A round of steps in which torch refuses whatever waits; operations and kernels that a step starts."""
    subject, device = sized.training, card.device
    by = plan_by(subject, subject.build("meta"), Way(device, FP32, micro_batch=subject.micro_batch))
    work = predict(subject, by, "card", subject.stages[0]).work
    period = max(phase.every for phase in subject.stages[0].phases)
    needed_seconds = (4 + 2 * period) * figures.seconds(work, FP32)
    if needed_seconds > left_seconds:
        return [out_of_time(check, sized.recipe, needed_seconds, left_seconds) for check in (WAITS, LAUNCHES)]
    pinned = PinnedPictures(BlankPictures(subject.stages[0].sources), device)
    trial = begin_as_predicted(subject, by, device, pictures=pinned)
    run_steps(trial, 2)
    card.wait()
    refusal = waiting_refused(card, trial, period)
    waits = judged(
        WAITS,
        sized.recipe,
        refusal or f"{period} steps in fp32, every phase among them, that are never waited for",
        passed=refusal is None,
        predicted_waits=0,
        measured_waits=0 if refusal is None else 1,
        found=[refusal] if refusal else [],
    )
    trial = begin_as_predicted(subject, by, device)  # what was refused may have left it half a step
    run_steps(trial, 2)
    with OperationCounter() as counter:
        run_steps(trial, period)
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
        run_steps(trial, steps)
        own.synchronize()
    kernels = sum(event.device_type.name == "CUDA" for event in seen.events() or ())
    return float(kernels) / steps


def compiled_step(card: CardTools, figures: Card, left_seconds: float, *, as_graphs: bool) -> Finding:
    """A compiled step against the same as it is written: gradients, time, memory.

    Args:
        as_graphs: phases are started as CUDA graphs besides.
    """
    subject, device = COMPILED.training, card.device
    name = f"{subject.name}, {'as graphs' if as_graphs else 'compiled'}"
    if (missing := missing_compiler(device)) is not None:
        return left_out(COMPILES, name, missing)
    if as_graphs and not card.card.has_graphs:
        return left_out(COMPILES, name, GRAPHS_LEFT_OUT)
    if left_seconds < COMPILE_SECONDS:
        return out_of_time(COMPILES, name, COMPILE_SECONDS, left_seconds)
    warnings = list[str]()
    phases = CompiledPhases(lambda _: None, warnings.append, Folders.from_environment().cache / "inductor")
    by = plan_by(subject, subject.build("meta"), Way(device, FP32, micro_batch=subject.micro_batch))
    written = begin_as_predicted(subject, by, device)
    try:
        return _compiled(name, written, replace(by, cuda_graphs=as_graphs), card, figures, phases, warnings)
    finally:
        phases.forget()  # what graphs run in would be missing to all that is tried after them


def _compiled(
    name: str,
    written: Trial,
    by: Plan,
    card: CardTools,
    figures: Card,
    phases: CompiledPhases,
    warnings: Sequence[str],
) -> Finding:
    subject = COMPILED.training
    predicted = predict(replace(subject, compiled=True), by, "card", subject.stages[0])
    norms = [result.gradients.norm for result in written.run()]
    began = time.perf_counter()
    with card.watched() as taken:
        trial = begin_as_predicted(subject, by, card.device, backward=phases)
        results = trial.run()
        card.wait()
        seconds = time.perf_counter() - began
        run_steps(trial, TIMED_STEPS)
    apart = max(
        (
            abs(float(a) - float(b.gradients.norm)) / max(abs(float(a)), 1e-6)
            for a, b in zip(norms, results, strict=True)
        )
    )
    period = max(phase.every for phase in subject.stages[0].phases)
    times = {way: _seconds(each, period, card) for way, each in (("written", written), ("compiled", trial))}
    predicted_seconds = figures.seconds(predicted.work, by.precision)
    line = (
        f"ready in {seconds:.0f} s; gradient norms {apart:.1e} apart; {times['compiled']:.3g} s a step, as written "
        f"{times['written']:.3g} s; reserved {show_size(taken.reserved_bytes)}, predicted "
        f"{show_size(predicted.unlimited_bytes)}" + "".join(f"; {warning}" for warning in warnings)
    )
    return judged(
        COMPILES,
        name,
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
        warnings=list(warnings),
    )


def _seconds(trial: Trial, steps: int, card: CardTools) -> float:
    """Of an average step."""
    card.wait()
    began = time.perf_counter()
    run_steps(trial, steps)
    card.wait()
    return (time.perf_counter() - began) / steps
