"""SIGTERM and SIGINT: once ends the step and saves, twice ends it now, and in the first second nothing is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.processes import CPU, Training, assert_same, events
from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.cli import INTERRUPTED
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.training.training import train

LONG = ("training.duration=100k steps", "saving.checkpoint_every=100k steps")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    return minigan_and_pictures(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_once_ends_the_step_and_saves(tmp_path: Path, recipe: tuple[str, Path], number: signal.Signals) -> None:
    run = tmp_path / "run"
    training = Training(*recipe, run, LONG).start()
    training.wait_for("step", 3)
    training.kill(number)
    assert training.ended() == 0, training.said()
    (stop,) = events(run, "stop")
    assert (stop["signal"], stop["over"]) == (number.name, False)
    assert list_checkpoints(run / "checkpoints")[-1].step == stop["step"] == events(run, "step")[-1]["step"]
    assert "finishing step" in training.said()
    # what it saved goes on as if nobody had asked
    end = (f"training.duration={stop['step'] + 3} steps",)
    train(*recipe, run, overrides=end, options=CPU)
    train(*recipe, tmp_path / "whole", overrides=end, options=CPU)
    assert_same(run, tmp_path / "whole")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT])
def test_twice_ends_it_now(tmp_path: Path, recipe: tuple[str, Path], number: signal.Signals) -> None:
    run = tmp_path / "run"

    def slow(event: dict[str, object]) -> None:
        if event["event"] == "step":
            time.sleep(0.5)  # the step that would be ended first

    training = Training(*recipe, run, LONG, show=slow).start()
    training.wait_for("step", 2)
    began = time.monotonic()
    training.kill(number)
    time.sleep(0.1)
    training.kill(number)
    code = training.ended()
    assert code == (-signal.SIGTERM if number == signal.SIGTERM else 1)  # multiprocessing's own way with Ctrl-C
    assert time.monotonic() - began < 20
    assert list_checkpoints(run / "checkpoints") == []
    # SIGTERM ends the process itself
    assert [event["at_once"] for event in events(run, "stop")] == [True] * (number == signal.SIGINT)
    train(*recipe, run, overrides=("training.duration=3 steps",), options=CPU)  # the lock went with the process


def _heed_interrupts() -> None:
    """As in a terminal: tests that run in a shell's background were started with Ctrl-C ignored, and hand that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("number", "after"),
    [
        pytest.param(signal.SIGINT, 0.35, marks=pytest.mark.long),
        (signal.SIGTERM, 0.6),
        pytest.param(signal.SIGINT, 0.9, marks=pytest.mark.long),
    ],
)
def test_in_the_first_second(tmp_path: Path, recipe: tuple[str, Path], number: signal.Signals, after: float) -> None:
    run, words = tmp_path / "run", ["train", recipe[0], *LONG, "--data", str(recipe[1]), "--device", "cpu"]
    command = [sys.executable, "-m", "frugan", *words, "--out", str(run)]
    paths = [str(OUTSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]  # where the family is found
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509  (no other thread of ours holds a lock here)
    ) as started:
        time.sleep(after)
        started.send_signal(number)
        said, _ = started.communicate(timeout=120)
    assert "Traceback" not in said, said
    # As a shell says it. Started with -m, Python 3.11 ends itself by SIGINT where the interrupt fell into a string that
    # was being executed, as dataclasses do while modules are imported, though we handled it: a shell says 130 then.
    ended = started.returncode if started.returncode >= 0 else 128 - started.returncode
    assert ended in (0, INTERRUPTED, 128 + number), said
    if run.is_dir():
        train(*recipe, run, overrides=("training.duration=2 steps",), options=CPU)
