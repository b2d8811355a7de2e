"""A run: a directory with recipe, events, checkpoints and samples, written by one process at a time."""

import errno
import json
import os
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout
from torch import Tensor

from frugan.contract.formats import RECIPE_FILE
from frugan.engine.run.checkpoint import checkpoint_name, checkpoint_tensors, list_checkpoints
from frugan.engine.run.tensor_files import write_json
from frugan.engine.state.state import TrainingState
from frugan.errors import BadInput
from frugan.files import RUN_RECIPE, Folders, atomic_file, read_untrusted

LOCK = "run.lock"
OWNER = "owner.json"
BEAT_SECONDS = 5.0
"""Time between two touches of its file by an owner."""
WATCH_SECONDS = 20.0
"""Time to watch a file of another machine: four beats, as network file systems show changes late."""


@contextmanager
def run_lock(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Own a folder for the length of the block: one writer at a time, also where several machines see the folder.

    On one machine the system's file lock decides: it goes with the process, however that ends. Network file systems may
    not pass it on to other machines, so the owner also writes who it is, and touches that file again and again: a file
    that is touched has a living owner. No clock is compared with another machine's.

    Args:
        folder: of the run; it is there.
        say: is told of an owner that is gone.

    Raises:
        BadInput: it has a living owner, who is named.
    """
    lock, owner = FileLock(folder / LOCK), folder / OWNER
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise _refusal(folder, _read(owner)) from error
    try:
        _refuse_living_owner(folder, owner, say)
        with _written_down(owner):
            yield
    finally:
        lock.release()


def _refuse_living_owner(folder: Path, owner: Path, say: Callable[[str], None]) -> None:
    """Make sure that an owner who is written down is no more.

    Raises:
        BadInput: it is alive, on another machine.
    """
    before = _read(owner)
    if before is None:
        return
    if before.get("host") != socket.gethostname():  # else the lock itself would have been taken
        say(f"{folder} was left by {_words(before)}; watching for {WATCH_SECONDS:g} s whether that still writes")
        last, end = _touched(owner), time.monotonic() + WATCH_SECONDS
        while time.monotonic() < end:
            time.sleep(min(1.0, WATCH_SECONDS / 4))
            if _touched(owner) not in (last, None):
                raise _refusal(folder, before)
    say(f"{folder} was left by {_words(before)}, which did not end by itself; its lock is taken over")


@contextmanager
def _written_down(owner: Path) -> Iterator[None]:
    """Inside, a file says who owns the folder; a thread touches it as long as that goes on."""
    about = {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with suppress(OSError):  # a full disk: the lock holds all the same
        write_json(owner, about)  # whole or not at all: others look at it at any time
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            with suppress(OSError):  # taken away, or a disk that is gone for a while
                os.utime(owner)

    thread = threading.Thread(target=beat, name="frugan-owner", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with suppress(OSError):
            owner.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    """None: nobody is written down."""
    try:
        values = json.loads(read_untrusted(path).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _touched(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _words(owner: dict[str, Any] | None) -> str:
    if not owner:
        return "another process"
    return f"process {owner.get('process')} on {owner.get('host')}, begun {owner.get('since')}"


def _refusal(folder: Path, owner: dict[str, Any] | None) -> BadInput:
    return BadInput(
        f"run {folder}: another process is training there ({_words(owner)}); wait for it, stop it, or choose another "
        "--out"
    )


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk is full, the user's share of it is, or files may not be as large."""
MARGIN = 1.01
"""Factor on the size of the numbers, for names, shapes and JSON beside them."""


def no_room(error: OSError) -> bool:
    """Return whether a write failed for lack of disk space, quota or allowed file size."""
    return error.errno in NO_ROOM


def checkpoint_bytes(state: TrainingState) -> int:
    """Return the disk space of a checkpoint of a state, in bytes."""
    return int(MARGIN * sum(map(_bytes, checkpoint_tensors(state))))


@contextmanager
def explain_full_disk(folder: Path, state: TrainingState) -> Iterator[None]:
    """Say how much room a checkpoint needs where there is not enough for it.

    Raises:
        OSError: in place of the system's own, of the same number.
    """
    try:
        yield
    except OSError as error:
        if not no_room(error):
            raise
        free = "an unknown number of"
        with suppress(OSError):
            free = f"{shutil.disk_usage(folder).free:,}"
        raise OSError(
            error.errno,
            f"{error.strerror}: the checkpoint takes {checkpoint_bytes(state):,} bytes, the disk has {free} free",
            str(folder / checkpoint_name(state.step)),
        ) from error


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


GRID_NAME = re.compile(r"step-([0-9]{1,15})-(.+)\.png")
"""Name of a file in `RunFolder.samples`, with step and kind."""


@dataclass(frozen=True)
class RunFolder:
    """The files and folders of one run."""

    path: Path  # the directory; made on first use

    @property
    def recipe(self) -> Path:
        """The resolved recipe, JSON."""
        return self.path / RUN_RECIPE

    @property
    def plan(self) -> Path:
        """The plan that it was begun or resumed with, and what was predicted of it, JSON."""
        return self.path / "plan.json"

    @property
    def events(self) -> Path:
        """The event file, one JSON object a line: the truth about the run."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the newest checkpoints."""
        return self.path / "checkpoints"

    @property
    def backups(self) -> Path:
        """Checkpoints of `saving.backup_every`."""
        return self.path / "backups"

    @property
    def best(self) -> Path:
        """Checkpoints that are kept for their score."""
        return self.path / "best"

    def leave_behind(self, preliminary: str) -> Path:
        """Move checkpoints, backups and grids of a preliminary training into a folder of that name, and return it.

        The checkpoint of step 0 stays: with it the usual training begins. The newest one goes last, so that a process
        that is killed meanwhile begins with it again.
        """
        out = next(
            path
            for n in count(1)
            if not (path := self.path / (preliminary if n == 1 else f"{preliminary}-{n}")).exists()
        )
        for folder in (self.samples, self.backups):
            if folder.is_dir():
                out.mkdir(exist_ok=True)
                folder.replace(out / folder.name)
        for checkpoint in list_checkpoints(self.checkpoints):
            if checkpoint.step > 0:
                (out / self.checkpoints.name).mkdir(parents=True, exist_ok=True)
                checkpoint.path.replace(out / self.checkpoints.name / checkpoint.path.name)
        return out

    @property
    def samples(self) -> Path:
        """Grids of every snapshot."""
        return self.path / "samples"

    def grids(self) -> list[tuple[int, str, Path]]:
        """Step, kind and file of every grid, oldest first."""
        named = [(GRID_NAME.fullmatch(path.name), path) for path in self.samples.glob("step-*.png")]
        grids = [(int(match[1]), match[2], path) for match, path in named if match is not None]
        return sorted(grids, key=lambda grid: (grid[0], grid[2].name))

    def newest_grid(self, kind: str) -> Path:
        """The last grid of a kind; a training that was stopped may not have drawn its end."""
        return [path for _, name, path in self.grids() if name == kind][-1]

    @property
    def scores(self) -> Path:
        """Scores by `frugan evaluate`, one JSON object a line."""
        return self.path / "scores.jsonl"

    @property
    def requests(self) -> Path:
        """Empty files named save, preview or stop ask a running training for that."""
        return self.path / "requests"

    @property
    def wandb_id(self) -> Path:
        """File that holds the run's id at Weights & Biases."""
        return self.path / "wandb-id"

    @property
    def first_files(self) -> frozenset[str]:
        """Names that a run may have left before it had its recipe (it was refused, or killed at once)."""
        followed = {"tensorboard", "wandb", self.wandb_id.name}
        return frozenset({LOCK, OWNER, self.plan.name, self.events.name, self.requests.name}) | followed

    @property
    def exists(self) -> bool:
        """Return whether a run was begun in this folder."""
        return self.recipe.is_file()

    @classmethod
    def holding(cls, path: Path) -> Self | None:
        """The run that a file of one of its checkpoints belongs to; None: it is no run's."""
        return next((run for run in map(cls, path.resolve().parents[:3]) if run.exists), None)

    @classmethod
    def to_train(
        cls, recipe: str | None, family: str, out: str | Path | None, *, shipped: Collection[str] = ()
    ) -> Self:
        """Where to train: `out`, the run that is its own recipe, or a new one in the folder for runs.

        Args:
            recipe: as it was asked for; None: it was not by a name or a path.
            family: of the recipe.
            shipped: names that stand for a recipe that ships, whatever folder has that name.
        """
        if out is not None:
            return cls(Path(out))
        if recipe is not None and recipe not in shipped and cls(Path(recipe)).exists:
            return cls(Path(recipe))
        path = Path(recipe or family)
        # as `frugan convert` leaves one in a folder
        folder_name = path.resolve().parent.name if path.name == RECIPE_FILE else ""
        return cls(Folders.from_environment().runs / (folder_name or path.stem))

    def as_recipe(self, shipped: Collection[str]) -> str:
        """Its path where a recipe is asked for, such that a name that ships is not taken for that."""
        return f".{os.sep}{self.path}" if str(self.path) in shipped else str(self.path)

    def unused(self) -> Self:
        """This folder, or the first of NAME-2, NAME-3 ... in which no run was begun."""
        others = (type(self)(self.path.with_name(f"{self.path.name}-{number}")) for number in count(2))
        return next(folder for folder in chain([self], others) if not folder.exists)

    def refuse_other_files(self) -> None:
        """Refuse a folder that holds something else than a run, or in which nothing can be written.

        Raises:
            BadInput: it is one.
        """
        there = next((path for path in (self.path, *self.path.absolute().parents) if path.exists()), None)
        if there is None:
            raise BadInput(f"{self.path}: there is no such drive; choose another --out")
        if not there.is_dir():
            raise BadInput(f"{there}: a file, and no folder; choose another --out")
        if not os.access(there, os.W_OK):
            raise BadInput(f"{self.path}: {there} cannot be written to; choose another --out, or get the right to")
        if self.path.is_dir() and not self.exists and {p.name for p in self.path.iterdir()} - self.first_files:
            raise BadInput(f"{self.path}: holds something else than a run; choose an empty or new folder for --out")

    def write_recipe(self, values: Mapping[str, Any]) -> None:
        """Write the recipe that counts from here on."""
        write_json(self.recipe, values)

    def write_plan(self, values: Mapping[str, Any]) -> None:
        """Write the plan that training begins with."""
        write_json(self.plan, values)

    def called_at_wandb(self) -> str:
        """Return the run's id at Weights & Biases, created once: folder names are not unique."""
        try:
            return self.wandb_id.read_text("utf-8").strip()
        except FileNotFoundError:
            run_id = secrets.token_hex(8)
            with atomic_file(self.wandb_id) as beside:
                beside.write_text(run_id + "\n", "utf-8")
            return run_id

    @contextmanager
    def locked(self, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """Be the only writer; the lock goes with the process, however it ends.

        Args:
            say: is told of a lock that somebody left behind.

        Raises:
            BadInput: another process trains in this folder, here or on another machine.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with run_lock(self.path, say):
            yield
