"""The event file: one JSON object a line, the truth about a run, of which everything shown is a reader."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Event = dict[str, Any]


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
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        cut = False
        if path.exists() and path.stat().st_size > 0:
            with path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                cut = file.read() != b"\n"
        self._readers: list[Callable[[Event], None]] = []
        self._file = path.open("a", encoding="utf-8", newline="\n")
        if cut:
            self._file.write("\n")

    def subscribe(self, reader: Callable[[Event], None]) -> None:
        """Let somebody read every event from now on, once it is written; readers may write events of their own."""
        self._readers.append(reader)

    def write(self, event: str, **values: Any) -> None:
        """Append one event, and show it to all readers as it will be read."""
        record: Event = {"event": event, **_jsonable(values)}
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()
        for reader in self._readers:
            reader(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_events(path: Path, damaged: Callable[[int], None] = lambda _: None) -> Iterator[Event]:
    """Events of a file in order; lines that are no events (cut short by a crash, overwritten) are passed over.

    Args:
        damaged: is told the number of each such line, from 1.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                event = None
            if isinstance(event, dict):
                yield event
            else:
                damaged(number)
