"""Watchdog for ranks that are lost or run something else, so that the others do not wait for ever.

A card's collectives wait for half an hour for somebody who will not come, and a process that waits in one cannot be
woken; so a thread watches, and ends the process with a sentence that says which rank it was. Each rank gives a sign of
life, with the place that it has come to. One that takes its time comes to the same places later, however long it takes;
one that has come to another place has not, and the others would wait for it in vain.
"""

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from frugan.engine.requests import StopRequest

BEAT_SECONDS = 1.0
LOST_SECONDS = 30.0
"""Time without a heartbeat after which a rank counts as lost."""
SUSPECTED_SECONDS = 4.0
"""Time without a heartbeat after which a rank counts as lost once a message to a rank has failed."""
GRACE_SECONDS = 3.0
"""Time that a process has to end by itself."""
FAILED = 1
"""Exit code of a process that the watchdog ends."""
PLACES = 1 << 14
"""Places remembered for ranks that come to them later; a card's host is a few steps ahead at most."""


ANOTHER_WAY = "they do not run the same, and would wait for each other for ever"


class Store(Protocol):
    """The part of torch's key-value store that ranks use."""

    def set(self, key: str, value: str) -> None:
        """Set the value of a key."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of keys; waits until all are set."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a value if the key has none yet (`expected` is empty)."""


@dataclass
class Way:
    """The places where some ranks have called each other so far."""

    count: int = 0  # number of all places
    last: deque[str] = field(default_factory=lambda: deque(maxlen=PLACES))

    def add(self, place: str) -> None:
        """Append the next place."""
        self.count += 1
        self.last.append(place)

    def at(self, number: int) -> str | None:
        """Return place `number`, from 1; None: not reached yet, or no longer remembered."""
        before = self.count - number
        return self.last[-1 - before] if 0 <= before < len(self.last) else None


@dataclass
class Heartbeat:
    """Writes a heartbeat every second and watches others: the first rank all of them, each other one the first."""

    store: Store  # a connection of its own
    rank: int  # number of this rank
    names: Sequence[str]  # names of all ranks, for messages
    stop: StopRequest = field(default_factory=StopRequest)  # a stop that was asked of any rank is asked of the first
    told: bool = False  # whether it is known why ranks end, other than by a loss
    _beats: int = 0
    _ways: dict[range, Way] = field(default_factory=dict)  # by the ranks that go them together
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start watching; every rank must have called `beat` by then."""
        self._thread = threading.Thread(target=self._watch, daemon=True, name="frugan-ranks")
        self._thread.start()

    def end(self) -> None:
        """Stop watching."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(RuntimeError):  # the store is gone, and with it whoever would look
            self.beat()

    def comes_to(self, place: str, ranks: range | None = None) -> None:
        """Record that this rank calls others.

        Args:
            place: what it is doing, in words; what the others are doing there as well.
            ranks: that call each other; None: all of them.
        """
        together = range(len(self.names)) if ranks is None else ranks
        with self._lock:
            self._ways.setdefault(together, Way())
            for some, way in self._ways.items():
                if some.start >= together.start and some.stop <= together.stop:
                    way.add(place)

    def beat(self) -> None:
        """Write a heartbeat."""
        with self._lock:
            places = {str(ranks): (way.count, way.at(way.count)) for ranks, way in self._ways.items()}
        self.store.set(f"beat/{self.rank}", json.dumps([self._beats, places]))
        self._beats += 1

    def announce_end(self, reason: str) -> None:
        """Make all other ranks end, because this one does."""
        self._tell(f"{self.names[self.rank]} ended: {reason}")

    def _tell(self, reason: str) -> None:
        """Leave a reason for all others, unless one is there already."""
        try:
            self.store.compare_set("ended", "", reason)
        except RuntimeError:  # the store is gone, and with it the rank that keeps it
            return

    def lost(self) -> str | None:
        """Describe which ranks are lost after a message has failed; None: all have heartbeats."""
        try:
            before, began = self._all_beats(), time.monotonic()
            while time.monotonic() - began < SUSPECTED_SECONDS:
                if (said := self._said()) is not None:
                    self.told = " ended: " in said or ANOTHER_WAY in said
                    return said
                time.sleep(BEAT_SECONDS / 4)
            now = self._all_beats()
        except RuntimeError:
            return _store_gone(self.names)
        missing = [name for name, a, b in zip(self.names, before, now, strict=True) if a == b]
        return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} lost" if missing else None

    def _watch(self) -> None:
        others = [r for r in range(len(self.names)) if r != self.rank] if self.rank == 0 else [0]
        known = dict.fromkeys(others, b"")
        since = dict.fromkeys(others, time.monotonic())
        while not self._over.wait(BEAT_SECONDS):
            try:
                self.beat()
                self._pass_on_stops()
                reason = self._said()
                beats = self.store.multi_get([f"beat/{r}" for r in others])
                if reason is None and (reason := self._another_way()) is not None:
                    self._tell(reason)
            except RuntimeError:
                reason, beats = _store_gone(self.names), []
            now = time.monotonic()
            for r, beat in zip(others, beats, strict=False):
                if beat != known[r]:
                    known[r], since[r] = beat, now
                elif reason is None and now - since[r] > LOST_SECONDS:
                    reason = f"{self.names[r]} is lost: no sign of life for {LOST_SECONDS:.0f} seconds"
                    self._tell(reason)
            if reason is not None:
                self._end_process(reason)

    def _another_way(self) -> str | None:
        """Describe a rank that has come to another place than this one; None: none has.

        The first of those who go a way together looks at all of them, each other one at the first.
        """
        with self._lock:
            firsts = {way[0] for way in self._ways}
            led = {rank for way in self._ways if way[0] == self.rank for rank in way}
        others = sorted((firsts | led) - {self.rank})
        for other, beat in zip(others, self.store.multi_get([f"beat/{r}" for r in others]), strict=True):
            _, theirs = json.loads(beat)
            with self._lock:
                for ranks, way in self._ways.items():
                    number, place = theirs.get(str(ranks), (0, None))
                    here = way.at(number)
                    if number and here is not None and here != place:
                        return (
                            f"{self.names[other]} was {place} where {self.names[self.rank]} was {here}: {ANOTHER_WAY}"
                        )
        return None

    def _said(self) -> str | None:
        """Return the reason that another rank gave for its end."""
        if not self.store.check(["ended"]):
            return None
        (said,) = self.store.multi_get(["ended"])
        return said.decode()

    def _pass_on_stops(self) -> None:
        if self.rank != 0 and self.stop.asked:
            self.store.set("stop", str(self.stop.signal_name))
        elif self.rank == 0 and not self.stop.asked and self.store.check(["stop"]):
            self.stop.signal_name = self.store.multi_get(["stop"])[0].decode()

    def _all_beats(self) -> list[bytes]:
        return self.store.multi_get([f"beat/{r}" for r in range(len(self.names))])

    def _end_process(self, reason: str) -> None:
        """End, if the process does not by itself: it may wait for ever for the one that is lost."""
        grace_seconds = GRACE_SECONDS + SUSPECTED_SECONDS
        # the first rank's process keeps the place where the others, on a busy machine a little later, read the reason
        if self._over.wait(grace_seconds if self.rank else 2 * grace_seconds):
            return
        print(f"training stopped: {reason}; {self.names[self.rank]} ends as well", file=sys.stderr, flush=True)
        os._exit(FAILED)


def _store_gone(names: Sequence[str]) -> str:
    return f"the ranks' meeting point is gone, and with it {names[0]} or the torchrun that started it"
