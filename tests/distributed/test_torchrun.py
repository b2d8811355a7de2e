"""Trainings that torchrun starts: lost ranks come back, signals save, chained jobs train as one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contract.rig import assert_same
from distributed.processes import SECONDS, environment
from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.engine.run.events import read_events
from frugan.engine.run.tensor_files import read_tensors
from frugan.errors import BadInput
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe

STEPS = 20
RESUMABLE = RECIPE.replace("4 steps", f"{STEPS} steps", 1).replace('snapshot_every = "4', 'snapshot_every = "100')


def _weights(run: Path) -> dict[str, object]:
    newest = list_checkpoints(run / "checkpoints")[-1]
    assert newest.step == STEPS
    return dict(read_tensors(newest.path / "networks.safetensors")[0])


def _command(folder: Path, run: str, *, restarts: int = 0) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    recipe = [str(folder / "tiny.toml"), "--data", str(folder / "pictures"), "--out", str(folder / run)]
    return [*launcher, "-m", "frugan", "train", *recipe, "--device", "cpu"]


@contextmanager
def _started(folder: Path, run: str, *, restarts: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A training by torchrun that has written its first checkpoint."""
    process = subprocess.Popen(
        _command(folder, run, restarts=restarts),
        env=environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        began = time.monotonic()
        while not list_checkpoints(folder / run / "checkpoints"):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() - began < SECONDS
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()  # torchrun ends its ranks then


def _worker(launcher: int, rank: int) -> int:
    """The process that torchrun has started for a rank."""
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher and f"RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
        except (OSError, ValueError, IndexError):
            continue
    raise AssertionError(f"rank {rank} is not there")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_recipe(tmp_path, RESUMABLE)
    write_pictures(tmp_path / "pictures")
    return tmp_path


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="finds ranks in /proc")
def test_a_killed_rank_comes_back_from_the_last_checkpoint(folder: Path) -> None:
    """Either rank, and torchrun begins again: the weights are those of an undisturbed training, bit for bit."""
    whole = subprocess.run(_command(folder, "whole"), env=environment(), cwd=folder, capture_output=True, check=True)
    assert b"finished" in whole.stdout
    for rank in (1, 0):
        run = f"killed-{rank}"
        with _started(folder, run, restarts=2) as process:
            other = _worker(process.pid, 1 - rank)
            os.kill(_worker(process.pid, rank), signal.SIGKILL)
            began = time.monotonic()
            while Path(f"/proc/{other}").exists():
                assert time.monotonic() - began < 60
                time.sleep(0.1)
            said, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, said
        assert f"rank {rank} (" in said
        assert ") is lost; noticed while" in said
        assert f"step {STEPS}, finished" in said
        events = list(read_events(folder / run / "events.jsonl"))
        assert len([event for event in events if event["event"] == "resume"]) == 1
        assert_same(_weights(folder / "whole"), _weights(folder / run))  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_same_command_goes_on(number: signal.Signals, folder: Path) -> None:
    with _started(folder, "run") as process:
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
    assert process.returncode != 0  # torchrun's own: it was told to end
    assert "finishing step" in said
    assert "stopped and saved; the same command goes on" in said
    stop = [event for event in read_events(folder / "run" / "events.jsonl") if event["event"] == "stop"][-1]
    assert (stop["over"], stop["signal"]) == (False, number.name)
    assert list_checkpoints(folder / "run" / "checkpoints")[-1].step == stop["step"] < STEPS
    again = subprocess.run(_command(folder, "run"), env=environment(), cwd=folder, capture_output=True, check=True)
    assert f"step {STEPS}, finished" in again.stdout.decode()


def test_chained_jobs_train_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    (recipe, pictures), folder, three = minigan_and_pictures(tmp_path), tmp_path, ["training.duration=3 steps"]
    short = TrainingOptions(device="cpu", stop_after="0.001s")
    jobs = 1
    while not train(recipe, pictures, folder / "chain", overrides=three, options=short).finished:
        jobs += 1
    assert jobs > 1
    stops = [e["signal"] for e in read_events(folder / "chain" / "events.jsonl") if e["event"] == "stop"]
    assert stops[:-1] == ["stop-after"] * (jobs - 1)
    train(recipe, pictures, folder / "one", overrides=three, options=TrainingOptions(device="cpu"))
    newest = Path("checkpoints", "step-000000003", "networks.safetensors")
    assert_same(*(read_tensors(folder / run / newest)[0] for run in ("chain", "one")))


@pytest.mark.parametrize("words", ["23", "8 steps", "soon"])
def test_a_time_that_is_none_is_refused(words: str) -> None:
    with pytest.raises(BadInput, match=f"--stop-after {words}: "):
        TrainingOptions(stop_after=words)
