"""Requests to a running training (save, preview, stop), by key, by signal or by file.

They are read between steps only, so that nothing interrupts a step.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Literal


@dataclass
class StopRequest:
    """A request to stop training, if there was one."""

    signal_name: str | None = None  # name of the signal, or of what else asked to stop; None: no request
    doing: str = "what was begun"  # work that will be finished first

    @property
    def asked(self) -> bool:
        """Return whether to stop after this step."""
        return self.signal_name is not None


@contextmanager
def handled(
    names: Collection[str], handler: Callable[[int, FrameType | None], object] | signal.Handlers
) -> Iterator[None]:
    """Have signals handled so inside: those of these names that the system knows, and in the main thread alone."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]  # Windows has no SIGHUP
        before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def stop_on_signals(say: Callable[[str], None]) -> Iterator[StopRequest]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a request; the second acts as it would have without us.

    What the caller ignores stays ignored: `nohup` means to go on without the terminal. Outside the main thread nothing
    is heard: a caller there stops training its own way.

    Args:
        say: is told at once that the request was heard, and what is finished first.
    """
    request = StopRequest()
    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in known}
    before = {
        number: handler for number, handler in handlers.items() if number == signal.SIGINT or handler != signal.SIG_IGN
    }

    def handle(number: int, _: FrameType | None) -> None:
        request.signal_name = signal.Signals(number).name
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
        again = "Ctrl-C again" if number == signal.SIGINT else "another signal"
        line = f"finishing {request.doing}; {again} stops now"
        # By a thread: the one that was interrupted may be in the midst of printing, and would wait for itself.
        threading.Thread(target=say, args=(line,), daemon=True).start()

    with handled([number.name for number in before], handle):
        yield request


Wish = Literal["save", "preview", "stop"]

KEYS: Mapping[str, Wish] = MappingProxyType({"s": "save", "p": "preview", "q": "stop"})
KEYS_HINT = "keys: s save, p preview, q save and quit"
SIGNALS: Mapping[str, Wish] = MappingProxyType({"SIGUSR1": "save", "SIGUSR2": "preview"})


@dataclass
class Requests:
    """Collects wishes until the loop takes them."""

    # give the wishes that came since they were last asked
    readers: list[Callable[[], set[Wish]]] = field(default_factory=list)

    def take(self) -> set[Wish]:
        """Every wish since the last call."""
        return {wish for reader in self.readers for wish in reader()}


@contextmanager
def listening(folder: Path, stops: Collection[str] = ()) -> Iterator[tuple[Requests, bool]]:
    """Listen to keys, signals and files while the block runs.

    Args:
        folder: where files named save, preview or stop may be put; they are deleted when they are seen.
        stops: signals that ask for a stop, whatever they ask for else.

    Yields:
        The requests, and whether keys are read (the console is a terminal).
    """
    with suppress(OSError):  # something else is there: no reason not to train
        folder.mkdir(exist_ok=True)  # for whoever wants to put a file there
    requests = Requests([_Files(folder).take])
    with ExitStack() as undo:
        requests.readers.append(undo.enter_context(_signals(stops)))
        keys = undo.enter_context(_keys())
        if keys is not None:
            requests.readers.append(keys)
        yield requests, keys is not None


@dataclass
class _Files:
    """Reads requests from files named save, preview or stop."""

    folder: Path  # where they may lie
    stuck: set[Wish] = field(default_factory=set)  # those that cannot be deleted: asked for once, not at every step

    def take(self) -> set[Wish]:
        wishes: set[Wish] = set()
        for wish in KEYS.values():
            path = self.folder / wish
            if wish in self.stuck or not path.exists():
                continue
            wishes.add(wish)
            try:
                path.unlink(missing_ok=True)
            except OSError:  # a folder, or another user's
                self.stuck.add(wish)
        return wishes


@contextmanager
def _signals(stops: Collection[str]) -> Iterator[Callable[[], set[Wish]]]:
    """SIGUSR1 saves, SIGUSR2 shows a preview (not on Windows, and in the main thread only)."""
    came: set[Wish] = set()

    def handle(number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        came.add("stop" if name in stops else SIGNALS[name])

    def take() -> set[Wish]:
        taken = set(came)
        came.difference_update(taken)
        return taken

    with handled(SIGNALS, handle):
        yield take


@contextmanager
def _keys() -> Iterator[Callable[[], set[Wish]] | None]:
    """Single keys of the console, without Enter; None where the input is no terminal or is not ours to read."""
    if not sys.stdin or not sys.stdin.isatty() or threading.current_thread() is not threading.main_thread():
        yield None
        return
    with _windows_keys() if os.name == "nt" else _terminal_keys() as pressed:
        yield lambda: {KEYS[key] for key in pressed() if key in KEYS}


@contextmanager
def _windows_keys() -> Iterator[Callable[[], list[str]]]:
    import msvcrt  # noqa: PLC0415  (Windows only)

    def pressed() -> list[str]:
        keys = []
        while msvcrt.kbhit():  # type: ignore[attr-defined]
            keys.append(msvcrt.getwch().lower())  # type: ignore[attr-defined]
        return keys

    yield pressed


@contextmanager
def _terminal_keys() -> Iterator[Callable[[], list[str]]]:
    import select  # noqa: PLC0415
    import termios  # noqa: PLC0415  (not on Windows)
    import tty  # noqa: PLC0415

    descriptor = sys.stdin.fileno()
    gone = (OSError, termios.error)  # the window was closed, or the terminal is not the one that we belong to
    keys: list[str] = []

    def pressed() -> list[str]:
        keys.clear()
        with suppress(*gone):
            # A job in the background must not touch the terminal: it would be stopped.
            while os.tcgetpgrp(descriptor) == os.getpgrp() and select.select([descriptor], [], [], 0)[0]:
                came = os.read(descriptor, 64)
                if not came:
                    break
                keys.extend(came.decode(errors="ignore").lower())
        return keys

    before = None
    with suppress(*gone):
        if os.tcgetpgrp(descriptor) == os.getpgrp():
            before = termios.tcgetattr(descriptor)
            tty.setcbreak(descriptor)  # single keys; Ctrl-C goes on being Ctrl-C
    try:
        yield pressed
    finally:
        if before is not None:
            with suppress(*gone):
                termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
