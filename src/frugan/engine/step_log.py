"""What steps did: read while the next one runs, written as events, and judged."""

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from frugan.engine.events import EventLog
from frugan.engine.pace import Pace
from frugan.engine.plan import Plan
from frugan.engine.precision import LEAST_SCALE
from frugan.engine.progress import Duration
from frugan.engine.readout import Readout, first_bad
from frugan.engine.soundness import MOST_SKIPS, Diverged, Soundness, way_back
from frugan.engine.state import TrainingState
from frugan.engine.step import Step

CARRIED = "carried: "
"""Before the names of carried state among the numbers that are read with the gradients."""


@dataclass
class _Pending:
    """A step whose numbers are on their way.

    Attributes:
        step: what ran.
        readout: the numbers.
        plan: by which it ran.
        began: when the step was begun, by the performance counter.
        seconds: of training at its end.
        images: seen by then.
        took: seconds until the next step was begun, which a card that is kept busy makes the step's own time; 0: there
            was no next step.
    """

    step: Step
    readout: Readout
    plan: Plan
    began: float
    seconds: float
    images: int
    took: float = 0.0


@dataclass
class StepLog:
    """Reads each step's numbers once the next one has been begun, so that a card never waits for the host.

    Attributes:
        log: where they go.
        checkpoints: folder that a training which fails can go back to.
        device: that trains.
        duration: of the whole training, for what is left of it.
        command: that goes on with the run, for messages; None: there is none.
        soundness: what is known of the updates so far.
        pace: how long steps take.
    """

    log: EventLog
    checkpoints: Path
    device: torch.device
    duration: Duration
    command: str | None = None
    soundness: Soundness = field(default_factory=Soundness)
    pace: Pace = field(default_factory=Pace)
    _pending: list[_Pending] = field(default_factory=list)

    @property
    def finite_steps(self) -> int:
        """Steps in a row that were finite, those not yet read among them: if one was not, nothing of it is kept."""
        return self.soundness.finite_steps + len(self._pending)

    def begins(self, began: float) -> None:
        """A step begins: the one before has taken its time."""
        for pending in self._pending:
            pending.took = began - pending.began

    def ran(self, step: Step, plan: Plan, readout: Readout, *, began: float, seconds: float, images: int) -> None:
        """A step has been given to the device, and its numbers have been sent for.

        Args:
            began: when the step was begun, by the performance counter.
            seconds: of training at its end.
            images: seen by then.
        """
        self._pending.append(_Pending(step, readout, plan, began, seconds, images))

    def read(self) -> None:
        """Read all that is on its way.

        Raises:
            Diverged: updates were skipped MOST_SKIPS times in a row.
        """
        while self._pending:
            self._read(self._pending.pop(0))

    def _read(self, pending: _Pending) -> None:
        readout, step = pending.readout, pending.step
        phases, extra = readout.read()
        carried = {name.removeprefix(CARRIED): value for name, value in extra.items() if name.startswith(CARRIED)}
        singular_values = {name: value for name, value in extra.items() if not name.startswith(CARRIED)}
        for phase in step.phases:
            if phase.name in phases:
                done = (readout.step - 1) / step.length if step.length else 0.0
                phases[phase.name]["learning_rate"] = step.settings[phase.optimizer].rate_at(done)
        took = pending.took or time.perf_counter() - pending.began
        self.pace.add(took)
        self.log.write(
            "step",
            step=readout.step,
            images=pending.images,
            seconds=round(pending.seconds, 3),
            took_seconds=round(took, 4),
            data_seconds=round(sum(result.data_seconds for result in readout.results), 4),
            images_per_second=step.pictures_at(readout.step - 1) / took,
            eta_seconds=self._eta(step, readout.step, pending.seconds),
            memory_bytes=memory_bytes(self.device),
            phases=phases,
            **({"carried": carried} if carried else {}),
            **({"singular_values": singular_values} if singular_values else {}),
        )
        self._judge(pending, phases)

    def _eta(self, step: Step, number: int, seconds: float) -> float | None:
        """Seconds that are left; None: there is no end, or one step alone does not tell."""
        if (steps := self.duration.known_steps(step.batch)) is not None:
            pace = self.pace.seconds_per_step
            return None if pace is None else (steps - number) * pace
        return max(0.0, self.duration.amount - seconds) if math.isfinite(self.duration.amount) else None

    def _judge(self, pending: _Pending, phases: Mapping[str, Any]) -> None:
        """Count what was skipped, and stop a training that does nothing else."""
        readout, step = pending.readout, pending.step
        ran = {name: sum(result.phase == name for result in readout.results) for name in phases}
        self.soundness.count(readout.step, ran, {name: entry["skipped"] for name, entry in phases.items()})
        for name, in_a_row in self.soundness.in_a_row.items():
            if name not in phases or not in_a_row:
                continue
            bad = next(result for result in readout.skipped() if result.phase == name)
            reason = first_bad(bad)
            self.log.write("skipped", step=readout.step, phase=name, in_a_row=in_a_row, reason=reason)
            if in_a_row >= MOST_SKIPS:
                failing = {phase.optimizer for phase in step.phases if self.soundness.in_a_row.get(phase.name)}
                rates = {each: step.settings[each].learning_rate for each in sorted(failing)}
                precision = pending.plan.precision.name
                out_of_range = precision == "fp16" and float(bad.loss_scale) <= LEAST_SCALE
                range_ = ", with the loss scale at its least: fp16 has not the range for it" if out_of_range else ""
                raise Diverged(
                    f"phase {name}: {in_a_row} updates in a row were skipped at step {readout.step:,} because they "
                    f"were not finite ({reason}{range_}). Nothing of them was committed. "
                    + way_back(self.checkpoints, self.command, rates, precision),
                    phase=name,
                    step=readout.step,
                    reason=reason,
                    out_of_range=out_of_range,
                )


def shown_state(step: Step, state: TrainingState) -> dict[str, torch.Tensor]:
    """First numbers [1] of the carried state that people see."""
    carried = {name: each for phase in step.phases for name, each in phase.carried.items() if each.shown}
    return {f"{CARRIED}{each.shown}": state.carried[name].reshape(-1)[:1] for name, each in carried.items()}


def memory_bytes(device: torch.device) -> int | None:
    """Most memory held so far: what the allocator reserved on CUDA, the process's peak on a CPU; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    try:
        import resource  # noqa: PLC0415  (not on Windows)
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
