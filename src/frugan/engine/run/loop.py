"""The training loop: steps, and what is written between them."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.device import catch_out_of_memory, no_retry, release_memory
from frugan.accelerator.host_memory import keep_freed_memory
from frugan.engine.durations import Clock, Duration, GridClock, Length
from frugan.engine.plan import Plan
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.engine.requests import Requests, StopRequest
from frugan.engine.run.best_checkpoints import BestCheckpoints
from frugan.engine.run.checkpoint import (
    EARLIER,
    BackupLimits,
    Checkpoint,
    checkpoint_name,
    keep_newest,
    list_checkpoints,
    save_checkpoint,
    set_aside,
)
from frugan.engine.run.events import EventLog
from frugan.engine.run.kept_time import KeptTime, NewLength, Work
from frugan.engine.run.run_folder import RunFolder, explain_full_disk, no_room
from frugan.engine.run.step_log import FINITE_STEPS, Diverged, Readout, StepLog, shown_state
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.step.update import NextPlan, PhaseResult
from frugan.wording import count

QUICK_SECONDS = 2.0
"""Grids that took no longer are still drawn when training is asked to stop."""


class Action(IntEnum):
    """Next action of the loop, the same on all ranks."""

    STEP = 0
    SAVE = 1
    BACKUP = 2
    DRAW = 3
    """Draw sample grids."""
    SCORE = 4
    BEST = 5
    """Keep a checkpoint for its score."""
    STAGE = 6
    """Begin the recipe's next stage."""
    STOP = 7
    """End before the duration is over."""
    OVER = 8
    LENGTH = 10
    """Train more or fewer steps, so that the training ends in time."""
    AGAIN = 9
    """Go back to an earlier checkpoint: training has diverged."""


_DOING = MappingProxyType(
    {
        Action.SAVE: "the checkpoint",
        Action.BACKUP: "the backup",
        Action.DRAW: "the sample grids",
        Action.SCORE: "the scores",
        Action.BEST: "the checkpoint that is kept for its score",
    }
)


_WORK = MappingProxyType({Action.SAVE: Work.SAVE, Action.DRAW: Work.DRAW, Action.SCORE: Work.SCORE})


@dataclass(frozen=True)
class Scoring:
    """How a training is scored while it goes on."""

    due: Clock  # when
    # scores of the present state, by name, and what they were measured with; leaves no trace in the state. None: they
    # could not be taken, and it has said why; or the first rank has them.
    take: Callable[[TrainingState, Plan], tuple[Mapping[str, float], Mapping[str, Any]] | None]
    best: BestCheckpoints  # keeps checkpoints by one of them
    # predicts the seconds that each takes, and the first one besides; leaves no trace in the state. None: nobody can
    predict: Callable[[TrainingState, Plan], tuple[float, float] | None]
    # is told that scores on the way take too much of the time: the next one's seconds, and whether the end has one
    leave_to_end: Callable[[float, bool], None]


@dataclass
class RunningStage:
    """A stage in progress: its step, and when checkpoints, grids, reports and scores are due."""

    step: Step  # what runs
    until: int | None  # step at which the stage ends; None: it does not
    checkpoint: Clock  # when checkpoints are due
    backup: Clock | None  # when backups are due; None: never
    snapshot: GridClock  # when sample grids are due
    report: Clock  # when a full report is due
    draw: Callable[[TrainingState, Plan], list[Path]]  # writes grids of the present state and returns their paths
    readings: Callable[[TrainingState], Mapping[str, torch.Tensor]]  # what is reported besides gradients: name -> [1]
    # when scores are taken, by what, and which checkpoints are kept for them; None: never
    scoring: Scoring | None = None
    # called with the slowdown factor when steps take many times as long as before; None: nothing could be done
    on_slowdown: Callable[[float], None] | None = None
    # called once, after the first step with all phases due and what was drawn or written after it: libraries are fully
    # loaded by then; None: nothing waits for that
    on_first_full_step: Callable[[], None] | None = None
    _full: bool = False  # whether such a step was run

    @property
    def works(self) -> Mapping[Work, Clock]:
        """When work between steps is due."""
        clocks: dict[Work, Clock] = {Work.SAVE: self.checkpoint, Work.DRAW: self.snapshot}
        return clocks if self.scoring is None else {**clocks, Work.SCORE: self.scoring.due}

    def begins(self, step: int) -> None:
        """Note that step `step` (from 0) begins."""
        if self._full and self.on_first_full_step is not None:
            self.on_first_full_step()
            self.on_first_full_step = None
        self._full = self._full or all(phase.due(step) for phase in self.step.phases)


