"""Runs readers on hostile files in a process of its own, and says what they did that they may not.

A reader may return a value or raise an error of ours. It may not end the process, take more than two seconds of CPU
time, take more memory than its format's bound, write outside of its folder, start a program, or call what a file names.
"""

import ctypes
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from frugan.data.formats.source import Unreadable
from frugan.engine.run.checkpoint import DamagedCheckpoint
from frugan.errors import BadInput

OURS = (BadInput, Unreadable, DamagedCheckpoint)
"""Errors that a reader may raise."""
CPU_SECONDS = 2.0
"""For one case."""
WALL_SECONDS = 60.0
"""Without any case ending: something waits, for a pipe for example. Far above CPU_SECONDS, as machines are shared."""
UNREAD = (1 << 64) - 1
"""In place of a case's number while the whole file is read."""
MARGIN_BYTES = 24 << 20
"""Of resident memory that a case may seem to take because libraries are loaded and freed memory is kept."""
CALLS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "pty.spawn")
"""Audit events of what no reader does."""
NAMED_BY_FILES = ("pickle.find_class",)
"""Audit events of a name out of a file that Python's own unpickler looks up."""


@dataclass(frozen=True)
class Target:
    """A reader, and files to damage for it."""

    name: str  # of the format
    make: Callable[[int, Path], Path]  # case number and an empty folder -> what to read, written there
    read: Callable[[Path], object]  # reads it
    bound_bytes: int  # of memory that a case may take
    cases: int  # the first ones; `test_damaged.py` says how many of them, and how many more, run in which mode
    # names that the reader's own unpickler (torch's, of weights only) may look up by their first part
    named: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """What a reader did that it may not."""

    case: int  # its number
    what: str  # in words, with the traceback if there is one


@dataclass
class Outcome:
    """What became of the cases of a target.

    Attributes:
        faults: what may not be.
    """

    cases: int = 0  # run
    refused: int = 0  # of them, those that ended in an error of ours
    most_bytes: int = 0  # that a case took
    slowest_seconds: float = 0.0  # of CPU time that a case took

    def __post_init__(self) -> None:
        self.faults: list[Fault] = []


def run_cases(find: Callable[[str], Target], name: str, cases: Sequence[int]) -> Outcome:
    """Run cases of a target; a process that dies is named with its case, and the next goes on behind it.

    Args:
        find: gives the target by its name, in another process too.
    """
    outcome, left = Outcome(), list(cases)
    with tempfile.TemporaryDirectory() as folder:
        find(name).make(-1, Path(folder))  # what is the same for all cases is made once, before the forks
    context = get_context("fork")
    while left:
        with mmap.mmap(-1, 8) as at:
            at[:8] = UNREAD.to_bytes(8, "little")
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_serve, args=(find, name, left, at, theirs))
            process.start()
            theirs.close()
            ended = _collect(ours, at, outcome)
            if not ended and process.is_alive():
                process.kill()
            process.join()
            done = int.from_bytes(at[:8], "little")
            if ended:
                return outcome
            if done == UNREAD:
                raise AssertionError(f"{name}: the whole file could not be read (code {process.exitcode})")
            outcome.cases += 1
            outcome.faults.append(Fault(left[done], _death(process.exitcode)))
            left = left[done + 1 :]
    return outcome


def _collect(pipe: Connection, at: mmap.mmap, outcome: Outcome) -> bool:
    """Take in what a process reports; False: it died or hangs."""
    moved, last = time.monotonic(), -1
    while True:
        try:
            if pipe.poll(1.0):
                kind, value = pipe.recv()
            else:
                kind, value = "", None
        except EOFError:
            return False
        now = int.from_bytes(at[:8], "little")
        if now != last:
            moved, last = time.monotonic(), now
        if kind == "end":
            return True
        if kind == "fault":
            outcome.faults.append(value)
        elif kind == "case":
            refused, took_bytes, seconds = value
            outcome.cases += 1
            outcome.refused += refused
            outcome.most_bytes = max(outcome.most_bytes, took_bytes)
            outcome.slowest_seconds = max(outcome.slowest_seconds, seconds)
        elif time.monotonic() - moved > WALL_SECONDS:
            return False


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        if name == "SIGPROF":
            return f"took more than {CPU_SECONDS:g} s of CPU time"
        return "waited without end" if name == "SIGKILL" else f"ended the process with {name}"
    return f"ended the process with code {code}"


