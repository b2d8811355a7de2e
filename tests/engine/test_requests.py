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
        (folder / "save").touch()
        (folder / "stop").touch()
        (folder / "other").touch()
        assert requests.take() == {"save", "stop"}
        assert requests.take() == set()
        assert (folder / "other").exists()


def test_a_file_that_cannot_be_deleted_asks_once(tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    with listening(tmp_path) as (requests, _):
        assert requests.take() == {"save"}
        assert requests.take() == set()
    with listening(tmp_path / "not" / "there") as (requests, _):
        assert requests.take() == set()


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
NOT_OURS = "import os; os.setsid()"

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
            f"{OWN_TERMINAL}\n{KEYS}",
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


@pytest.mark.skipif(os.name == "nt", reason="a pseudo-terminal is needed")
@pytest.mark.parametrize("terminal", [OWN_TERMINAL, NOT_OURS])
def test_a_terminal_that_is_gone_or_not_ours_stops_nothing(tmp_path: Path, terminal: str) -> None:
    """A window that closes over a training that ignores it; a terminal that belongs to another session."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{terminal}\n{KEYS}"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    os.close(theirs)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready True"
        os.close(ours)
        time.sleep(0.1)
        (tmp_path / "none" / "stop").touch()
        assert process.stdout.readline().strip() == "['stop']"
        assert process.wait(10) == 0
    finally:
        process.kill()
