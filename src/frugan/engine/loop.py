"""The training loop: steps, and what is written between them."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from frugan.engine.best_checkpoints import BestCheckpoints
from frugan.engine.checkpoint import Checkpoint, checkpoint_name, keep_newest, save_checkpoint
from frugan.engine.clock import Clock, SheetClock
from frugan.engine.events import EventLog
from frugan.engine.interrupt import StopRequest
from frugan.engine.out_of_memory import ran_out_of_memory
from frugan.engine.pace import Pace
from frugan.engine.plan import Plan
from frugan.engine.progress import Duration
from frugan.engine.readout import Readout, first_bad
from frugan.engine.requests import Requests
from frugan.engine.retries import NextPlan
from frugan.engine.run_folder import RunFolder
from frugan.engine.soundness import FINITE_STEPS, MOST_SKIPS, Soundness, way_back
from frugan.engine.state import TrainingState
from frugan.engine.step import Step
from frugan.errors import TrainingFailed

CARRIED = "carried: "
"""Before the names of carried state among the numbers that are read with the gradients."""
QUICK_SECONDS = 2.0
"""Sheets that took no longer are still drawn when training is asked to stop."""


@dataclass
class _Pending:
    """A step whose numbers are on their way.

    Attributes:
        readout: the numbers.
        began: when the step was begun, by the performance counter.
        seconds: of training at its end.
        images: seen by then.
        took: seconds until the next step was begun, which a card that is kept busy makes the step's own time; 0: there
            was no next step.
    """

    readout: Readout
    began: float
    seconds: float
    images: int
    took: float = 0.0


@dataclass(frozen=True)
class Scoring:
    """How a training is scored while it goes on.

    Attributes:
        due: when.
        take: scores of the present state, by name, and what they were measured with; leaves no trace in the state.
            None: they could not be taken, and it has said why.
        best: keeps checkpoints by one of them.
    """

    due: Clock
    take: Callable[[TrainingState, Plan], tuple[Mapping[str, float], Mapping[str, Any]] | None]
    best: BestCheckpoints


@dataclass
class Loop:
    """Trains until the duration, if it has an end, is over or a stop is asked for.

    Attributes:
        step, state, plan: what runs.
        duration: in all, over all resumptions.
        checkpoint, backup, snapshot, report: when each is due.
        keep: newest checkpoints kept.
        run, log: where things go.
        metadata: for weights files.
        take_snapshot: writes sheets of the present state and returns their paths.
        singular_values: reads what is reported besides gradients: name -> [1].
        extra: JSON values kept in every checkpoint; they may change while training goes on.
        evaluation: when scores are taken, by what, and which checkpoints are kept for them; None: never.
        requests: what is asked for while training goes on.
        next_plan: gives a plan that takes less when memory runs out, and raises TrainingFailed where there is none.
        look_again: is called when steps take many times (so many) as long as they did; None: nothing could be done.
        command: that goes on with this run, for messages; None: there is none.
        until: step at which this stage of the recipe ends; None: none does.
        seconds: of training so far, over all resumptions.
        images: pictures that networks were shown so far, each as often as it was; see `Step.pictures_at`.
        soundness: what is known of the updates so far.
    """

    step: Step
    state: TrainingState
    plan: Plan
    duration: Duration
    checkpoint: Clock
    backup: Clock | None
    snapshot: SheetClock
    report: Clock
    keep: int
    run: RunFolder
    log: EventLog
    metadata: Mapping[str, str]
    take_snapshot: Callable[[TrainingState], list[Path]]
    singular_values: Callable[[TrainingState], Mapping[str, torch.Tensor]]
    extra: Mapping[str, Any]
    next_plan: NextPlan
    evaluation: "Scoring | None" = None
    requests: Requests = field(default_factory=Requests)
    look_again: Callable[[float], None] | None = None
    command: str | None = None
    until: int | None = None
    seconds: float = 0.0
    images: int = 0
    soundness: Soundness = field(default_factory=Soundness)
    _pace: Pace = field(default_factory=Pace)
    _pictured: int = -1
    _unread: int = 0

    def train(self, stop: StopRequest) -> bool:
        """Run the loop.

        Returns:
            Whether the duration is over (False: stopped before).

        Raises:
            TrainingFailed: updates were skipped MOST_SKIPS times in a row.

        The end of a stage is no end of training: a checkpoint is written, and the caller goes on with the next stage.
        """
        pending: _Pending | None = None
        loop_began, before = time.perf_counter(), self.seconds
        while not self._over() and not self._stage_over() and not stop.asked:
            began = time.perf_counter()
            stop.doing = f"step {self.state.step + 1:,}"
            if pending is not None:
                pending.took = began - pending.began
            reported = self.state.step == 0 or self.report.due(self.state.step, self.seconds)
            results = self.step.run(self.state, self.plan, count_zeros=reported, next_plan=self._next_plan)
            extra = {**self.singular_values(self.state), **self._shown_state()} if reported else {}
            readout = Readout.start(self.state.step, results, extra)
            self.images += self.step.pictures_at(self.state.step - 1)
            self._unread += 1
            if pending is not None:
                self._read(pending)
            self.seconds = before + time.perf_counter() - loop_began
            pending = _Pending(readout, began, self.seconds, self.images)
            self._between_steps(stop)
        if pending is not None:
            self._read(pending)
        if not self._over() and not stop.asked:
            self._save(self.run.checkpoints)
            return False
        self.log.write("stop", over=self._over(), signal=stop.signal_name, step=self.state.step, seconds=self.seconds)
        if self.state.step > 0:
            self._save_and_prune()
            if self._over() or (self.snapshot.took_seconds is not None and self.snapshot.took_seconds <= QUICK_SECONDS):
                self._snapshot()
        return self._over()

    def _next_plan(self, plan: Plan, phase: str, message: str) -> Plan:
        self.plan = self.next_plan(plan, phase, message)
        now = self.plan.as_json()
        self.log.write("out_of_memory", step=self.state.step, phase=phase, message=message, plan=now)
        return self.plan

    def _shown_state(self) -> dict[str, torch.Tensor]:
        """First numbers [1] of the carried state that people see."""
        carried = {name: each for phase in self.step.phases for name, each in phase.carried.items() if each.shown}
        return {f"{CARRIED}{each.shown}": self.state.carried[name].reshape(-1)[:1] for name, each in carried.items()}

    def _stage_over(self) -> bool:
        return self.until is not None and self.state.step >= self.until

    def _over(self) -> bool:
        if (steps := self.duration.known_steps(self.step.batch)) is not None:
            return self.state.step >= steps
        return self.seconds >= self.duration.amount

    def _between_steps(self, stop: StopRequest) -> None:
        step, asked = self.state.step, self.requests.take()
        if "stop" in asked:
            stop.signal_name = stop.signal_name or "request"
        if self.checkpoint.due(step, self.seconds) or "save" in asked:
            self._save_and_prune()
        if self.backup is not None and self.backup.due(step, self.seconds):
            self._save(self.run.backups)
        if self.snapshot.due(step, self.seconds) or "preview" in asked:
            self._snapshot()
        if self.evaluation is not None and self.evaluation.due.due(step, self.seconds):
            self._score(self.evaluation)
        if self.look_again is not None and (factor := self._pace.slowed()) is not None:
            self.look_again(factor)
            self._pace.looked()

    def _score(self, scoring: Scoring) -> None:
        began = time.perf_counter()
        if (found := scoring.take(self.state, self.plan)) is None:
            return
        scores, card = found
        took = round(time.perf_counter() - began, 3)
        self.log.write("metrics", step=self.state.step, scores=scores, card=card, took_seconds=took)
        best = scoring.best
        if best.score in scores and best.offer(self.state.step, scores[best.score], self._save):
            self.log.write("best", step=self.state.step, score=best.score, value=scores[best.score])

    def _save_and_prune(self) -> None:
        self._save(self.run.checkpoints)
        keep_newest(self.run.checkpoints, self.keep, self.soundness.kept(self.run.checkpoints, self.state.step))

    def _save(self, folder: Path) -> Checkpoint:
        is_new = not (folder / checkpoint_name(self.state.step)).exists()  # the last step may have been due anyway
        # What a step did is read a step later; if it was skipped, nothing of it is in what is saved.
        finite_steps = self.soundness.finite_steps + self._unread
        own = {"seconds": self.seconds, "images": self.images, FINITE_STEPS: finite_steps, "plan": self.plan.as_json()}
        saved = save_checkpoint(folder, self.state, self.metadata, {**self.extra, **own})
        if is_new:
            self.log.write("checkpoint", step=saved.step, path=saved.path.relative_to(self.run.path).as_posix())
        return saved

    def _snapshot(self) -> None:
        if self._pictured == self.state.step:
            return
        self._pictured = self.state.step
        began = time.perf_counter()
        try:
            paths = self.take_snapshot(self.state)
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            self.log.write("snapshot_failed", step=self.state.step, reason=str(error))
            return
        finally:
            self.snapshot.drew(self.seconds, time.perf_counter() - began)
        self.log.write("snapshot", step=self.state.step, paths=[p.relative_to(self.run.path).as_posix() for p in paths])

    def _read(self, pending: "_Pending") -> None:
        readout = pending.readout
        phases, extra = readout.read()
        carried = {name.removeprefix(CARRIED): value for name, value in extra.items() if name.startswith(CARRIED)}
        singular_values = {name: value for name, value in extra.items() if not name.startswith(CARRIED)}
        self._unread -= 1
        for phase in self.step.phases:
            if phase.name in phases:
                done = (readout.step - 1) / self.step.length if self.step.length else 0.0
                phases[phase.name]["learning_rate"] = self.step.settings[phase.optimizer].rate_at(done)
        took = pending.took or time.perf_counter() - pending.began
        self._pace.add(took)
        self.log.write(
            "step",
            step=readout.step,
            images=pending.images,
            seconds=round(pending.seconds, 3),
            took_seconds=round(took, 4),
            data_seconds=round(sum(result.data_seconds for result in readout.results), 4),
            images_per_second=self.step.pictures_at(readout.step - 1) / took,
            eta_seconds=self._eta(readout.step, pending.seconds),
            memory_bytes=memory_bytes(self.state.device),
            phases=phases,
            **({"carried": carried} if carried else {}),
            **({"singular_values": singular_values} if singular_values else {}),
        )
        self._judge(readout, phases)

    def _eta(self, step: int, seconds: float) -> float | None:
        """Seconds that are left; None: there is no end."""
        if (steps := self.duration.known_steps(self.step.batch)) is not None:
            return (steps - step) * self._pace.seconds_per_step
        return max(0.0, self.duration.amount - seconds) if math.isfinite(self.duration.amount) else None

    def _judge(self, readout: Readout, phases: Mapping[str, Any]) -> None:
        """Count what was skipped, and stop a training that does nothing else."""
        ran = {name: sum(result.phase == name for result in readout.results) for name in phases}
        self.soundness.count(readout.step, ran, {name: entry["skipped"] for name, entry in phases.items()})
        for name, in_a_row in self.soundness.in_a_row.items():
            if name not in phases or not in_a_row:
                continue
            bad = next(result for result in readout.skipped() if result.phase == name)
            reason = first_bad(bad)
            self.log.write("skipped", step=readout.step, phase=name, in_a_row=in_a_row, reason=reason)
            if in_a_row >= MOST_SKIPS:
                failing = {phase.optimizer for phase in self.step.phases if self.soundness.in_a_row.get(phase.name)}
                rates = {each: self.step.settings[each].learning_rate for each in sorted(failing)}
                raise TrainingFailed(
                    f"phase {name}: {in_a_row} updates in a row were skipped at step {readout.step:,} because they "
                    f"were not finite ({reason}). Nothing of them was committed. "
                    + way_back(self.run.checkpoints, self.command, rates, self.plan.precision.name)
                )


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
