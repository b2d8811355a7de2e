"""The event file: one JSON object a line, the truth about a run, of which everything shown is a reader."""

import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Event = dict[str, Any]

MOST_LINE_BYTES = 16 << 20
"""Largest size of an event; those with the gradients of all parameters take up to 1 MiB."""


def _jsonable(value: Any) -> Any:
    """JSON knows no NaN or infinity: they become the strings "nan", "inf" and "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    return value


class EventLog:
    """Appends events to a file, each flushed, so that a killed run keeps what it wrote.

    Args:
        path: the file; made if missing. A last line cut short by a crash is ended first.
        keeps: called with an error of writing: whether events wait in memory until there is room.
    """

    def __init__(self, path: Path, keeps: Callable[[OSError], bool] = lambda _: False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        cut = False
        if path.exists() and path.stat().st_size > 0:
            with path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                cut = file.read() != b"\n"
        self._readers: list[Callable[[Event], None]] = []
        self._keeps = keeps
        self._unwritten = b"\n" if cut else b""
        self._file = path.open("ab", buffering=0)  # a buffer of Python's drops what a full disk does not take

    def subscribe(self, reader: Callable[[Event], None]) -> None:
        """Let somebody read every event from now on, once it is written; readers may write events of their own."""
        self._readers.append(reader)

    @contextmanager
    def scoped_subscribers(self) -> Iterator[None]:
        """Unsubscribe at the end of the block whoever has subscribed inside."""
        before = list(self._readers)
        try:
            yield
        finally:
            self._readers = before

    def write(self, event: str, **values: Any) -> None:
        """Append one event, and show it to all readers as it will be read."""
        record: Event = {"event": event, **_jsonable(values)}
        line = json.dumps(record, ensure_ascii=False, allow_nan=False)
        self._unwritten += line.encode("utf-8", "replace") + b"\n"  # a path may hold bytes that are no text
        try:
            self._write_all()
        except OSError as error:  # the rest of the line follows with the next event
            if not self._keeps(error):
                raise
        for reader in self._readers:
            reader(record)

    def _write_all(self) -> None:
        while self._unwritten:
            self._unwritten = self._unwritten[self._file.write(self._unwritten) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            try:
                self._write_all()
            except OSError as unwritten:
                if not self._keeps(unwritten):
                    raise


class NoEvents(EventLog):
    """The log of a rank that does not write: events are discarded."""

    def __init__(self) -> None:
        self._readers = []

    def write(self, event: str, **values: Any) -> None:
        """Discard the event."""


def read_events(path: Path, damaged: Callable[[int], None] = lambda _: None) -> Iterator[Event]:
    """Events of a file in order; lines that are no events (cut short by a crash, overwritten) are passed over.

    Args:
        damaged: is told the number of each such line, from 1.
    """
    return EventTail(path, damaged).added(to_the_end=True)


@dataclass
class EventTail:
    """Reads an event file piece by piece: each time what was added since."""

    path: Path  # the file
    damaged: Callable[[int], None] = lambda _: None  # is told the number of each line that is no event, from 1
    _position: int = 0
    _lines: int = 0

    def restarted(self) -> bool:
        """Return whether the file has become shorter than what was read of it; reading then starts over."""
        if self.path.stat().st_size >= self._position:
            return False
        self._position = self._lines = 0
        return True

    def added(self, *, to_the_end: bool = False) -> Iterator[Event]:
        """Events since the last time.

        Args:
            to_the_end: also of a last line without an end, which may still be in the making.

        Raises:
            OSError: it cannot be read, or is no file.
        """
        if not self.path.is_file():
            raise FileNotFoundError(errno.ENOENT, "no event file", str(self.path))
        with self.path.open("rb") as file:
            file.seek(self._position)
            while line := file.readline(MOST_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < MOST_LINE_BYTES and not to_the_end:
                    return
                self._position += len(line)
                self._lines += 1
                event = _event(line)
                if event is None:
                    self.damaged(self._lines)
                else:
                    yield event


def _event(line: bytes) -> Event | None:
    """None: the line is none."""
    try:
        event = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
