"""The line on the console: a reader of the event file, shown on stderr so that stdout stays clean."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from frugan.progress import LINE_SECONDS
from frugan.wording import (
    GIB,
    beside_real,
    by_pictures,
    clock,
    neighbour_counts,
    score_name,
    show_size,
    two_sample_in_words,
)

PHASES: Mapping[str, str] = MappingProxyType(
    {"D": "discriminator", "G": "generator", "D_r1": "R1", "D_penalty": "penalty", "G_path": "path length"}
)
"""Phase -> its name in the line; of others their own."""
SIDES = ("src", "dst")
"""Terms that keep their names also where there is one alone."""
LARGE_DATA_SHARE = 0.2
"""Share of a step's time spent waiting for data from which on the line says so."""


def describe(event: Mapping[str, object]) -> str | None:
    """Turn one step event into a compact line; None for any other event.

    Numbers that are not finite come as the strings "nan", "inf" and "-inf" and are shown as such; what an event does
    not hold, or holds as None, is left out.
    """
    if event.get("event") != "step":
        return None
    fields = [f"step {_count(event.get('step'))}"]
    phases = event.get("phases")  # first: terminals are 80 characters wide
    if isinstance(phases, Mapping):
        fields.extend(_phase(str(name), phase) for name, phase in phases.items() if isinstance(phase, Mapping))
    carried = event.get("carried")
    if isinstance(carried, Mapping):
        fields.extend(f"{name} {_short(value)}" for name, value in carried.items())
    for name, show in _FIELDS.items():
        if event.get(name) is not None:
            fields.append(show(event[name]))
    if isinstance(card := event.get("card"), Mapping) and (told := _card(card)):
        fields.append(told)
    took, waited = _number(event.get("took_seconds")), _number(event.get("data_seconds"))
    if took and waited is not None and waited / took >= LARGE_DATA_SHARE:
        fields.append(f"waited for data {100 * (waited / took):.0f} %")
    return " | ".join(fields)


def _saved(event: Mapping[str, object]) -> str | None:
    """Format a checkpoint; None for one of the best, which has an event of its own."""
    path = str(event.get("path"))
    return None if path.startswith("best/") else f"step {_count(event.get('step'))}: saved {path}"


def _drew(event: Mapping[str, object]) -> str | None:
    """Format a snapshot's files; None: there are none."""
    paths = event.get("paths")
    if not isinstance(paths, list) or not paths:
        return None
    return f"step {_count(event.get('step'))}: drew {', '.join(map(str, paths))}"


def _phase(name: str, phase: Mapping[str, Any]) -> str:
    terms = _by_side(phase.get("terms") or {})
    alone = len(terms) == 1 and not any(term in SIDES for term in terms)
    words = [PHASES.get(name, name.replace("_", " "))]
    words += [_short(value) if alone else f"{term.replace('_', ' ')} {_short(value)}" for term, value in terms.items()]
    if phase.get("loss_scale", 1.0) != 1.0:
        words.append(f"scale {_short(phase['loss_scale'])}")
    if phase.get("skipped"):
        words.append("SKIPPED" if phase["skipped"] == 1 else f"SKIPPED x{phase['skipped']}")
    return " ".join(words)


def _by_side(terms: Mapping[str, Any]) -> Mapping[str, Any]:
    """Terms named "side/..." added up by side, then the others: two numbers that one can follow, for eight."""
    sums: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in terms.items():
        side, slash, _ = name.partition("/")
        if not slash:
            others[name] = value
            continue
        number = _number(value)
        known = sums.get(side, 0.0)
        sums[side] = value if number is None else known + number if isinstance(known, float) else known
    return sums | others


def _card(card: Mapping[str, Any]) -> str:
    """Format a card's load, temperature and power, as far as its driver reports them."""
    shown = [show(number) for name, show in _CARD.items() if (number := _number(card.get(name))) is not None]
    return " ".join(["card", *shown]) if shown else ""


