"""A disk that is full, and checkpoints that went bad on it.

The system's limit on the size of a file stands in for the full disk: writes fail in the midst of a checkpoint, as they
do there, and the small event file can still be written.
"""

import errno
import json
import re
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from faults.processes import CPU, Training, assert_same, events
from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.engine.run import run_folder
from frugan.engine.run.checkpoint import (
    MANIFEST_FILE,
    NETWORKS_FILE,
    OPTIMIZERS_FILE,
    STATE_FILE,
    UNFINISHED,
    list_checkpoints,
    verify,
)
from frugan.engine.run.events import Event, EventLog, read_events
from frugan.reporting.report import page_of
from frugan.training.training import train

LARGE = ("networks.channels=128", "training.duration=8 steps")
"""A checkpoint of megabytes; the events are kilobytes."""
LIMIT_BYTES = 200_000


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("disk")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(OUTSIDE))
        patch.setenv("FRUGAN_BASE", str(folder / "base"))
        yield minigan_and_pictures(folder)


def _fill_and_free(event: Event) -> None:
    """The disk is full from the checkpoint of step 2 on, and has room again once that of step 4 has failed."""
    if event["event"] == "checkpoint" and event["step"] == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, resource.RLIM_INFINITY))
    if event["event"] == "checkpoint_failed":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, recipe: tuple[str, Path]) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(*recipe, run, overrides=LARGE, options=CPU)
    return run


def test_a_full_disk_stops_the_run_and_says_what_it_needs(
    tmp_path: Path, recipe: tuple[str, Path], whole: Path
) -> None:
    run = tmp_path / "run"
    training = Training(*recipe, run, LARGE, show=_fill_and_free).start()
    assert training.ended() == 1
    assert "step-000000004" in training.said()
    (left,) = list_checkpoints(run / "checkpoints")
    assert left.step == 2
    match = re.search(r"the checkpoint takes ([\d,]+) bytes, the disk has [\d,]+ free", training.said())
    assert match is not None
    takes = sum(path.stat().st_size for path in left.path.iterdir())
    assert takes > LIMIT_BYTES
    assert int(match[1].replace(",", "")) == pytest.approx(takes, rel=0.02)
    verify(left)
    assert list((run / "checkpoints").glob(f"{UNFINISHED}*")) == []
    train(*recipe, run, overrides=LARGE, options=CPU)
    assert_same(run, whole)


@pytest.mark.long
def test_or_training_goes_on_until_there_is_room(tmp_path: Path, recipe: tuple[str, Path], whole: Path) -> None:
    run = tmp_path / "run"
    training = Training(*recipe, run, (*LARGE, "saving.when_full=go-on"), show=_fill_and_free).start()
    assert training.ended() == 0, training.said()
    assert [e["step"] for e in events(run, "checkpoint_failed")] == [4]
    assert [e["step"] for e in events(run, "checkpoint")] == [2, 6, 8]
    assert "no checkpoint: " in page_of([run])
    assert_same(run, whole)


def test_events_wait_for_room(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with EventLog(tmp_path / "e.jsonl", keeps=run_folder.no_room) as log:
        log.write("first")
        resource.setrlimit(resource.RLIMIT_FSIZE, (30, before[1]))
        try:
            for number in range(100):
                log.write("waits", number=number, line="x" * 1000)  # more in all than a buffer of Python's holds
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        log.write("last")
    events = list(read_events(tmp_path / "e.jsonl"))
    assert [event["event"] for event in events] == ["first", *["waits"] * 100, "last"]
    assert [event["number"] for event in events[1:-1]] == list(range(100))


def test_events_that_waited_are_written_at_the_end(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with EventLog(tmp_path / "e.jsonl", keeps=run_folder.no_room) as log:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30, before[1]))
        try:
            log.write("waits", line="x" * 100)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [event["event"] for event in read_events(tmp_path / "e.jsonl")] == ["waits"]


def test_which_errors_wait_for_room() -> None:
    assert run_folder.no_room(OSError(errno.ENOSPC, "full"))
    assert not run_folder.no_room(OSError(errno.EIO, "broken"))


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


DAMAGES: Mapping[str, Callable[[Path], object]] = {
    "flipped": _flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


FILES = (NETWORKS_FILE, OPTIMIZERS_FILE, STATE_FILE, MANIFEST_FILE)


def _check_damage(half: Path, whole: Path, recipe: tuple[str, Path], kind: str, name: str) -> None:
    run = half.with_name(f"{kind}-{name}")
    shutil.copytree(half, run)
    newest = list_checkpoints(run / "checkpoints")[-1]
    DAMAGES[kind](newest.path / name)
    files = {path.name for path in newest.path.iterdir()}
    said: list[str] = []
    overrides = ["training.duration=8 steps", "saving.keep_checkpoints=9"]
    train(*recipe, run, overrides=overrides, options=CPU, say=said.append)
    told = next(line for line in said if line.startswith("damaged checkpoint skipped"))
    assert str(newest.path) in told
    assert [e["step"] for e in events(run, "resume")] == [4]
    aside = run / "checkpoints" / f"damaged-{newest.path.name}"
    assert {path.name for path in aside.iterdir()} == files
    assert_same(run, whole)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory, recipe: tuple[str, Path]) -> tuple[Path, Path]:
    """A run of six steps, to be copied, and one of eight."""
    half, whole = (tmp_path_factory.mktemp("damage") / name for name in ("half", "whole"))
    train(*recipe, half, overrides=["training.duration=6 steps"], options=CPU)
    train(*recipe, whole, overrides=["training.duration=8 steps"], options=CPU)
    return half, whole


SHORT = (("flipped", NETWORKS_FILE), ("missing", STATE_FILE))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=[] if (kind, name) in SHORT else pytest.mark.long)
        for kind in DAMAGES
        for name in FILES
    ],
)
def test_damage_to_the_newest_checkpoint(
    halves: tuple[Path, Path], recipe: tuple[str, Path], kind: str, name: str
) -> None:
    """It is named, the one before is used, nothing is deleted, and the end is the same."""
    _check_damage(*halves, recipe, kind, name)


@pytest.mark.long
def test_a_manifest_that_agrees_with_the_damage(tmp_path: Path, recipe: tuple[str, Path], said: list[str]) -> None:
    """Then it is no accident; the files are still only read as what they are."""
    run = tmp_path / "run"
    train(*recipe, run, overrides=["training.duration=4 steps"], options=CPU)
    newest = list_checkpoints(run / "checkpoints")[-1].path
    (newest / MANIFEST_FILE).write_text(json.dumps({}), "utf-8")
    train(*recipe, run, overrides=["training.duration=5 steps"], options=CPU, say=said.append)
    assert any("lists no networks.safetensors" in line for line in said)
