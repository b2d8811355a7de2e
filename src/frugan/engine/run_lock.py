"""One writer in a run folder at a time, also where several machines see the folder.

On one machine the system's file lock decides: it goes with the process, however that ends. Network file systems may
not pass it on to other machines, so the owner also writes who it is, and touches that file again and again: a file that
is touched has a living owner. No clock is compared with another machine's.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from frugan.errors import BadInput
from frugan.regular_files import read_regular

LOCK = "run.lock"
OWNER = "owner.json"
BEAT_SECONDS = 5.0
"""How often an owner touches its file."""
WATCH_SECONDS = 20.0
"""For so long another machine's file is watched: four beats, as network file systems show changes late."""


@contextmanager
def owned(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Own a folder for the length of the block.

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
        _outlive(folder, owner, say)
        token = _Token(owner)
        try:
            yield
        finally:
            token.end()
    finally:
        lock.release()


def _outlive(folder: Path, owner: Path, say: Callable[[str], None]) -> None:
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


class _Token:
    """The file that says who owns a folder, touched by a thread as long as that goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = threading.Event()
        about = {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with suppress(OSError):  # a full disk: the lock holds all the same
            path.write_text(json.dumps(about) + "\n", "utf-8")
        self._thread = threading.Thread(target=self._beat, name="frugan-owner", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Leave the folder as one that nobody owns."""
        self._over.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            with suppress(OSError):  # taken away, or a disk that is gone for a while
                os.utime(self._path)


def _read(path: Path) -> dict[str, Any] | None:
    """None: nobody is written down."""
    try:
        found = json.loads(read_regular(path).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


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
