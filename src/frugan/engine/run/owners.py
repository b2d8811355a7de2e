"""Whether somebody trains in a run now: its owner touches a file again and again."""

import ctypes
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frugan.engine.run.run_folder import OWNER
from frugan.files import read_json

QUIET_SECONDS = 20.0
"""A file that is not touched for so long, while we look, has no living owner: four times its owner's pace."""


@dataclass
class Owners:
    """Remembers when the owners of runs last showed signs of life.

    By what is seen here, not by the files' clock: after a night with the lid closed all times are hours old, and the
    trainings go on all the same.
    """

    # owner's file -> its time, and when it was first seen to have that
    _seen: dict[Path, tuple[int, float]] = field(default_factory=dict)

    def process(self, run: Path) -> int | None:
        """Number of the process that trains in a folder, on whatever machine; None: nobody does."""
        path = run / OWNER
        try:
            touched = path.stat().st_mtime_ns
        except OSError:
            self._seen.pop(path, None)
            return None
        owner, now = read_json(path), time.monotonic()
        number = owner.get("process")
        if not isinstance(number, int) or (owner.get("host") == socket.gethostname() and not exists(number)):
            return None
        if path not in self._seen:
            age = abs(time.time() - touched / 1e9)
            self._seen[path] = touched, now if age < QUIET_SECONDS else now - QUIET_SECONDS
        elif self._seen[path][0] != touched:
            self._seen[path] = touched, now
        return number if now - self._seen[path][1] < QUIET_SECONDS else None


def exists(process: int) -> bool:
    """Return whether a process of this number runs on this machine."""
    if os.name == "nt":
        return _exists_on_windows(process)
    try:
        os.kill(process, 0)
    except PermissionError:  # another user's
        return True
    except (OSError, OverflowError):
        return False
    return True


def _exists_on_windows(process: int) -> bool:
    """There signal 0 is Ctrl-C."""
    system: Any = ctypes
    kernel, code = system.windll.kernel32, ctypes.c_ulong()
    handle = kernel.OpenProcess(0x1000, False, process)  # to be asked a little
    if not handle:
        return False
    kernel.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel.CloseHandle(handle)
    return code.value == 259  # still active