def _serve(find: Callable[[str], Target], name: str, cases: Sequence[int], at: mmap.mmap, pipe: Connection) -> None:
    target = find(name)
    audit = _Audit(target)
    with tempfile.TemporaryDirectory(prefix="frugan-fuzz-") as base:
        os.chdir(base)
        audit.folder = base
        _allocate_evenly()
        target.read(target.make(-1, _fresh(Path(base))))  # the whole file is read, and with it every library is loaded
        _silence()  # decoders in C write to the console
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        sys.addaudithook(audit)
        for place, case in enumerate(cases):
            at[:8] = place.to_bytes(8, "little")
            path = target.make(case, _fresh(Path(base)))
            pipe.send(("case", _run(target, path, case, audit, pipe)))
    pipe.send(("end", None))


def _run(
    target: Target, path: Path, case: int, audit: "_Audit", pipe: Connection, *, again: bool = False
) -> tuple[bool, int, float]:
    fault, refused = None, False
    before_bytes, mapped_bytes, before = _reset_peak(), _status("RssFile"), time.process_time()
    audit.begin()
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    _limit_memory(target.bound_bytes)
    try:
        target.read(path)
    except OURS:
        refused = True
    except BaseException:  # noqa: BLE001  (whatever it is)
        fault = traceback.format_exc(limit=-6)
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, 0)
    seen = audit.end()
    seconds = time.process_time() - before
    # a fork maps its libraries' pages again as it comes to them: hundreds of MiB of a process that has loaded torch
    libraries_bytes = max(0, _status("RssFile") - mapped_bytes)
    took_bytes = max(0, _peak_bytes() - before_bytes - libraries_bytes)
    if seen is not None:
        fault = seen
    elif took_bytes > target.bound_bytes + MARGIN_BYTES:
        if not again:  # what a system pages in meanwhile it does not the second time, and a file takes the same
            return _run(target, path, case, audit, pipe, again=True)
        fault = f"took {took_bytes >> 20} MiB of memory; the bound is {target.bound_bytes >> 20}"
    if fault is not None:
        pipe.send(("fault", Fault(case, fault)))
    return refused, took_bytes, seconds


class _Audit:
    """Looks at what Python does while a case is read."""

    def __init__(self, target: Target) -> None:
        self.named = target.named
        self.folder = ""
        self.on = False
        self.seen: str | None = None

    def begin(self) -> None:
        """A case is read now."""
        self.seen, self.on = None, True

    def end(self) -> str | None:
        """It has been read: what it did that it may not."""
        self.on = False
        return self.seen

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event.startswith(CALLS):
            self.seen = f"{event} {arguments!r:.200}"
        elif event in NAMED_BY_FILES and not str(arguments[0]).startswith(self.named or ("\0",)):
            self.seen = f"looked up {arguments!r:.200}, which a file names"
        elif event == "open" and arguments[0] is not None and _writes(arguments[1], arguments[2]):
            where = os.path.realpath(os.fsdecode(arguments[0])) if not isinstance(arguments[0], int) else self.folder
            if not where.startswith(self.folder) and not where.startswith(("/dev/", "/proc/")):
                self.seen = f"wrote {where}, outside of its folder"


def _writes(mode: Any, flags: Any) -> bool:
    by_flags = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return by_flags or (isinstance(mode, str) and any(letter in mode for letter in "wax+"))


def _silence() -> None:
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)


def _fresh(base: Path) -> Path:
    """An empty folder, the same each time."""
    folder = base / "case"
    if folder.is_dir():
        for root, folders, files in os.walk(folder, topdown=False):
            for name in files:
                os.unlink(os.path.join(root, name))
            for name in folders:
                inner = os.path.join(root, name)
                os.unlink(inner) if os.path.islink(inner) else os.rmdir(inner)
    else:
        folder.mkdir()
    return folder


def _allocate_evenly() -> None:
    """Large blocks grow in place, whatever was allocated before the fork; else a growing one may be held five times."""
    mmap_threshold, usual_bytes = -3, 128 << 10  # M_MMAP_THRESHOLD of glibc's mallopt(3), and where it starts
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other libraries of C have none
    if mallopt is not None:
        mallopt(mmap_threshold, usual_bytes)


def _limit_memory(bound_bytes: int) -> None:
    """Also what is asked for and never touched counts: an absurd size ends in a MemoryError, which is none of ours."""
    status = _status("VmData")
    if status:
        resource.setrlimit(resource.RLIMIT_DATA, (status + bound_bytes + MARGIN_BYTES, resource.RLIM_INFINITY))


def _reset_peak() -> int:
    """Let the peak begin anew at what is held now, and return that; 0 where the system has no such thing."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return 0
    return _status("VmRSS")


def _peak_bytes() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith(f"{name}:")), 0)
    except OSError:
        return 0
