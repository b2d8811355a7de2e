"""The training loop: steps, and what is written between them."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from frugan.engine.best_checkpoints import BestCheckpoints
from frugan.engine.checkpoint import Checkpoint, checkpoint_name, keep_newest, save_checkpoint
from frugan.engine.clock import Clock, SheetClock
from frugan.engine.disk_room import no_room, told_what_is_needed
from frugan.engine.events import EventLog
from frugan.engine.freed_memory import freed_memory_kept
from frugan.engine.interrupt import StopRequest
from frugan.engine.out_of_memory import ran_out_of_memory
from frugan.engine.plan import Plan
from frugan.engine.progress import Duration
from frugan.engine.ranks.ranks import OneRank, Order, Ranks
from frugan.engine.readout import Readout
from frugan.engine.requests import Requests
from frugan.engine.retries import NextPlan
from frugan.engine.run_folder import RunFolder
from frugan.engine.soundness import FINITE_STEPS
from frugan.engine.state import TrainingState
from frugan.engine.step import Step
from frugan.engine.step_log import StepLog, shown_state

QUICK_SECONDS = 2.0
"""Sheets that took no longer are still drawn when training is asked to stop."""


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
class RunningStage:
    """What a training does until its recipe changes, or to the end.

    Attributes:
        step: what runs.
        until: step at which the stage ends; None: it does not.
        checkpoint, backup, snapshot, report: when each is due.
        draw: writes sheets of the present state and returns their paths.
        readings: what is reported besides gradients: name -> [1].
        scoring: when scores are taken, by what, and which checkpoints are kept for them; None: never.
        look_again: is called when steps take many times (so many) as long as they did; None: nothing could be done.
    """

    step: Step
    until: int | None
    checkpoint: Clock
    backup: Clock | None
    snapshot: SheetClock
    report: Clock
    draw: Callable[[TrainingState, Plan], list[Path]]
    readings: Callable[[TrainingState], Mapping[str, torch.Tensor]]
    scoring: Scoring | None = None
    look_again: Callable[[float], None] | None = None


Stages = Callable[["Loop"], AbstractContextManager[RunningStage]]
"""Opens the stage that a training has come to; its data are closed with it."""


@dataclass
class Loop:
    """Trains until the duration, if it has an end, is over or a stop is asked for.

    Attributes:
        state, plan: what is trained, and the plan in force.
        stages: opens what runs next.
        next_plan: gives a plan that takes less when memory runs out, and raises TrainingFailed where there is none.
        duration: in all, over all resumptions.
        batch: samples per step.
        keep: newest checkpoints kept.
        run, log: where things go.
        steps: reads, writes and judges what steps did.
        metadata: for weights files.
        kept: JSON values kept in every checkpoint; they may change while training goes on.
        requests: what is asked for while training goes on.
        goes_on_when_full: whether training goes on when the disk has no room for a checkpoint, until the end.
        seconds: of training so far, over all resumptions.
        images: pictures that networks were shown so far, each as often as it was; see `Step.pictures_at`.
        ranks: the processes that share each update; this one tells the others what to do.
        stop_after: seconds from now after which training stops, to go on another time; None: it does not.
    """

    state: TrainingState
    plan: Plan
    stages: Stages
    next_plan: NextPlan
    duration: Duration
    batch: int
    keep: int
    run: RunFolder
    log: EventLog
    steps: StepLog
    metadata: Mapping[str, str]
    kept: Mapping[str, Any]
    requests: Requests = field(default_factory=Requests)
    goes_on_when_full: bool = False
    seconds: float = 0.0
    images: int = 0
    ranks: Ranks = field(default_factory=OneRank)
    stop_after: float | None = None
    _pictured: int = -1

    def train(self, stop: StopRequest) -> bool:
        """Run the loop.

        Returns:
            Whether the duration is over (False: stopped before).

        Raises:
            Diverged: updates were skipped too often in a row.
        """
        began_all, before = time.perf_counter(), self.seconds
        with freed_memory_kept(self.state.device.type == "cpu"), ExitStack() as opened:
            stage = opened.enter_context(self._next_stage())
            while not self._over() and not stop.asked:
                # The recipe's next stage has phases and data of its own, and begins with a checkpoint.
                if self.state.step == stage.until:
                    self.steps.read()
                    with self._going_on("checkpoint_failed"):
                        self._save(self.run.checkpoints)
                    opened.close()
                    stage = opened.enter_context(self._next_stage())

                # One step, queued on the device; what the last one did is read meanwhile.
                began = time.perf_counter()
                stop.doing = f"step {self.state.step + 1:,}"
                self.steps.begins(began)
                reported = self.state.step == 0 or stage.report.due(self.state.step, self.seconds)
                self.ranks.tell(Order.STEP)
                results = stage.step.run(self.state, self.plan, count_zeros=reported, next_plan=self._smaller_plan)
                extra = {**stage.readings(self.state), **shown_state(stage.step, self.state)} if reported else {}
                readout = Readout.start(self.state.step, results, extra)
                self.steps.read()
                self.images += stage.step.pictures_at(self.state.step - 1)
                self.seconds = before + time.perf_counter() - began_all
                self.steps.ran(stage.step, self.plan, readout, began=began, seconds=self.seconds, images=self.images)

                # What is due, or asked for: checkpoints, sheets, scores.
                self._do_what_is_due(stage, stop)
                if self.stop_after is not None and time.perf_counter() - began_all >= self.stop_after:
                    stop.signal_name = stop.signal_name or "stop-after"

            # The end, or a stop: nothing that was done is lost.
            self.steps.read()
            over = self._over()
            self.log.write("stop", over=over, signal=stop.signal_name, step=self.state.step, seconds=self.seconds)
            if self.state.step > 0:
                self._save_and_prune()
                if over or stage.snapshot.took_at_most(QUICK_SECONDS):
                    self._draw(stage)
        self.ranks.tell(Order.OVER if over else Order.STOP)
        return over

    def _next_stage(self) -> AbstractContextManager[RunningStage]:
        self.ranks.tell(Order.STAGE)
        return self.stages(self)

    def _do_what_is_due(self, stage: RunningStage, stop: StopRequest) -> None:
        step, asked = self.state.step, self.requests.take()
        if "stop" in asked:
            stop.signal_name = stop.signal_name or "request"
        with self._going_on("checkpoint_failed"):
            if stage.checkpoint.due(step, self.seconds) or "save" in asked:
                self._save_and_prune()
            if stage.backup is not None and stage.backup.due(step, self.seconds):
                self._save(self.run.backups)
        if stage.snapshot.due(step, self.seconds) or "preview" in asked:
            with self._going_on("snapshot_failed"):
                self._draw(stage)
        if stage.scoring is not None and stage.scoring.due.due(step, self.seconds):
            with self._going_on("checkpoint_failed"):
                self._score(stage.scoring)
        if stage.look_again is not None and (slower := self.steps.pace.slowed()) is not None:
            stage.look_again(slower)
            self.steps.pace.looked()

    @contextmanager
    def _going_on(self, event: str) -> Iterator[None]:
        """Where the recipe says so, training goes on when there is no room for what is written within the block."""
        try:
            yield
        except OSError as error:
            if not self.goes_on_when_full or not no_room(error):
                raise
            self.log.write(event, step=self.state.step, reason=f"{error.strerror or error}; training goes on")

    def _over(self) -> bool:
        if (steps := self.duration.known_steps(self.batch)) is not None:
            return self.state.step >= steps
        return self.seconds >= self.duration.amount

    def _smaller_plan(self, plan: Plan, phase: str, message: str) -> Plan:
        self.plan = self.next_plan(plan, phase, message)
        now = self.plan.as_json()
        self.log.write("out_of_memory", step=self.state.step, phase=phase, message=message, plan=now)
        return self.plan

    def _save_and_prune(self) -> None:
        self._save(self.run.checkpoints)
        sound = self.steps.soundness.kept(self.run.checkpoints, self.state.step)
        keep_newest(self.run.checkpoints, self.keep, sound)

    def _save(self, folder: Path) -> Checkpoint:
        is_new = not (folder / checkpoint_name(self.state.step)).exists()  # the last step may have been due anyway
        own = {
            "seconds": self.seconds,
            "images": self.images,
            FINITE_STEPS: self.steps.finite_steps,
            "plan": self.plan.as_json(),
        }
        if not self.ranks.agree(self.state):
            line = (
                "ranks had come apart, as cards of different kinds do by rounding; all go on from the first one's state"
            )
            self.log.write("warning", step=self.state.step, line=line)
        with told_what_is_needed(folder, self.state), self.ranks.collected(self.state) if is_new else nullcontext():
            saved = save_checkpoint(folder, self.state, self.metadata, {**self.kept, **own})
        if is_new:
            self.log.write("checkpoint", step=saved.step, path=saved.path.relative_to(self.run.path).as_posix())
        return saved

    def _draw(self, stage: RunningStage) -> None:
        if self._pictured == self.state.step:
            return
        self._pictured = self.state.step
        began = time.perf_counter()
        try:
            paths = stage.draw(self.state, self.plan)
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            self.log.write("snapshot_failed", step=self.state.step, reason=str(error))
            return
        finally:
            stage.snapshot.drew(self.seconds, time.perf_counter() - began)
        self.log.write("snapshot", step=self.state.step, paths=[p.relative_to(self.run.path).as_posix() for p in paths])

    def _score(self, scoring: Scoring) -> None:
        began = time.perf_counter()
        if (found := scoring.take(self.state, self.plan)) is None:
            return
        scores, provenance = found
        took = round(time.perf_counter() - began, 3)
        self.log.write("metrics", step=self.state.step, scores=scores, provenance=provenance, took_seconds=took)
        best = scoring.best
        if best.score in scores and best.offer(self.state.step, scores[best.score], self._save):
            self.log.write("best", step=self.state.step, score=best.score, value=scores[best.score])
