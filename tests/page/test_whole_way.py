"""The command itself: a queue of real trainings, of which one is killed, with the page killed and started again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cli.calling import Frugan, frugan
from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.page.queue import Queue
from page.asking import Asking

__all__ = ["frugan"]


@contextmanager
def shown(runs: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Asking]]:
    words = [sys.executable, "-m", "frugan", "page", str(runs), "--no-open", "--port", "0"]
    started = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, **environment}
    )
    try:
        assert started.stdout is not None
        yield started, Asking(started.stdout.readline().strip())
    finally:
        started.kill()
        started.communicate()


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + 600  # what hangs; others may use the processor
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def states(page: Asking) -> dict[str, str]:
    return {about["name"]: about["state"] for about in page.get("/api/runs").json["runs"]}


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """A folder for runs; what still trains or works there at the end is ended."""
    yield tmp_path / "runs"
    queue = Queue(tmp_path / "runs")
    for entry in queue.entries():
        queue.remove(entry.run)
    for owner in (tmp_path / "runs").glob("*/owner.json"):
        with suppress(OSError):
            os.kill(json.loads(owner.read_text())["process"], signal.SIGKILL)


@pytest.mark.long
def test_trainings_outlive_the_page_and_one_another(tmp_path: Path, runs: Path) -> None:
    recipe, pictures = minigan_and_pictures(tmp_path)
    paths = os.pathsep.join([str(OUTSIDE), *filter(None, [os.environ.get("PYTHONPATH")])])
    asked = {"recipe": recipe, "data": str(pictures)}
    with shown(runs, PYTHONPATH=paths) as (_, page):
        endless = {"fields": "'training.duration=100k steps'", **asked}
        assert page.post("/api/start", {"name": "killed", **endless}).status == 200
        assert page.post("/api/start", {"name": "stopped", **endless}).status == 200
        assert page.post("/api/start", {"name": "refused", **endless, "device": "cuda:77"}).status == 200
        assert page.post("/api/start", {"name": "done", **asked}).status == 200
        wait_for(lambda: states(page)["killed"] == "running")
    with shown(runs, PYTHONPATH=paths) as (_, page):
        assert states(page) == {"killed": "running", **dict.fromkeys(("stopped", "refused", "done"), "waiting")}
        os.kill(json.loads((runs / "killed" / "owner.json").read_text())["process"], signal.SIGKILL)
        wait_for(lambda: states(page)["stopped"] == "running")
        assert states(page)["killed"] == "died"
        assert any("saved checkpoints" in line for line in page.get("/api/runs/killed").json["lines"])
        assert page.post("/api/runs/stopped/ask", {"wish": "stop"}).status == 200
        wait_for(lambda: states(page)["done"] == "finished")
        assert states(page) == {"killed": "died", "stopped": "stopped", "refused": "died", "done": "finished"}
        assert "cuda" in page.get("/api/runs/refused").json["lines"][-1]
        newest = list_checkpoints(runs / "killed" / "checkpoints")[-1].step  # as far as this machine has come
        longer = {"fields": {"training.duration": f"{newest + 20} steps"}}
        assert page.post("/api/runs/killed/go-on", longer).status == 200
        wait_for(lambda: states(page)["killed"] == "finished")


def test_without_its_packages_the_extra_is_named(
    frugan: Frugan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    result = frugan("page", str(tmp_path), "--no-open")
    assert result.returncode == 2
    assert "the page needs starlette: pip install 'frugan[page]'" in result.stderr


def test_ctrl_c_while_the_browser_opens_ends_the_page_as_at_any_other_moment(
    frugan: Frugan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", interrupted)
    result = frugan("page", str(tmp_path), "--port", "0")
    assert (result.returncode, result.stderr) == (0, "Ctrl-C ends the page; trainings go on\n")