Stages = Callable[["Loop"], AbstractContextManager[RunningStage]]
"""Opens the stage that a training has come to; its data are closed with it."""


@dataclass
class Loop:
    """Trains until the duration is over, if it has an end, or a stop is requested."""

    state: TrainingState  # networks, optimizers and averages
    plan: Plan  # the plan in force
    stages: Stages  # opens what runs next
    # gives a plan that takes less when memory runs out, and raises TrainingFailed where there is none
    next_plan: NextPlan
    # in all, over all resumptions; `length` is in force where it is known
    duration: Duration
    batch: int  # samples per step
    keep: int  # newest checkpoints kept
    run: RunFolder  # where checkpoints and grids go
    log: EventLog  # where events go
    steps: StepLog  # reads, writes and judges what steps did
    metadata: Mapping[str, str]  # for weights files
    kept: Mapping[str, Any]  # JSON values kept in every checkpoint; they may change while training goes on
    requests: Requests = field(default_factory=Requests)  # what is asked for while training goes on
    backup_limits: BackupLimits = field(default_factory=BackupLimits)  # what is kept of backups
    # whether training goes on when the disk has no room for a checkpoint, until the end
    continue_when_full: bool = False
    seconds: float = 0.0  # of training so far, over all resumptions
    images: int = 0  # pictures that networks were shown so far, each as often as it was; see `Step.pictures_at`
    # the processes that share each update; all run this loop, and the first alone writes
    ranks: Ranks = field(default_factory=OneRank)
    # when training stops, to go on another time, on the clock that `now` reads; None: it does not
    stop_at: float | None = None
    length: Length | None = None  # steps in all, which may be decided again; None: it has no number of steps
    kept_time: KeptTime | None = None  # decides the length again; None: it stays
    # reports a new length, and returns the metadata for weights files that goes with it
    on_new_length: Callable[[NewLength], Mapping[str, str]] | None = None
    now: Callable[[], float] = time.perf_counter  # reads the clock, in seconds
    _pictured: int = -1
    _clock: tuple[float, float] = (0.0, 0.0)  # when this loop began, and seconds of training by then
    _ran: tuple[float, bool, list[PhaseResult]] | None = None  # the last step, until it was looked back on
    _due: list[Action] | None = None  # what is still to be done after it; None: it is done with
    _scored: tuple[float, Mapping[str, Any]] = (math.nan, MappingProxyType({}))  # the last score, and how measured
    _predicted: bool = False  # whether it was tried to predict what scores take
    # whether the end has a score, as was told when those on the way took too much of the time; None: nothing was told
    _told_dear: bool | None = None
    _new_length: NewLength | None = None  # that is to be in force from the next step on; None: none

    def train(self, stop: StopRequest) -> bool:
        """Run the loop; every rank runs it, and each iteration does what the first rank has chosen.

        Returns:
            Whether the duration is over (False: stopped before).

        Raises:
            Diverged: updates were skipped too often in a row.
        """
        self._clock = (self.now(), self.seconds)
        on_cpu = self.state.device.type == "cpu"
        with self._saving_on_error(), keep_freed_memory(on_cpu), self.steps.card, ExitStack() as opened:
            stage = opened.enter_context(self.stages(self))
            while (action := self._next_action(stage, stop)) not in (Action.OVER, Action.STOP):
                if action is Action.STEP:
                    # One step, queued on the device; what the last one did is read meanwhile.
                    stage.begins(self.state.step)
                    began = self.now()
                    if self.kept_time is not None:
                        self.kept_time.begins(began)
                    stop.doing = f"step {self.state.step + 1:,}"
                    reported = self._is_first and self._is_reported(stage)
                    self.steps.begins(began)
                    results = stage.step.run(
                        self.state,
                        self.plan,
                        count_zeros=reported,
                        next_plan=self._smaller_plan,
                    )
                    self._ran = (began, reported, results)
                elif action is Action.STAGE:
                    # The recipe's next stage has phases and data of its own, and begins with a checkpoint.
                    with self._between_steps(None):
                        with self._continue_without_room("checkpoint_failed"):
                            self.save(self.run.checkpoints)
                        opened.close()
                        stage = opened.enter_context(self.stages(self))
                elif action is Action.LENGTH:
                    self._train_until(self.ranks.broadcast_number(self._new_length.steps if self._new_length else 0))
                else:
                    self._do(action, stage)

            # The end, or a stop: nothing that was done is lost.
            over = action is Action.OVER
            self.log.write("stop", over=over, signal=stop.signal_name, step=self.state.step, seconds=self.seconds)
            if self.state.step > 0:
                self._save_and_prune()
                if over or stage.snapshot.took_at_most(QUICK_SECONDS):
                    self._draw(stage)
        self.ranks.barrier()  # none has ended well where the first one could not write
        return over

    @contextmanager
    def _saving_on_error(self) -> Iterator[None]:
        """Save before an error goes on, as a stop does; where that cannot be done, the error is enough to tell.

        Several ranks do not meet to save: others may wait for what will not come. An interrupt saves nothing, and says
        what that loses; that somebody wanted it is told in the events all the same.
        """
        try:
            yield
        except KeyboardInterrupt:
            with suppress(OSError):
                self.log.write("stop", over=False, at_once=True, step=self.state.step, seconds=self.seconds)
            raise KeyboardInterrupt(self._lost()) from None
        except Exception as error:
            # a step that was not looked back on is not counted yet: the last checkpoint is truer
            is_whole = self.state.step > 0 and not self.state.within_step and self._ran is None and self.ranks.size == 1
            if is_whole and not isinstance(error, Diverged) and not (isinstance(error, OSError) and no_room(error)):
                with suppress(OSError, RuntimeError, MemoryError, Diverged):
                    self.steps.read()
                    self._save_and_prune()
            raise

    def _lost(self) -> str:
        """Say how many steps go with this process."""
        checkpoints = list_checkpoints(self.run.checkpoints)
        if not checkpoints:
            return f"no checkpoint was written yet, so {count(self.state.step, 'step')} must be done again"
        newest = checkpoints[-1].step
        lost = count(max(0, self.state.step - newest), "step")
        return f"the checkpoint of step {newest:,} is whole, and {lost} after it must be done again"

    @property
    def _is_first(self) -> bool:
        """Return whether this process is the one that writes."""
        return self.ranks.rank == 0

    def _next_action(self, stage: RunningStage, stop: StopRequest) -> Action:
        """Return the next action, decided by the first rank.

        Raises:
            Diverged: on all ranks.
        """
        if self._is_first:
            try:
                return Action(self.ranks.broadcast_number(self._decide(stage, stop)))
            except Diverged:
                self.ranks.broadcast_number(Action.AGAIN)
                raise
        if (action := Action(self.ranks.broadcast_number())) is Action.AGAIN:
            words = "the first rank goes back to an earlier checkpoint"
            raise Diverged(words, phase="", step=self.state.step, reason=words, out_of_range=False)
        return action

    def _decide(self, stage: RunningStage, stop: StopRequest) -> Action:
        """Choose the next action: whatever the last step made due, then another step, until the end."""
        if self._ran is not None:
            self._due, self._ran = self._read_last_step(stage, stop, *self._ran), None
            if self.stop_at is not None and self.now() >= self.stop_at:
                stop.signal_name = stop.signal_name or "stop-after"
        if self._due and stop.asked:  # who waits for an end shall not wait for pictures first
            self._due = [action for action in self._due if action not in (Action.DRAW, Action.SCORE)]
        if self._due:
            action = self._due.pop(0)
            stop.doing = f"{_DOING[action]} of step {self.state.step:,}"
            return action
        self._report_slowdown(stage)
        if self._over() or stop.asked:
            self.steps.read()
            return Action.OVER if self._over() else Action.STOP
        if self.state.step == stage.until:
            self.steps.read()
            return Action.STAGE
        if self.kept_time is not None:
            self._predict_score(stage.scoring)
            self._new_length = self.kept_time.decide(self.state.step, self._seconds_now(), stage.works)
            if self._new_length is not None:
                return Action.LENGTH
        return Action.STEP

    def _seconds_now(self) -> float:
        """Return the seconds of training up to now."""
        began, before = self._clock
        return before + self.now() - began

    def _train_until(self, steps: int) -> None:
        """Train another number of steps in all; every rank does."""
        assert self.length is not None
        self.length.decide(self.state.step, steps)
        if self.on_new_length is not None and self._new_length is not None:
            self.metadata = self.on_new_length(self._new_length)

    def _report_slowdown(self, stage: RunningStage) -> None:
        """Report that steps have become slower, once what the last step made due is done."""
        if self._due is None:
            return
        self._due = None
        if stage.on_slowdown is not None and (slower := self.steps.timer.slowed()) is not None:
            with self._between_steps(None):
                stage.on_slowdown(slower)
            self.steps.timer.looked()

    def _read_last_step(
        self, stage: RunningStage, stop: StopRequest, began: float, reported: bool, results: list[PhaseResult]
    ) -> list[Action]:
        """Start reading the last step's results, finish reading the step before it, and return what is due now."""
        with no_retry("a report of the step"):
            extra = {**stage.readings(self.state), **shown_state(stage.step, self.state)} if reported else {}
            readout = Readout.start(self.state.step, results, extra)
        self.steps.read()
        self.images += stage.step.pictures_at(self.state.step - 1)
        self.seconds = self._seconds_now()
        self.steps.ran(stage.step, self.plan, readout, began=began, seconds=self.seconds, images=self.images)

        step, requests = self.state.step, self.requests.take()
        if "stop" in requests:
            stop.signal_name = stop.signal_name or "request"
        due = {
            Action.SAVE: stage.checkpoint.due(step, self.seconds) or "save" in requests,
            Action.BACKUP: stage.backup is not None and stage.backup.due(step, self.seconds),
            Action.DRAW: stage.snapshot.due(step, self.seconds) or "preview" in requests,
            Action.SCORE: stage.scoring is not None and self._is_score_due(stage.scoring),
        }
        return [action for action, is_due in due.items() if is_due]

    def _is_score_due(self, scoring: Scoring) -> bool:
        """Return whether scores are due after the last step, and can be afforded if the training keeps a time."""
        clock = scoring.due
        if not clock.due(self.state.step, self.seconds):
            return False
        self._predict_score(scoring)
        kept_time, step = self.kept_time, self.state.step
        if kept_time is None or kept_time.affords_score(clock, step, self.seconds):
            return True
        at_end = step < kept_time.length.steps and kept_time.scores_at_end(clock)
        if self._told_dear != at_end:
            self._told_dear = at_end
            scoring.leave_to_end(kept_time.score_seconds or 0.0, at_end)
        return False

    def _predict_score(self, scoring: Scoring | None) -> None:
        """Predict what scores take, once, so that none takes the time that is kept."""
        kept_time = self.kept_time
        if scoring is None or kept_time is None or self._predicted or not kept_time.knows_no_score:
            return
        self._predicted = True
        with self._between_steps(None), self._room_on_card():
            predicted = scoring.predict(self.state, self.plan)
        if predicted is not None:
            kept_time.expect_score(*predicted)

    def _is_reported(self, stage: RunningStage) -> bool:
        """Return whether the coming step's report holds more than gradients and losses."""
        return self.state.step == 0 or stage.report.due(self.state.step, self.seconds)

    def _do(self, action: Action, stage: RunningStage) -> None:
        """Save, back up, draw, score, or keep the best."""
        failed = "snapshot_failed" if action is Action.DRAW else "checkpoint_failed"
        room = self._room_on_card() if action in (Action.DRAW, Action.SCORE) else nullcontext()
        with room, self._between_steps(_WORK.get(action)), self._continue_without_room(failed):
            if action is Action.SAVE:
                self._save_and_prune()
            elif action is Action.BACKUP:
                self._back_up()
            elif action is Action.DRAW:
                self._draw(stage)
            elif action is Action.SCORE and stage.scoring is not None:
                self._score(stage.scoring)
            elif action is Action.BEST and stage.scoring is not None:
                self._keep_for_score(stage.scoring.best)

    @contextmanager
    def _room_on_card(self) -> Iterator[None]:
        """Make grids and networks of features not in the memory that steps have reserved; a processor reserves none."""
        is_card = accelerator_of(self.state.device).is_card
        if is_card:
            release_memory(self.state.device)
        yield
        if is_card:
            release_memory(self.state.device)

    @contextmanager
    def _between_steps(self, work: Work | None) -> Iterator[None]:
        """Time what happens between steps for a training that keeps a time; None: such as does not come again."""
        began = self.now()
        yield
        if self.kept_time is not None:
            self.kept_time.did(work, self.now() - began)

    @contextmanager
    def _continue_without_room(self, event: str) -> Iterator[None]:
        """Let training continue when the disk is full while the block writes, if the recipe allows that."""
        try:
            yield
        except OSError as error:
            if not self.continue_when_full or not no_room(error):
                raise
            self.log.write(event, step=self.state.step, reason=f"{error.strerror or error}; training goes on")
            if self._due is not None and Action.BACKUP in self._due:
                self._due.remove(Action.BACKUP)  # there is no room for it either

    def _over(self) -> bool:
        steps = self.duration.known_steps(self.batch) if self.length is None else self.length.steps
        if steps is not None:
            return self.state.step >= steps
        return self.seconds >= self.duration.amount

    def _smaller_plan(self, plan: Plan, phase: str, message: str) -> Plan:
        """Switch to a smaller plan, and reset the memory peaks of the plan before it."""
        self.plan = self.next_plan(plan, phase, message)
        accelerator = accelerator_of(self.state.device)
        if accelerator.is_card:
            accelerator.reset_peaks()
        now = self.plan.as_json()
        self.log.write("out_of_memory", step=self.state.step, phase=phase, message=message, plan=now)
        return self.plan

    def _save_and_prune(self) -> None:
        self.save(self.run.checkpoints)
        if self._is_first:
            sound = self.steps.divergence.kept(self.run.checkpoints, self.state.step)
            keep_newest(self.run.checkpoints, self.keep, sound)

    def _back_up(self) -> None:
        """Write a backup, and delete those beyond the limits; one of this step from before the run went back stays."""
        old = Checkpoint(self.run.backups / checkpoint_name(self.state.step), self.state.step)
        if self._is_first and old.path.exists():
            set_aside(old, EARLIER)
        self.save(self.run.backups)
        if self._is_first:
            self.backup_limits.apply(self.run.backups, self.state.step)

    def save(self, folder: Path) -> None:
        """Write a checkpoint, from what all ranks have; all of them call it."""
        # the last step may have been due anyway
        is_new = bool(self.ranks.broadcast_number(not (folder / checkpoint_name(self.state.step)).exists()))
        progress = {
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
        with explain_full_disk(folder, self.state), self.ranks.collected(self.state) if is_new else nullcontext():
            if self._is_first:
                save_checkpoint(folder, self.state, self.metadata, {**self.kept, **progress})
        if is_new:
            path = folder / checkpoint_name(self.state.step)
            self.log.write("checkpoint", step=self.state.step, path=path.relative_to(self.run.path).as_posix())

    def _draw(self, stage: RunningStage) -> None:
        if self._pictured == self.state.step or not self._is_first:
            return
        self._pictured = self.state.step
        began, paths = self.now(), list[str]()
        try:
            with catch_out_of_memory() as messages:
                paths = [p.relative_to(self.run.path).as_posix() for p in stage.draw(self.state, self.plan)]
        finally:
            stage.snapshot.drew(self.seconds, self.now() - began)
        if messages:
            self.log.write("snapshot_failed", step=self.state.step, reason=messages[0])
        else:
            self.log.write("snapshot", step=self.state.step, paths=paths)

    def _score(self, scoring: Scoring) -> None:
        """Score the state; every rank draws its part of the samples, and the first one has the scores."""
        began = self.now()
        if (scored := scoring.take(self.state, self.plan)) is None:
            return
        scores, provenance = scored
        took = round(self.now() - began, 3)
        self.log.write("metrics", step=self.state.step, scores=scores, provenance=provenance, took_seconds=took)
        self._scored = scores.get(scoring.best.score, math.nan), provenance
        if self._due is not None and scoring.best.wants(self.state.step, *self._scored):
            self._due.append(Action.BEST)

    def _keep_for_score(self, best: BestCheckpoints) -> None:
        if not self._is_first:
            self.save(best.folder)
        elif best.offer(self.state.step, *self._scored, self.save):
            self.log.write("best", step=self.state.step, score=best.score, value=self._scored[0])
