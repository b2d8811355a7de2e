"""Checks of a step on a card in the full self-test: launches and waits, each figure with a prediction."""

from typing import Any

from torch.profiler import ProfilerActivity, profile, supported_activities

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.cuda import Cuda
from frugan.doctor.cards import CardTools
from frugan.doctor.checks import waiting_refused
from frugan.doctor.finding import Finding, judged, out_of_time
from frugan.doctor.real_size import Sized, begin_as_predicted
from frugan.doctor.trial import FP32, PinnedPictures, Trial, Way, plan_by, run_steps
from frugan.planning.prediction import BlankPictures, predict
from frugan.stepmemory.cards import Card
from frugan.stepmemory.work import WorkCounter

LAUNCHES, WAITS = "launches as predicted", "the host waits for nothing"
MISCOUNTED = 0.3
"""Relative: torch does in one operation on one kind of device what it does in several on another; on a processor it was
0.2."""


class OperationCounter(WorkCounter):
    """Counts operations as those of a step without data are counted; what makes no memory is told by its kind."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
    accelerator = accelerator_of(trial.state.device)
    if ProfilerActivity.CUDA not in supported_activities() or accelerator.kind != Cuda.kind:
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run_steps(trial, steps)
        accelerator.synchronize()
    kernels = sum(event.device_type.name == "CUDA" for event in seen.events() or ())
    return float(kernels) / steps
