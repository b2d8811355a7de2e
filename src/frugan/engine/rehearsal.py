"""A step that is timed before it is run: every phase up to its update, which is dropped.

Nothing moves before an update is committed, so a rehearsal leaves no trace in what is trained.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import torch

from frugan.engine.plan import Plan
from frugan.engine.state import TrainingState
from frugan.engine.step import Step, Update
from frugan.phase import MicroBatch, Phase


def rehearse(step: Step, state: TrainingState, plan: Plan, ahead: int = 0) -> float:
    """Seconds of an average step, from one micro-batch of each phase; without the update itself, which is short.

    Args:
        ahead: whose inputs are taken: those of the step that comes so many after the next one. Pictures that are new
            each time have to be read or made, as in training.
    """
    timed = _TimedStep(**{each.name: getattr(step, each.name) for each in fields(Step)})
    return sum(
        timed.seconds(state, plan, phase, state.step + ahead) * phase.repeats / phase.every for phase in step.phases
    )


@dataclass(frozen=True)
class _TimedStep(Step):
    """Runs the first micro-batch of a phase, and reckons with the others.

    Attributes:
        micro_seconds: of the micro-batches that were run.
    """

    micro_seconds: list[float] = field(default_factory=list)

    def seconds(self, state: TrainingState, plan: Plan, phase: Phase, step: int) -> float:
        """Seconds of one update of a phase."""
        self.micro_seconds.clear()
        _wait(state.device)
        began = time.perf_counter()
        try:
            self._prepare_update(state, plan, Update(phase, 0, step, count_zeros=False))
        finally:
            state.optimizers[phase.optimizer].zero_grad(set_to_none=True)
        _wait(state.device)
        others = self._micro_batch_count(plan, phase) - 1
        return time.perf_counter() - began + others * sum(self.micro_seconds)

    def _micro_batches(self, state: TrainingState, plan: Plan, update: Update) -> Iterator[tuple[MicroBatch, float]]:
        first = next(super()._micro_batches(state, plan, update))
        _wait(state.device)
        began = time.perf_counter()
        yield first
        _wait(state.device)
        self.micro_seconds.append(time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
