"""One thread that computes for the page, so that answers and a training on the same machine go on meanwhile."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

BEHIND = 10
"""Niceness of the worker thread."""


class Overtaken(Exception):
    """A newer request of the same kind came before this one was begun."""


@dataclass
class Worker:
    """Carries out one request after the other; of those that wait, only the newest of each kind."""

    _waiting: dict[str, tuple[Callable[[], Any], Future[Any]]] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def ask(self, kind: str, do: Callable[[], Any]) -> Future[Any]:
        """Have something done; what it gives or raises comes with the future, or `Overtaken`."""
        answer: Future[Any] = Future()
        with self._changed:
            if kind in self._waiting:
                self._waiting.pop(kind)[1].set_exception(Overtaken(kind))
            self._waiting[kind] = do, answer
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="frugan-explore", daemon=True)
                self._thread.start()
            self._changed.notify()
        return answer

    def between(self, but: str) -> None:
        """Called by something long, now and then: carry out what waits, but for one kind."""
        while True:
            with self._changed:
                kind = next((waiting for waiting in self._waiting if waiting != but), None)
                if kind is None:
                    return
                do, answer = self._waiting.pop(kind)
            _carry_out(do, answer)

    def _work(self) -> None:
        if sys.platform == "linux":  # where threads have priorities of their own: a training goes first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BEHIND)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                do, answer = self._waiting.pop(next(iter(self._waiting)))
            _carry_out(do, answer)


def _carry_out(do: Callable[[], Any], answer: Future[Any]) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(do())
    except Exception as error:  # noqa: BLE001  (whoever asked gets it)
        answer.set_exception(error)