def _number(value: object) -> float | None:
    """Return a value if it is a finite number, else None."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def _told(form: Callable[[float], str]) -> Callable[[object], str]:
    """Format a number; other values as they are."""

    def told(value: object) -> str:
        number = _number(value)
        return str(value) if number is None else form(number)

    return told


def _three_digits(number: float) -> str:
    """Format three significant digits, at a width that hardly changes."""
    if number == 0 or 0.001 <= abs(number) < 10:
        return f"{number:.3f}"
    if abs(number) < 0.001 or abs(number) >= 1e5:
        return f"{number:.1e}"
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"


_count, _short, _clock = _told("{:,.0f}".format), _told(_three_digits), _told(clock)
_bytes = _told(lambda number: show_size(number, 1 if number >= GIB else 0))

_FIELDS: dict[str, Callable[[object], str]] = {
    "seconds": _clock,
    "eta_seconds": lambda value: f"{_clock(value)} left",
    "images_per_second": lambda value: f"{_short(value)} images/s",
    "memory_bytes": _bytes,
    "images": lambda value: f"{_count(value)} images",
}


_CARD: dict[str, Callable[[float], str]] = {
    "busy": lambda share: f"{100 * share:.0f} %",
    "used_bytes": lambda size: f"{show_size(int(size), 1)} used",
    "temperature_c": lambda value: f"{value:.0f} °C",
    "power_w": lambda value: f"{value:.0f} W",
    "clock_mhz": lambda value: f"{value:.0f} MHz",
}


def _scores(event: Mapping[str, object]) -> str:
    scores, of = event.get("scores"), event.get("provenance")
    measured: Mapping[str, Any] = of if isinstance(of, Mapping) else {}
    network = measured.get("network")
    told = [score_name(str(scores), network)]
    if isinstance(scores, Mapping):
        judged = two_sample_in_words(scores, measured)
        of_features = {name: value for name, value in scores.items() if judged is None or not by_pictures(name)}
        by_features = ", ".join(
            f"{name} {_short(value)}{beside_real(name, scores, measured)}"
            for name, value in of_features.items()
            if not name.endswith("_half_width")
            and (name.removesuffix("_real") not in of_features or not name.endswith("_real"))
        )
        told = [score_name(by_features, network)] if by_features else []  # the network's name once, for all of them
        told += [counts] if (counts := neighbour_counts(measured)) else []
        told += [] if judged is None else [judged]
    return f"step {_count(event.get('step'))}: {'; '.join(told)}"


_EVENTS: dict[str, Callable[[Mapping[str, object]], str | None]] = {
    "metrics": _scores,
    "best": lambda e: f"step {_count(e.get('step'))}: saved in best/, among the best by {e.get('score')}",
    "checkpoint": _saved,
    "checkpoint_failed": lambda e: f"step {_count(e.get('step'))}: no checkpoint: {e.get('reason')}",
    "snapshot": _drew,
    "snapshot_failed": lambda e: f"step {_count(e.get('step'))}: no sample grid: {e.get('reason')}",
    "warning_over": lambda e: f"step {_count(e.get('step'))}: over: {str(e.get('line')).partition(': ')[0]}",
    "skipped": lambda e: (
        f"step {e.get('step')}: phase {e.get('phase')} skipped, {e.get('in_a_row')} in a row: {e.get('reason')}"
    ),
    "out_of_memory": lambda e: (
        f"step {e.get('step')}: phase {e.get('phase')} ran out of memory; repeated by a new plan"
    ),
}

LONG_SECONDS = 10.0
"""Since the last step: from here on the line says that it waits, and for how long."""


class LiveLine:
    """Shows the newest step: one line that changes on a terminal, else a plain line every so often. Use with `with`.

    On a terminal something moves from the start of training on, also while a step takes long.

    Args:
        every_seconds: between two plain lines; the first and the last step are always shown.
        console: where to; default: stderr.
        clock: seconds from any start.
    """

    def __init__(
        self,
        every_seconds: float = LINE_SECONDS,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(file=sys.stderr)
        self._every, self._clock = every_seconds, clock
        self._live: Live | None = None
        self._entered = False
        self._spinner = Spinner("dots")
        self._began: float | None = None  # when it began to wait for a step; None: it waits for none
        self._newest: str | None = None  # line of the newest step
        self._card: object = None  # what was last told of the card: not every step tells of it
        self._unprinted: str | None = None  # the same, until a plain line shows it
        self._printed_at = -math.inf

    def show(self, event: Mapping[str, object]) -> None:
        """Take the next event; skipped updates and what is saved are told in lines that stay."""
        self._card = event.get("card", self._card)
        kind, line = str(event.get("event")), describe({**event, "card": self._card})
        if kind in _EVENTS and (told := _EVENTS[kind](event)) is not None:
            self.note(told)
        if kind == "start":
            self._began, self._newest, self._card = self._clock(), None, None
            if self._entered:
                self._start_live()
        if kind == "stop":
            self._began = None
            self._leave_line()
        if line is not None:
            self._began, self._newest = self._clock(), line
            if self._live is None:
                self._unprinted = line
                if self._clock() - self._printed_at >= self._every:
                    self._flush()

    def note(self, text: str) -> None:
        """Print a line that stays, above the live one."""
        self._console.print(Text(text), soft_wrap=True)

    def _flush(self) -> None:
        if self._unprinted is not None:
            self.note(self._unprinted)
            self._unprinted, self._printed_at = None, self._clock()

    def __rich__(self) -> RenderableType:
        """Render the newest step, with a spinner while the next one takes long."""
        waited = 0.0 if self._began is None else self._clock() - self._began
        if self._began is None or (self._newest is not None and waited < LONG_SECONDS):
            return Text(self._newest or "", no_wrap=True, overflow="ellipsis")
        since = "the start, no step is done yet" if self._newest is None else self._newest
        self._spinner.update(text=Text(f"{clock(waited)} since {since}", no_wrap=True, overflow="ellipsis"))
        return self._spinner

    def _leave_line(self) -> None:
        """Leave the line as it is: what is told from now on goes below it, and it is not drawn again."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _start_live(self) -> None:
        if self._live is None and self._console.is_terminal and not self._console.is_dumb_terminal:
            # What other code prints to stderr goes above the line; stdout is not rich's to touch.
            self._live = Live(self, console=self._console, redirect_stdout=False, refresh_per_second=4)
            self._live.start()

    def __enter__(self) -> Self:
        self._entered = True
        self._start_live()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered, self._began = False, None
        self._leave_line()
        self._flush()
