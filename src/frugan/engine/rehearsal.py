"""A step that is timed before it is run: every phase up to its update, which is dropped.

Nothing moves before an update is committed, so a rehearsal leaves no trace in what is trained.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from frugan.contract.phase import MicroBatch, Phase
from frugan.engine.plan import Plan
from frugan.engine.probe import Probe
from frugan.engine.ranks.ranks import OneRank
from frugan.engine.state import TrainingState
from frugan.engine.step import Step
from frugan.engine.update import Update


def rehearse(step: Step, state: TrainingState, plan: Plan, ahead: int = 0) -> float:
    """Seconds of an average step, from one micro-batch of each phase; without the update itself, which is short.

    Args:
        ahead: whose inputs are taken: those of the step that comes so many after the next one. Pictures that are new
            each time have to be read or made, as in training.
    """
    alone = OneRank(step.ranks.rank, step.ranks.size, step.ranks.proportions)  # the other ranks do not rehearse along
    seconds = 0.0
    for phase in step.phases:
        stopwatch = _Stopwatch(state.device)
        timed = replace(step, probe=stopwatch, ranks=alone)
        try:
            timed.update(state, plan, Update(phase, 0, state.step + ahead, count_zeros=False))
        except _Rehearsed:
            seconds += stopwatch.seconds * phase.repeats / phase.every
    return seconds


class _Rehearsed(Exception):
    """All that can be done without moving anything is done."""


class _Stopwatch(Probe):
    """Lets the first micro-batch of an update run, reckons with the others, and stops before anything moves.

    Attributes:
        seconds: of the whole update but for its commit; there once it was stopped.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self._device = device
        self._left_out = 0
        self._began = self._micro_began = self._micro_seconds = 0.0

    def phase_begins(self, phase: Phase) -> None:
        self._began = self._now()

    def shown(self, sizes: Sequence[int]) -> Sequence[int]:
        self._left_out = len(sizes) - 1
        return sizes[:1]

    def micro_batch_begins(self, state: TrainingState, phase: Phase, micro: MicroBatch) -> MicroBatch:
        self._micro_began = self._now()
        return micro

    def micro_batch_ends(self, state: TrainingState, phase: Phase) -> None:
        self._micro_seconds = self._now() - self._micro_began

    def all_carried(self, state: TrainingState) -> None:
        self.seconds = self._now() - self._began + self._left_out * self._micro_seconds
        raise _Rehearsed

    def _now(self) -> float:
        """Seconds, once all that was asked of the device is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
