"""Two processes on one run folder: the second is refused by name, a lock that was left behind is not in the way."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults.processes import CPU, Training
from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.engine.run import run_folder
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.training.training import train
from limits import Limit

SHORT = ("training.duration=2 steps",)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    return minigan_and_pictures(tmp_path)


def test_the_second_process_is_refused_and_the_first_named(
    tmp_path: Path, recipe: tuple[str, Path], said: list[str]
) -> None:
    run = tmp_path / "run"
    first = Training(*recipe, run, ("training.duration=100k steps",)).start()
    first.wait_for("step", 1)
    owner = rf"process {first.process.pid} on {socket.gethostname()}, begun 20\d\d-"
    with pytest.raises(BadInput, match=rf"another process is training there \({owner}"):
        train(*recipe, run, overrides=SHORT, options=CPU)
    first.kill()
    first.ended()
    assert (run / run_folder.OWNER).is_file()  # what a killed process leaves
    train(*recipe, run, overrides=("training.duration=100k steps",), options=CPU, say=said.append, show=_stop_at_once)
    assert any("did not end by itself; its lock is taken over" in line for line in said)
    assert not any("watching" in line for line in said)  # on this machine the system knows
    assert not (run / run_folder.OWNER).exists()


def _stop_at_once(event: dict[str, object]) -> None:
    if event["event"] == "start":
        os.kill(os.getpid(), 15)


@contextmanager
def _owner_elsewhere(run: Path, *, alive: bool) -> Iterator[None]:
    """A file of another machine's owner, which is touched as long as that lives. Its file lock does not reach here."""
    run.mkdir()
    path, over = run / run_folder.OWNER, threading.Event()
    path.write_text(json.dumps({"host": "node-7", "process": 41, "since": "2026-01-01 00:00:00"}), "utf-8")

    def beat() -> None:
        while not over.wait(0.05):
            os.utime(path)

    thread = threading.Thread(target=beat)
    if alive:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if alive:
            thread.join()


@pytest.mark.parametrize("alive", [True, False])
def test_an_owner_on_another_machine(tmp_path: Path, limit: Limit, alive: bool) -> None:
    limit("seconds without a sign of life", 0.8)
    run, said = RunFolder(tmp_path / "run"), list[str]()
    with _owner_elsewhere(run.path, alive=alive):
        if alive:
            with pytest.raises(BadInput, match=r"process 41 on node-7, begun 2026"), run.locked(said.append):
                pass
            return
        with run.locked(said.append):
            assert json.loads((run.path / run_folder.OWNER).read_text())["process"] == os.getpid()
    assert "watching for 0.8 s" in said[0]
    assert "its lock is taken over" in said[1]


def test_an_owner_shows_that_it_lives(tmp_path: Path, limit: Limit) -> None:
    limit("seconds between signs of life", 0.02)
    with RunFolder(tmp_path).locked():
        path = tmp_path / run_folder.OWNER
        os.utime(path, (1, 1))
        assert _becomes(lambda: path.stat().st_mtime > 1000)


def _becomes(so: object) -> bool:
    return any(so() or threading.Event().wait(0.05) for _ in range(400))  # type: ignore[operator]


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"host": 5}'])
def test_a_damaged_owner_is_taken_for_one_elsewhere(
    tmp_path: Path, limit: Limit, content: str, said: list[str]
) -> None:
    limit("seconds without a sign of life", 0.05)
    (tmp_path / run_folder.OWNER).write_text(content, "utf-8")
    with RunFolder(tmp_path).locked(said.append):
        assert "taken over" in said[-1]
