"""The training loop: steps, and what is written between them."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.device import no_way_back, out_of_memory_noted, release_memory
from frugan.accelerator.host_memory import freed_memory_kept
from frugan.engine.durations import Clock, Duration, GridClock
from frugan.engine.plan import Plan
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.engine.requests import Requests, StopRequest
from frugan.engine.run.checkpoint import (
    EARLIER,
    BestCheckpoints,
    Checkpoint,
    checkpoint_name,
    keep_newest,
    save_checkpoint,
    set_aside,
)
from frugan.engine.run.events import EventLog
from frugan.engine.run.run_folder import RunFolder, no_room, told_what_is_needed
from frugan.engine.run.step_log import FINITE_STEPS, Diverged, Readout, StepLog, shown_state
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.step.update import NextPlan, PhaseResult

QUICK_SECONDS = 2.0
"""Grids that took no longer are still drawn when training is asked to stop."""


class Comes(IntEnum):
    """What all ranks do next."""

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
    AGAIN = 9
    """Go back to an earlier checkpoint: training has diverged."""


_DOING = MappingProxyType(
    {
        Comes.SAVE: "the checkpoint",
        Comes.BACKUP: "the backup",
        Comes.DRAW: "the sample grids",
        Comes.SCORE: "the scores",
        Comes.BEST: "the checkpoint that is kept for its score",
    }
)


@dataclass(frozen=True)
class Scoring:
    """How a training is scored while it goes on."""

    due: Clock  # when
    # scores of the present state, by name, and what they were measured with; leaves no trace in the state. None: they
    # could not be taken, and it has said why; or the first rank has them.
    take: Callable[[TrainingState, Plan], tuple[Mapping[str, float], Mapping[str, Any]] | None]
    best: BestCheckpoints  # keeps checkpoints by one of them


@dataclass
class RunningStage:
    """What a training does until its recipe changes, or to the end."""

    step: Step  # what runs
    until: int | None  # step at which the stage ends; None: it does not
    # checkpoint, backup, snapshot, report: when each is due
    checkpoint: Clock
    backup: Clock | None
    snapshot: GridClock
    report: Clock
    draw: Callable[[TrainingState, Plan], list[Path]]  # writes grids of the present state and returns their paths
    readings: Callable[[TrainingState], Mapping[str, torch.Tensor]]  # what is reported besides gradients: name -> [1]
    # when scores are taken, by what, and which checkpoints are kept for them; None: never
    scoring: Scoring | None = None
    # is called when steps take many times (so many) as long as they did; None: nothing could be done
    look_again: Callable[[float], None] | None = None
    # is called once, when the first step that all phases were due in is over, with what was drawn or written after it:
    # by then libraries have loaded what they load; None: nothing waits for that
    after_full_step: Callable[[], None] | None = None
    _full: bool = False  # whether such a step was run

    def begins(self, step: int) -> None:
        """A step begins; its number counts from 0."""
        if self._full and self.after_full_step is not None:
            self.after_full_step()
            self.after_full_step = None
        self._full = self._full or all(phase.due(step) for phase in self.step.phases)


Stages = Callable[["Loop"], AbstractContextManager[RunningStage]]
"""Opens the stage that a training has come to; its data are closed with it."""


@dataclass
class Loop:
    """Trains until the duration, if it has an end, is over or a stop is asked for."""

    # state, plan: what is trained, and the plan in force
    state: TrainingState
    plan: Plan
    stages: Stages  # opens what runs next
    # gives a plan that takes less when memory runs out, and raises TrainingFailed where there is none
    next_plan: NextPlan
    duration: Duration  # in all, over all resumptions
    batch: int  # samples per step
    keep: int  # newest checkpoints kept
    # run, log: where things go
    run: RunFolder
    log: EventLog
    steps: StepLog  # reads, writes and judges what steps did
    metadata: Mapping[str, str]  # for weights files
    kept: Mapping[str, Any]  # JSON values kept in every checkpoint; they may change while training goes on
    requests: Requests = field(default_factory=Requests)  # what is asked for while training goes on
    # whether training goes on when the disk has no room for a checkpoint, until the end
    goes_on_when_full: bool = False
    seconds: float = 0.0  # of training so far, over all resumptions
    images: int = 0  # pictures that networks were shown so far, each as often as it was; see `Step.pictures_at`
    # the processes that share each update; all run this loop, and the first alone writes
    ranks: Ranks = field(default_factory=OneRank)
    # when training stops, to go on another time, on the clock of `time.perf_counter`; None: it does not
    stop_at: float | None = None
    _pictured: int = -1
    _clock: tuple[float, float] = (0.0, 0.0)  # when this loop began, and seconds of training by then
    _ran: tuple[float, bool, list[PhaseResult]] | None = None  # the last step, until it was looked back on
    _due: list[Comes] | None = None  # what is still to be done after it; None: it is done with
    _scored: tuple[float, Mapping[str, Any]] = (math.nan, MappingProxyType({}))  # the last score, and how measured

    def train(self, stop: StopRequest) -> bool:
        """Run the loop; every rank runs it, and at each turn all do what the first one has found to come next.

        Returns:
            Whether the duration is over (False: stopped before).

        Raises:
            Diverged: updates were skipped too often in a row.
        """
        self._clock = (time.perf_counter(), self.seconds)
        with freed_memory_kept(self.state.device.type == "cpu"), self.steps.card, ExitStack() as opened:
            stage = opened.enter_context(self.stages(self))
            while (comes := self._what_comes(stage, stop)) not in (Comes.OVER, Comes.STOP):
                if comes is Comes.STEP:
                    # One step, queued on the device; what the last one did is read meanwhile.
                    stage.begins(self.state.step)
                    began = time.perf_counter()
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
                elif comes is Comes.STAGE:
                    # The recipe's next stage has phases and data of its own, and begins with a checkpoint.
                    with self._going_on("checkpoint_failed"):
                        self._save(self.run.checkpoints)
                    opened.close()
                    stage = opened.enter_context(self.stages(self))
                else:
                    self._do(comes, stage)

            # The end, or a stop: nothing that was done is lost.
            over = comes is Comes.OVER
            self.log.write("stop", over=over, signal=stop.signal_name, step=self.state.step, seconds=self.seconds)
            if self.state.step > 0:
                self._save_and_prune()
                if over or stage.snapshot.took_at_most(QUICK_SECONDS):
                    self._draw(stage)
        self.ranks.barrier()  # none has ended well where the first one could not write
        return over

    @property
    def _is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.ranks.rank == 0

    def _what_comes(self, stage: RunningStage, stop: StopRequest) -> Comes:
        """What all ranks do next, as the first one says.

        Raises:
            Diverged: on all of them.
        """
        if self._is_first:
            try:
                return Comes(self.ranks.broadcast_number(self._decide(stage, stop)))
            except Diverged:
                self.ranks.broadcast_number(Comes.AGAIN)
                raise
        if (comes := Comes(self.ranks.broadcast_number())) is Comes.AGAIN:
            words = "the first rank goes back to an earlier checkpoint"
            raise Diverged(words, phase="", step=self.state.step, reason=words, out_of_range=False)
        return comes

    def _decide(self, stage: RunningStage, stop: StopRequest) -> Comes:
        """What comes next: what the last step made due, then another step, until there is an end."""
        if self._ran is not None:
            self._due, self._ran = self._look_back(stage, stop, *self._ran), None
            if self.stop_at is not None and time.perf_counter() >= self.stop_at:
                stop.signal_name = stop.signal_name or "stop-after"
        if self._due and stop.asked:  # who waits for an end shall not wait for pictures first
            self._due = [comes for comes in self._due if comes not in (Comes.DRAW, Comes.SCORE)]
        if self._due:
            comes = self._due.pop(0)
            stop.doing = f"{_DOING[comes]} of step {self.state.step:,}"
            return comes
        if self._due is not None:
            self._due = None
            if stage.look_again is not None and (slower := self.steps.timer.slowed()) is not None:
                stage.look_again(slower)
                self.steps.timer.looked()
        if self._over() or stop.asked:
            self.steps.read()
            return Comes.OVER if self._over() else Comes.STOP
        if self.state.step == stage.until:
            self.steps.read()
            return Comes.STAGE
        return Comes.STEP

    def _look_back(
        self, stage: RunningStage, stop: StopRequest, began: float, reported: bool, results: list[PhaseResult]
    ) -> list[Comes]:
        """Send for what a step did, read what the one before it did, and find what is due or asked for now."""
        with no_way_back("a report of the step"):
            extra = {**stage.readings(self.state), **shown_state(stage.step, self.state)} if reported else {}
            readout = Readout.start(self.state.step, results, extra)
        self.steps.read()
        self.images += stage.step.pictures_at(self.state.step - 1)
        began_all, before = self._clock
        self.seconds = before + time.perf_counter() - began_all
        self.steps.ran(stage.step, self.plan, readout, began=began, seconds=self.seconds, images=self.images)

        step, asked = self.state.step, self.requests.take()
        if "stop" in asked:
            stop.signal_name = stop.signal_name or "request"
        due = {
            Comes.SAVE: stage.checkpoint.due(step, self.seconds) or "save" in asked,
            Comes.BACKUP: stage.backup is not None and stage.backup.due(step, self.seconds),
            Comes.DRAW: stage.snapshot.due(step, self.seconds) or "preview" in asked,
            Comes.SCORE: stage.scoring is not None and stage.scoring.due.due(step, self.seconds),
        }
        return [comes for comes, is_due in due.items() if is_due]

    def _is_reported(self, stage: RunningStage) -> bool:
        """Whether the coming step's report holds more than gradients and losses."""
        return self.state.step == 0 or stage.report.due(self.state.step, self.seconds)

    def _do(self, comes: Comes, stage: RunningStage) -> None:
        """Save, draw or score."""
        # What is drawn, and a network of features, are not carved out of what steps have reserved; a processor's memory
        # is not reserved.
        makes_room = comes in (Comes.DRAW, Comes.SCORE) and accelerator_of(self.state.device).is_card
        if makes_room:
            release_memory(self.state.device)
        with self._going_on("snapshot_failed" if comes is Comes.DRAW else "checkpoint_failed"):
            if comes is Comes.SAVE:
                self._save_and_prune()
            elif comes is Comes.BACKUP:
                self._back_up()
            elif comes is Comes.DRAW:
                self._draw(stage)
            elif comes is Comes.SCORE and stage.scoring is not None:
                self._score(stage.scoring)
            elif comes is Comes.BEST and stage.scoring is not None:
                self._keep_for_score(stage.scoring.best)
        if makes_room:
            release_memory(self.state.device)

    @contextmanager
    def _going_on(self, event: str) -> Iterator[None]:
        """Where the recipe says so, training goes on when there is no room for what is written within the block."""
        try:
            yield
        except OSError as error:
            if not self.goes_on_when_full or not no_room(error):
                raise
            self.log.write(event, step=self.state.step, reason=f"{error.strerror or error}; training goes on")
            if self._due is not None and Comes.BACKUP in self._due:
                self._due.remove(Comes.BACKUP)  # there is no room for it either

    def _over(self) -> bool:
        if (steps := self.duration.known_steps(self.batch)) is not None:
            return self.state.step >= steps
        return self.seconds >= self.duration.amount

    def _smaller_plan(self, plan: Plan, phase: str, message: str) -> Plan:
        """Take a smaller plan; what the one before has taken at most is not what this one takes."""
        self.plan = self.next_plan(plan, phase, message)
        accelerator = accelerator_of(self.state.device)
        if accelerator.is_card:
            accelerator.reset_peaks()
        now = self.plan.as_json()
        self.log.write("out_of_memory", step=self.state.step, phase=phase, message=message, plan=now)
        return self.plan

    def _save_and_prune(self) -> None:
        self._save(self.run.checkpoints)
        if self._is_first:
            sound = self.steps.divergence.kept(self.run.checkpoints, self.state.step)
            keep_newest(self.run.checkpoints, self.keep, sound)

    def _back_up(self) -> None:
        """Write a backup; one of this step is of a training that this one has gone back behind."""
        old = Checkpoint(self.run.backups / checkpoint_name(self.state.step), self.state.step)
        if self._is_first and old.path.exists():
            set_aside(old, EARLIER)
        self._save(self.run.backups)

    def _save(self, folder: Path) -> None:
        """Write a checkpoint, from what all ranks have."""
        # the last step may have been due anyway
        is_new = bool(self.ranks.broadcast_number(not (folder / checkpoint_name(self.state.step)).exists()))
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
            if self._is_first:
                save_checkpoint(folder, self.state, self.metadata, {**self.kept, **own})
        if is_new:
            path = folder / checkpoint_name(self.state.step)
            self.log.write("checkpoint", step=self.state.step, path=path.relative_to(self.run.path).as_posix())

    def _draw(self, stage: RunningStage) -> None:
        if self._pictured == self.state.step or not self._is_first:
            return
        self._pictured = self.state.step
        began, paths = time.perf_counter(), list[str]()
        try:
            with out_of_memory_noted() as messages:
                paths = [p.relative_to(self.run.path).as_posix() for p in stage.draw(self.state, self.plan)]
        finally:
            stage.snapshot.drew(self.seconds, time.perf_counter() - began)
        if messages:
            self.log.write("snapshot_failed", step=self.state.step, reason=messages[0])
        else:
            self.log.write("snapshot", step=self.state.step, paths=paths)

    def _score(self, scoring: Scoring) -> None:
        """Let every rank draw its part; the first one has the scores."""
        began = time.perf_counter()
        if (scored := scoring.take(self.state, self.plan)) is None:
            return
        scores, provenance = scored
        took = round(time.perf_counter() - began, 3)
        self.log.write("metrics", step=self.state.step, scores=scores, provenance=provenance, took_seconds=took)
        self._scored = scores.get(scoring.best.score, math.nan), provenance
        if self._due is not None and scoring.best.wants(self.state.step, *self._scored):
            self._due.append(Comes.BEST)

    def _keep_for_score(self, best: BestCheckpoints) -> None:
        if not self._is_first:
            self._save(best.folder)
        elif best.offer(self.state.step, *self._scored, self._save):
            self.log.write("best", step=self.state.step, score=best.score, value=self._scored[0])
