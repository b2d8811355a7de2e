"""Trainings in processes of their own, to be killed, signalled and starved."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from distributed.processes import speak_into
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.engine.run.events import Event, read_events
from frugan.training.run import TrainingOptions
from frugan.training.training import train

CPU = TrainingOptions(device="cpu")
PATIENCE_SECONDS = 120.0
"""Machines are shared: what takes longer has stopped."""
Show = Callable[[Event], None]


@dataclass
class Training:
    """A training in a process of its own."""

    # recipe, pictures, run: as for `train`
    recipe: str
    pictures: Path
    run: Path
    overrides: tuple[str, ...] = ()  # likewise
    before: Callable[[], None] = lambda: None  # is called in the process, before it trains
    show: Show = lambda event: None  # is given every event, in the process

    def __post_init__(self) -> None:
        self.process = get_context("fork").Process(target=self._train)

    def start(self) -> "Training":
        """Begin."""
        self.process.start()
        return self

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait_for(self, kind: str, count: int) -> None:
        """Wait until the run has so many events of a kind, or its process has ended."""
        end = time.monotonic() + PATIENCE_SECONDS
        while len(events(self.run, kind)) < count and self.process.is_alive():
            assert time.monotonic() < end, f"no {count} events {kind!r}:\n{self.said()}"
            time.sleep(0.02)

    def ended(self) -> int:
        """Wait for the end; its exit code, negative: the signal that ended it."""
        self.process.join(PATIENCE_SECONDS)
        code = self.process.exitcode
        assert code is not None, f"it has not ended:\n{self.said()}"
        return code

    def said(self) -> str:
        """What it wrote to the console."""
        path = self.run.with_suffix(".said")
        return path.read_text("utf-8") if path.is_file() else ""

    def _train(self) -> None:
        speak_into(self.run.with_suffix(".said"))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.before()
        train(
            self.recipe,
            self.pictures,
            self.run,
            overrides=self.overrides,
            options=CPU,
            say=lambda line: print(line, flush=True),
            show=self.show,
        )


def events(run: Path, kind: str) -> list[Event]:
    """Events of a kind so far."""
    path = run / "events.jsonl"
    return [event for event in read_events(path) if event.get("event") == kind] if path.is_file() else []


def tensors(run: Path) -> dict[str, Tensor]:
    """Everything in a run's last checkpoint: weights, averages, optimizers' state."""
    newest = list_checkpoints(run / "checkpoints")[-1].path
    return {
        f"{f.name}/{key}": value for f in sorted(newest.glob("*.safetensors")) for key, value in load_file(f).items()
    }


def assert_same(run: Path, other: Path) -> None:
    """The last checkpoints are of the same step, and equal bit for bit."""
    steps = [list_checkpoints(each / "checkpoints")[-1].step for each in (run, other)]
    assert steps[0] == steps[1]
    mine, theirs = tensors(run), tensors(other)
    assert mine.keys() == theirs.keys()
    assert [key for key in mine if not mine[key].equal(theirs[key])] == []
