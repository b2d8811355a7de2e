"""A queue of trainings: a file, worked off one after the other by a process of its own, whether anybody looks or not.

The file is `queue.json` in the folder of the runs: what waits, what runs, and how the last training of each run ended.
What trainings print is kept beside it, in `.queue`.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from filelock import FileLock, Timeout

from frugan.errors import BadInput
from frugan.files import atomic_file, read_json
from frugan.page.owners import Owners, exists, place, places

QUEUE = "queue.json"
MOST_ENTRIES = 200
LOOK_SECONDS = 1.0
"""Between two looks at what has to end before the next training begins."""
START_SECONDS = 30.0
"""A process that works the queue off has its lock after so long, or will never have it."""
LAST_LINES, LAST_BYTES = 16, 1 << 14
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Entry:
    """A training that waits, runs, or has ended."""

    run: str  # name of its folder; see `frugan.page.owners.places`
    words: tuple[str, ...]  # words after `frugan train`
    state: Literal["waiting", "running", "ended"] = "waiting"
    process: str | None = None  # number and beginning of its process
    code: int | None = None  # exit code; None: it has not ended, or nobody saw it
    at_once: bool = False  # whether it was being trained when it was changed, and goes on beside what trains

    @classmethod
    def read(cls, values: Any) -> "Entry":
        """Read an entry from JSON values.

        Raises:
            ValueError: they are no entry.
        """
        try:
            entry = cls(**{**values, "words": tuple(values["words"])})
        except (TypeError, KeyError) as error:
            raise ValueError(str(error)) from error
        texts = (entry.run, *entry.words, entry.process or "")
        sound = all(isinstance(text, str) for text in texts) and isinstance(entry.at_once, bool)
        if not sound or entry.state not in ("waiting", "running", "ended") or place(Path(), entry.run) is None:
            raise ValueError("no entry")
        return entry


@dataclass
class Queue:
    """The queue of a folder of runs; any number of processes may have it open."""

    runs: Path  # the folder
    # command that trains, and that works off the queue
    program: tuple[str, ...] = (sys.executable, "-P", "-m", "frugan")
    _runner: subprocess.Popen[bytes] | None = None
    _started: float = 0.0
    _lock: Lock = field(default_factory=Lock)  # clicks come in threads of their own

    @property
    def path(self) -> Path:
        """Path of the queue's file."""
        return self.runs / QUEUE

    def log(self, run: str) -> Path:
        """Path of the file that a training prints to."""
        return self._inside / f"{run.replace('/', '~')}.log"

    @property
    def _inside(self) -> Path:
        return self.runs / ".queue"

    def entries(self) -> list[Entry]:
        """Entries in order: those that run, that wait, and that have ended."""
        found = []
        values = read_json(self.path).get("entries", ())
        for value in values if isinstance(values, list) else ():
            with suppress(ValueError):
                found.append(Entry.read(value))
        return found

    def _sound(self) -> list[Entry]:
        """Return the entries to be changed, without overwriting a file that was damaged by hand.

        Raises:
            BadInput: it is damaged.
        """

        def damaged(what: str) -> BadInput:
            return BadInput(f"{self.path}: {what}; mend it, or move it away")

        try:
            return [Entry.read(value) for value in read_json(self.path, damaged)["entries"]]
        except (ValueError, TypeError, LookupError) as error:
            raise error if isinstance(error, BadInput) else damaged("no queue") from error

    def entry(self, run: str) -> Entry | None:
        """Return a run's entry; None: it has none."""
        return next((entry for entry in self.entries() if entry.run == run), None)

    @contextmanager
    def _changed(self) -> Iterator[list[Entry]]:
        """Change the entries, alone."""
        self._inside.mkdir(exist_ok=True)
        with FileLock(self._inside / "lock"):
            entries = self._sound() if self.path.exists() else []
            yield entries
            with atomic_file(self.path) as beside:
                beside.write_text(_json(entries), "utf-8")

    def add(self, run: str, words: Sequence[str], *, first: bool = False, at_once: bool = False) -> None:
        """Let a run be trained, or go on; where it waits already, this takes its place.

        Args:
            words: behind `frugan train`.
            first: before what waits already, and also after a training of the same run.
            at_once: without waiting for other runs.

        Raises:
            BadInput: the queue is training it, too many wait, or the file is damaged.
        """
        with self._changed() as entries:
            if not first and any((entry.run, entry.state) == (run, "running") for entry in entries):
                raise BadInput(f"{run}: its training has begun already")
            if sum(entry.state == "waiting" for entry in entries) >= MOST_ENTRIES:
                raise BadInput(f"{MOST_ENTRIES} trainings wait already; take some out of {self.path}")
            kept = [entry for entry in entries if entry.run != run or entry.state == "running"]
            waiting = next((at for at, entry in enumerate(kept) if first and entry.state == "waiting"), None)
            at = next((at for at, entry in enumerate(kept) if entry.state == "ended"), len(kept))
            kept.insert(at if waiting is None else waiting, Entry(run, tuple(words), at_once=at_once))
            entries[:] = kept

    def remove(self, run: str) -> None:
        """Take out what waits of a run, or forget how it ended; what runs goes on."""
        with self._changed() as entries:
            entries[:] = [entry for entry in entries if entry.run != run or entry.state == "running"]

    def to_front(self, run: str) -> None:
        """Let what waits of a run come next."""
        with self._changed() as entries:
            order = {"running": 0, "waiting": 1, "ended": 3}
            entries.sort(key=lambda entry: order[entry.state] + (entry.state == "waiting" and entry.run != run))

    def last_lines(self, run: str) -> list[str]:
        """Return the last lines of output of the training that the queue last began for a run."""
        try:
            with self.log(run).open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - LAST_BYTES))
                text = file.read(LAST_BYTES).decode("utf-8", "replace")
        except OSError:
            return []
        lines = [_ESCAPES.sub("", line.rpartition("\r")[2]).rstrip() for line in text.replace("\r\n", "\n").split("\n")]
        return [line for line in lines if line][-LAST_LINES:]

    def ensure_runner(self) -> None:
        """Start what works the queue off, unless it is there or there is nothing to do."""
        with self._lock:
            if any(entry.state != "ended" for entry in self.entries()) and not self._worked_off():
                self._start_runner()

    def _start_runner(self) -> None:
        began = self._runner is not None and self._runner.poll() is None
        if began and time.monotonic() - self._started < START_SECONDS:
            return  # it is coming
        words = [*self.program, "page", str(self.runs.resolve()), "--work-off"]
        with (self._inside / "runner.log").open("wb") as log:
            self._runner, self._started = _detached(words, self.runs, log), time.monotonic()

    def _worked_off(self) -> bool:
        """Return whether a runner is working on the queue."""
        self._inside.mkdir(exist_ok=True)
        lock = FileLock(self._inside / "runner.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        lock.release()
        return False

    def work_off(self) -> None:
        """Train what waits, one after the other, until nothing does; what was changed while it trained, at once.

        Raises:
            BadInput: another process does.
        """
        self._inside.mkdir(exist_ok=True)
        owners, lock = Owners(), FileLock(self._inside / "runner.lock")
        try:
            lock.acquire(timeout=2 * LOOK_SECONDS)  # a page that looks whether it is taken, takes it for a moment
        except Timeout as error:
            raise BadInput(f"{self.path}: another process works this queue off; let it") from error
        begun: dict[str, tuple[Entry, subprocess.Popen[bytes]]] = {}  # by run
        with lock:
            while True:
                for run, (entry, process) in [*begun.items()]:
                    if process.poll() is not None:
                        self._put("running", replace(entry, state="ended", code=process.returncode))
                        del begun[run]
                due = self._next(owners, lock, begun)
                if due == "nothing":
                    return
                if isinstance(due, Entry):
                    begun[due.run] = due, self._begin(due)
                else:
                    time.sleep(LOOK_SECONDS)

    def _next(self, owners: Owners, lock: FileLock, begun: Collection[str]) -> "Entry | Literal['nothing', 'wait']":
        """Return the next entry to train, or whether to wait or to end.

        Args:
            begun: runs whose trainings this process has begun, and will see end.
        """
        with self._changed() as entries:
            # What was begun by a process that is no more: it goes on, or has ended.
            entries[:] = [
                replace(entry, state="ended", process=None)
                if entry.state == "running"
                and entry.run not in begun
                and entry.process != _named(_number(entry.process))
                else entry
                for entry in entries
            ]
            if all(entry.state == "ended" for entry in entries):
                lock.release()  # while nobody can add anything: who adds finds that nobody works it off any more
                return "nothing"
            waiting = (entry for entry in entries if entry.state == "waiting")
            return next((entry for entry in waiting if not self.ahead(entry, entries, owners)), "wait")

    def ahead(self, waiting: Entry, entries: Sequence[Entry], owners: Owners) -> list[str]:
        """Names of the runs whose trainings have to end before that of an entry begins."""
        queued = [entry.run for entry in entries[: entries.index(waiting)] if entry.state != "ended"]
        trained = [name for name, path in places(self.runs) if owners.process(path) is not None]
        names = dict.fromkeys((*queued, *trained))
        return [name for name in names if name == waiting.run or not waiting.at_once]

    def _begin(self, entry: Entry) -> "subprocess.Popen[bytes]":
        for wish in ("save", "preview", "stop"):  # asked of a training that is over
            with suppress(OSError):
                (self.runs / entry.run / "requests" / wish).unlink(missing_ok=True)
        with self.log(entry.run).open("wb") as log:
            words = [*self.program, "train", *entry.words]
            process = _detached(words, self.runs, log)
        self._put("waiting", replace(entry, state="running", process=_named(process.pid)))
        return process

    def _put(self, before: str, now: Entry) -> None:
        """Note what became of a run's entry that was in a state."""
        with self._changed() as entries:
            rest = [entry for entry in entries if (entry.run, entry.state) != (now.run, before)]
            if now.state == "running":
                entries[:] = [now, *rest]
            elif any(entry.run == now.run for entry in rest):  # it waits again: how it ended matters no more
                entries[:] = rest
            else:
                entries[:] = [*rest, now][-MOST_ENTRIES:]


def _detached(words: Sequence[str], folder: Path, log: Any) -> "subprocess.Popen[bytes]":
    """Start a process that goes on when this one ends, or its terminal does."""
    flags: dict[str, Any] = {"start_new_session": True}
    if os.name == "nt":
        flags = {"creationflags": 0x00000200 | 0x00000008}  # a group of its own, without a console
    return subprocess.Popen(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, close_fds=True, **flags
    )


def _number(name: str | None) -> int | None:
    number = (name or "").partition(" ")[0]
    return int(number) if number.isdigit() else None


def _named(process: int | None) -> str | None:
    """Number and beginning of a process: numbers come again. None: it is not there."""
    if process is None or not exists(process):
        return None
    try:
        state, *about = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:  # another system than Linux
        return str(process)
    return None if state == "Z" else f"{process} {about[18]}"


def _json(entries: Sequence[Entry]) -> str:
    return json.dumps({"entries": [asdict(entry) for entry in entries]}, ensure_ascii=False, indent=1) + "\n"
