"""A loop over the made-up family, for the tests of what happens between steps."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.made_up import MadeUpFamily
from contract.rig import Rig
from frugan.engine.durations import ENDLESS, Clock, Duration, GridClock
from frugan.engine.plan import Plan
from frugan.engine.requests import StopRequest
from frugan.engine.run.checkpoint import BackupLimits, newest_whole, restore
from frugan.engine.run.events import Event, EventLog
from frugan.engine.run.kept_time import KeptTime
from frugan.engine.run.loop import Loop, RunningStage, Scoring
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.run.step_log import DivergenceWatch, StepLog
from frugan.engine.state.state import TrainingState
from frugan.engine.step.update import NextPlan
from frugan.errors import TrainingFailed


def _none_left(plan: Plan, phase: str, message: str) -> Plan:
    raise TrainingFailed(f"{phase}: {message}")


def train(
    path: Path,
    steps: int | None,
    *,
    rig: Rig | None = None,
    checkpoint_every: str = "4 steps",
    stop: StopRequest | None = None,
    stop_after: int | None = None,
    pictured: list[int] | None = None,
    next_plan: NextPlan | None = None,
    command: bool = False,
    backup_limits: BackupLimits | None = None,
    kept_time: KeptTime | None = None,
    now: Callable[[], float] = time.perf_counter,
    scoring: Scoring | None = None,
) -> tuple[Rig, list[Event], bool]:
    """Train to `steps` (None: without an end), from the newest checkpoint if there is one.

    Args:
        stop_after: ask for a stop once this many steps are done.
        pictured: takes the steps at which a snapshot was wanted.
        backup_limits: what is kept of backups; None: all.
        command: give the loop a command that goes on with the run, for messages.
        kept_time: decides how many steps there are.
        now: reads the loop's clock.
        scoring: how it is scored; None: it is not.
    """
    rig = rig or Rig.create(MadeUpFamily())
    run = RunFolder(path)
    stop = stop or StopRequest()
    events: list[Event] = []
    with EventLog(run.events) as log:
        newest = newest_whole(run.checkpoints)
        if newest is not None:
            restore(newest[0], newest[1], rig.state)
            log.write("resume", step=rig.state.step)

        def show(event: Event) -> None:
            events.append(event)
            if event["event"] == "step" and event["step"] == stop_after:
                stop.signal_name = "SIGINT"

        log.subscribe(show)

        def draw(state: TrainingState, plan: Plan) -> list[Path]:
            if pictured is not None:
                pictured.append(state.step)
            return []

        @contextmanager
        def stage(loop: Loop) -> Iterator[RunningStage]:
            yield RunningStage(
                step=rig.step,
                until=None,
                checkpoint=Clock(Duration.parse(checkpoint_every), 8),
                backup=Clock(Duration.parse("5 steps"), 8),
                snapshot=GridClock(Duration.parse("32 images"), 8),
                report=Clock(Duration.parse("3 steps"), 8),
                draw=draw,
                readings=lambda state: {},
                scoring=scoring,
            )

        duration = ENDLESS if steps is None else Duration.parse(f"{steps} steps")
        words = "frugan train somewhere" if command else None
        sound = DivergenceWatch.of(newest[1] if newest else {}, rig.state.step)
        loop = Loop(
            state=rig.state,
            plan=rig.plan,
            stages=stage,
            next_plan=next_plan or _none_left,
            duration=duration,
            batch=rig.step.batch,
            keep=2,
            run=run,
            log=log,
            steps=StepLog(log, run.checkpoints, rig.state.device, duration, words, sound, kept_time=kept_time),
            metadata={},
            backup_limits=backup_limits or BackupLimits(),
            kept={},
            seconds=float(newest[1]["seconds"]) if newest else 0.0,
            images=int(newest[1]["images"]) if newest else 0,
            length=None if kept_time is None else kept_time.length,
            kept_time=kept_time,
            now=now,
        )
        return rig, events, loop.train(stop)
