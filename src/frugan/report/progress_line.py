"""The console line: a reader of events."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text


def _clock(seconds: float) -> str:
    """Seconds as 1:02 or 3:04:05."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def describe(event: Mapping[str, Any]) -> str | None:
    """Turn an event into one line for people; None for events that are not worth one."""
    if event["event"] == "skipped":
        return f"step {event['step']}: phase {event['phase']} skipped, {event['in_a_row']} in a row ({event['reason']})"
    if event["event"] != "step":
        return None
    losses = []
    for name, phase in event["phases"].items():
        terms = " ".join(f"{term} {_number(value)}" for term, value in phase["terms"].items())
        notes = f" scale {phase['loss_scale']:g}" if phase["loss_scale"] != 1 else ""
        notes += " SKIPPED" if phase["skipped"] else ""
        losses.append(f"{name} {terms}{notes}")
    memory = f"  {event['memory_bytes'] / 2**30:.1f} GiB" if event.get("memory_bytes") else ""
    return (
        f"step {event['step']:,}  {'  '.join(losses)}  {event['images_per_second']:,.0f} images/s{memory}  "
        f"{_clock(event['seconds'])} done, {_clock(event['eta_seconds'])} to go"
    )


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float | int) else str(value)


class LiveLine:
    """Shows step events on stderr: one live line on a terminal, a plain line every few seconds elsewhere.

    Args:
        console: where to show; default: stderr.
        plain_every_seconds: pause between plain lines.
    """

    def __init__(self, console: Console | None = None, *, plain_every_seconds: float = 10.0) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._every = plain_every_seconds
        self._live: Live | None = None
        self._last = float("-inf")

    def show(self, event: Mapping[str, Any]) -> None:
        """Take an event."""
        line = describe(event)
        if line is None:
            return
        if event["event"] != "step":
            self._console.print(line, markup=False, soft_wrap=True)
        elif self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, refresh_per_second=8, transient=False)
                self._live.start()
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            self._console.print(line, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
