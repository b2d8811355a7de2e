"""Ctrl-C, SIGTERM and a closed terminal: once means finish the step, save and exit; twice means now."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Whether, and by what signal, training was asked to stop.

    Attributes:
        signal_name: None: it was not.
        doing: what will be finished first.
    """

    signal_name: str | None = None
    doing: str = "what was begun"

    @property
    def asked(self) -> bool:
        """Whether to stop after this step."""
        return self.signal_name is not None


@contextmanager
def stop_on_signals(say: Callable[[str], None]) -> Iterator[StopRequest]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a request; the second acts as it would have without us.

    What the caller ignores stays ignored: `nohup` means to go on without the terminal.

    Args:
        say: is told at once that the request was heard, and what is finished first.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals; a caller elsewhere stops training its own way
        return
    named = (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP"))  # Windows has no SIGHUP
    signals = [n for n in named if n is not None and (n == signal.SIGINT or signal.getsignal(n) != signal.SIG_IGN)]
    before = {number: signal.getsignal(number) for number in signals}

    def handle(number: int, _: FrameType | None) -> None:
        request.signal_name = signal.Signals(number).name
        for each in signals:
            signal.signal(each, before[each])
        again = "Ctrl-C again" if number == signal.SIGINT else "another signal"
        line = f"finishing {request.doing}; {again} stops now"
        # By a thread: the one that was interrupted may be in the midst of printing, and would wait for itself.
        threading.Thread(target=say, args=(line,), daemon=True).start()

    for number in signals:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        for number in signals:
            signal.signal(number, before[number])
