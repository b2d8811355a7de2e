"""The page's server: Ctrl-C at any moment ends it without a word."""

import os
import signal
import socket
import threading
import time
import urllib.request
from contextlib import suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from frugan.page.server import serving
from frugan.reporting.ports import LOOPBACK


def _app(_: str) -> ASGIApp:
    def slow(_: Request) -> Response:
        time.sleep(3)
        return Response("late")

    return Starlette(routes=[Route("/", lambda _: Response("here")), Route("/slow", slow)])


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as taken:
        return int(taken.getsockname()[1])


def _is_free(port: int) -> bool:
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """Takes exceptions that end threads."""
    taken: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda fault: taken.append(fault.exc_value))
    return taken


def _interrupt(port: int, path: str, after: float) -> None:
    """Serve, ask for a path, and press Ctrl-C while the server is waited for."""

    def ask(address: str) -> None:
        with suppress(OSError):
            urllib.request.urlopen(address).read()

    with serving(_app, port) as (address, thread):
        threading.Thread(target=ask, args=(address.replace("/?", f"{path}?"),)).start()
        threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        thread.join()


@pytest.mark.parametrize("begun", [False, True])
def test_ctrl_c_while_its_thread_starts(
    begun: bool, monkeypatch: pytest.MonkeyPatch, faults: list[BaseException | None]
) -> None:
    start, port, threads = threading.Thread.start, _free_port(), list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != "frugan-page":
            return start(thread)
        if begun:
            start(thread)
            threads.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), serving(_app, port):
        raise AssertionError("it was not interrupted")
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert _is_free(port)
    assert faults == []


@pytest.mark.skipif(os.name == "nt", reason="sends a signal to itself")
@pytest.mark.parametrize("path", ["/", "/slow"])
def test_ctrl_c_while_it_is_waited_for(
    path: str, faults: list[BaseException | None], capfd: pytest.CaptureFixture[str]
) -> None:
    """In Python 3.11 a join that is interrupted takes the thread for ended; a request that takes long is cut off."""
    port = _free_port()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            _interrupt(port, path, after=1.0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert _is_free(port)
    assert capfd.readouterr().err == ""
    assert faults == []
