"""SIGKILL at any moment, also in the midst of a checkpoint: the weights at the end are those of a run left alone."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from faults.processes import CPU, Training, assert_same, events
from faults.small_runs import recipe_and_pictures
from frugan.engine.run.checkpoint import UNFINISHED
from frugan.training.training import train

EVERY_STEP = ("saving.checkpoint_every=1 steps",)


def _die_at(flush: int) -> Callable[[], None]:
    """Be killed when a file is flushed for that time: a checkpoint is half written then."""

    def patch() -> None:
        whole, left = os.fsync, [flush]

        def fsync(descriptor: int) -> None:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            whole(descriptor)

        os.fsync = fsync  # type: ignore[assignment]

    return patch


def _survives(tmp_path: Path, kills: int, steps: int) -> None:
    recipe, pictures = recipe_and_pictures(tmp_path)
    overrides = (*EVERY_STEP, f"training.duration={steps} steps")
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(recipe, pictures, whole, overrides=overrides, options=CPU)
    random, killed, in_checkpoints = Random(kills), 0, 0
    while killed < kills:
        in_checkpoint = killed % 2 == 1
        before = _die_at(random.randint(5, 20)) if in_checkpoint else lambda: None
        training = Training(recipe, pictures, run, overrides, before).start()
        if not in_checkpoint:
            training.wait_for("step", len(events(run, "step")) + random.randint(1, 2))
            time.sleep(random.uniform(0, 0.08))
            training.kill()
        code = training.ended()
        assert code == -signal.SIGKILL, training.said()  # it was still under way
        in_checkpoints += bool(list((run / "checkpoints").glob(f"{UNFINISHED}*")))
        killed += 1
    assert train(recipe, pictures, run, overrides=overrides, options=CPU).finished
    assert_same(run, whole)
    assert in_checkpoints >= kills // 3, "hardly a checkpoint was half written"
    assert list((run / "checkpoints").glob(f"{UNFINISHED}*")) == []
    print(f"{killed} kills, {in_checkpoints} of them in the midst of a checkpoint")


def test_two_kills(tmp_path: Path) -> None:
    """One between steps, and one in the midst of a checkpoint."""
    _survives(tmp_path, 2, 8)


@pytest.mark.long
def test_thirty_kills(tmp_path: Path) -> None:
    _survives(tmp_path, 30, 80)
