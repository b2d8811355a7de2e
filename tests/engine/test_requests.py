"""Save, preview and stop, asked for by file, signal or key while training goes on."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frugan.engine.requests import Requests, listening


def test_files_are_seen_once(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    with listening(folder) as (requests, keys):
        assert not keys
        assert requests.take() == set()
        folder.mkdir()
        (folder / "save").touch()
        (folder / "stop").touch()
        (folder / "other").touch()
        assert requests.take() == {"save", "stop"}
        assert requests.take() == set()
        assert (folder / "other").exists()


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signals here")
def test_signals_are_wishes_and_are_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with listening(tmp_path) as (requests, _):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert requests.take() == {"save", "preview"}
        assert requests.take() == set()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_no_readers_no_wishes() -> None:
    assert Requests().take() == set()


OWN_TERMINAL = "import os, fcntl, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)"

KEYS = """
import time
from pathlib import Path
from frugan.engine.requests import listening
with listening(Path("none")) as (requests, keys):
    print("ready", keys, flush=True)
    found = set()
    end = time.monotonic() + 20
    while "stop" not in found and time.monotonic() < end:
        found |= requests.take()
        time.sleep(0.01)
print(sorted(found), flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="a pseudo-terminal is needed")
def test_keys_of_a_terminal_need_no_enter(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os; os.setsid(); import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{KEYS}",
        ],
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready True"
        for key in "spxq":
            os.write(ours, key.encode())
            time.sleep(0.02)
        assert process.stdout.readline().strip() == "['preview', 'save', 'stop']"
        assert process.wait(10) == 0
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)
