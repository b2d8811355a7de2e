"""The runs of a folder as plain values for the page: a summary of all, and the details of one."""

import json
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from frugan.engine.run.owners import Owners
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.page.pictures import columns_of, grid_of, rows_of
from frugan.page.places import place, places
from frugan.recipe.loading import load_recipe
from frugan.reporting.report import RunReader, evaluated
from frugan.reporting.run_report import chart_data
from frugan.reporting.standing import NO_VALUE, headlines, of_newest
from frugan.wording import clock

MOST_RUNS = 500
TAIL_BYTES = 1 << 18, 1 << 23
"""Bytes read from the end of an event file for the list: the second where the first holds no step (gradient reports are
long)."""


class NoRun(LookupError):
    """There is no such run, or no such picture of it."""


@dataclass(frozen=True)
class Glance:
    """Summary of a run in the list, from the end of its events."""

    step: Mapping[str, Any]  # the last event of a step; empty: none was
    ended: str | None  # "finished" or "stopped", or "imported" and never trained; None: it said none of them since
    scores: Mapping[str, Any]  # the last event of scores; empty: none is near the end
    again: bool = False  # whether it has begun again since that step, whose forecast holds no more
    steps: int | None = None  # in all, by a length that was decided since; None: none was

    @classmethod
    def of(cls, events: Path, size: int) -> "Glance":
        """Look at the end of an event file of a size."""
        for most in TAIL_BYTES:
            with events.open("rb") as file:
                file.seek(max(0, size - most))
                lines = file.read(most).split(b"\n")[size > most :]
            glance = cls._last_of(lines)
            if glance.step or most >= size:
                break
        return glance

    @classmethod
    def _last_of(cls, lines: list[bytes]) -> "Glance":
        """Look at lines of events: the last step, how training ended after it, and the last scores."""
        ended, scores, steps = None, None, None
        again = False
        step: Mapping[str, Any] = {}
        for line in reversed(lines):
            if step and b'"metrics"' not in line:
                continue  # most are steps, which are long
            with suppress(ValueError, RecursionError):
                event = json.loads(line)
                kind = event.get("event") if isinstance(event, dict) else None
                if kind == "metrics":
                    scores = event if scores is None else scores
                elif not step and kind == "stop" and ended is None:
                    ended = "finished" if event.get("over") else "stopped"
                elif not step and kind == "imported" and ended is None:
                    ended = "imported"
                elif not step and kind in ("start", "resume"):
                    again = True
                    ended = "" if ended is None else ended
                elif not step and kind == "length" and steps is None:
                    steps = event.get("steps")
                elif not step and kind == "step":
                    step = event
            if step and scores is not None:
                break
        return cls(step, ended or None, scores or {}, again, steps)


@dataclass
class _Known:
    """Cache of a run between two requests."""

    reader: RunReader
    lock: Lock = field(default_factory=Lock)  # lock of the reader
    glance: tuple[int, int, Glance] | None = None  # size and time of the event file, and what its end said
    evaluated: tuple[int, list[dict[str, Any]]] | None = None  # time of the file of scores, and what it says
    sheets: tuple[int, dict[str, dict[int, Path]]] | None = None  # time of their folder, and kind -> step -> file
    draws: bool | None = None  # whether its generator draws by itself; None: nobody wanted to know yet


@dataclass
class Runs:
    """The runs of a folder."""

    path: Path  # the folder
    owners: Owners = field(default_factory=Owners)
    _known: dict[str, _Known] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Names of the runs, newest first."""
        found = []
        for name, path in places(self.path):
            with suppress(OSError):
                if _own(path):
                    found.append((path.joinpath("events.jsonl").stat().st_mtime, name))
        return [name for _, name in sorted(found, reverse=True)[:MOST_RUNS]]

    def folder(self, name: str) -> RunFolder:
        """A run by its name.

        Raises:
            NoRun: it is none of this folder's.
        """
        path = place(self.path, name)
        if path is None or not _own(path):
            raise NoRun(name)
        return RunFolder(path)

    def glances(self) -> list[dict[str, Any]]:
        """A little of every run: those that are being trained by their names, so that none moves; then newest first."""
        found: list[dict[str, Any]] = []
        for name in self.names():
            with suppress(OSError, NoRun):  # it was taken away meanwhile
                found.append(self.glance(name))
        trained = [about for about in found if about["state"] in ("running", "starting")]
        rest = [about for about in found if about["state"] not in ("running", "starting")]
        return [*sorted(trained, key=lambda about: str(about["name"])), *rest]

    def glance(self, name: str) -> dict[str, Any]:
        """Where a run stands.

        Raises:
            NoRun: there is none of this name.
            OSError: it cannot be read.
        """
        folder, known = self.folder(name), self._of(name)
        status = folder.events.stat()
        if known.glance is None or known.glance[:2] != (status.st_size, status.st_mtime_ns):
            known.glance = status.st_size, status.st_mtime_ns, Glance.of(folder.events, status.st_size)
        seen = known.glance[2]
        running = self.owners.process(folder.path) is not None
        wishes = [wish for wish in ("save", "preview", "stop") if (folder.requests / wish).exists()]
        state = ("running" if seen.step else "starting") if running else seen.ended or "died"
        about = {"name": name, "state": state, "asked": wishes if running else [], "changed": status.st_mtime}
        with suppress(LookupError, TypeError, ValueError, OverflowError):  # an event of another version, or damaged
            about |= _progress(seen)
        if state == "finished":
            about |= {"done": 1.0}
        newest = of_newest([*self._evaluated(name), seen.scores])
        if scores := [headline for headline in headlines(newest) if headline.value != NO_VALUE]:
            about |= {"score": f"{scores[0].name} {scores[0].value}"}
        sheets = self.sheets(name)
        kind = next(iter(sheets), None)
        return about | {"sheet": None if kind is None else {"kind": kind, "step": max(sheets[kind])}}

    def _evaluated(self, name: str) -> list[dict[str, Any]]:
        """Scores by `frugan evaluate`, newest first."""
        known, file = self._of(name), self.folder(name).scores
        try:
            changed = file.stat().st_mtime_ns
        except OSError:
            return []
        if known.evaluated is None or known.evaluated[0] != changed:
            known.evaluated = changed, evaluated(file)
        return known.evaluated[1]

    def explorable(self, name: str) -> bool:
        """Whether a run has weights of a generator that draws by itself, and does not make pictures of given ones.

        A recipe that cannot be read counts as that of one: opening it says what is wrong.

        Raises:
            NoRun: there is none of this name.
        """
        return self._has_weights(name) and self._draws(name)

    def shows_given(self, name: str) -> bool:
        """Whether a run has weights of a model that makes pictures of given ones, as face models do.

        Raises:
            NoRun: there is none of this name.
        """
        return self._has_weights(name) and not self._draws(name)

    def _has_weights(self, name: str) -> bool:
        return any(self.folder(name).checkpoints.glob("step-*"))

    def _draws(self, name: str) -> bool:
        folder, known = self.folder(name), self._of(name)
        if known.draws is None:
            try:
                known.draws = not load_recipe(str(folder.path)).shows_given
            except BadInput:
                return True
        return known.draws

    def sheets(self, name: str) -> dict[str, dict[int, Path]]:
        """Kinds of grids -> step -> file, steps rising; what one looks at first comes first."""
        folder, known = self.folder(name), self._of(name)
        try:
            changed = folder.samples.stat().st_mtime_ns
        except OSError:
            return {}
        if known.sheets is None or known.sheets[0] != changed:
            by_kind: dict[str, dict[int, Path]] = {}
            for step, kind, path in folder.grids():
                if _regular(path):  # a pipe would be waited for without end
                    by_kind.setdefault(kind, {})[step] = path
            kinds = sorted(by_kind, key=lambda kind: (kind not in ("samples", "preview"), kind))
            known.sheets = changed, {kind: by_kind[kind] for kind in kinds}
        return known.sheets[1]

    def sheet(self, name: str, kind: str, step: int) -> Path:
        """The file of a grid.

        Raises:
            NoRun: there is none.
        """
        path = self.sheets(name).get(kind, {}).get(step)
        if path is None or not _regular(path):
            raise NoRun(f"{name} {kind} {step}")
        return path

    def view(self, name: str, after: int = -1, beginnings: int = -1) -> dict[str, Any]:
        """All of a run, but of its curves only what was added.

        Args:
            after: step of the last point that is known already; -1: none is.
            beginnings: of the run, when that was told; after another one steps come again, and all is told.

        Raises:
            NoRun: there is none of this name.
            OSError: it cannot be read.
        """
        known = self._of(name)
        with known.lock:
            known.reader.read()
            about = self.glance(name)
            view, now = known.reader.view(picture_bytes=None, state=about["state"]), known.reader.beginnings
        charts = chart_data([view])
        newest = max((curve["steps"][-1] for chart in charts for curve in chart["curves"]), default=-1)
        whole = beginnings != now or after < 0 or after > newest
        if not whole:
            charts = [chart | {"curves": [_since(curve, after) for curve in chart["curves"]]} for chart in charts]
        newest_sheets = {kind: files[max(files)] for kind, files in self.sheets(name).items()}
        return about | {
            "sentence": view.sentence,
            "headlines": [headline.as_json for headline in view.headlines],
            "whole": whole,
            "beginnings": now,
            "after": newest,
            "charts": charts,
            "tiles": view.tiles,
            "notes": view.notes,
            "facts": view.facts,
            "scores": view.scores,
            "explorable": self.explorable(name),
            "columns": {kind: columns_of(file) for kind, file in newest_sheets.items()},
            "grids": {kind: grid_of(file) for kind, file in newest_sheets.items()},
            "rows": {kind: rows_of(file) for kind, file in newest_sheets.items()},
            "sheets": {kind: list(files) for kind, files in self.sheets(name).items()},
        }

    def last(self, name: str, event: str) -> Mapping[str, Any]:
        """The newest event of a kind, such as "start", of a run; empty: there is none.

        Raises:
            NoRun: there is none of this name.
            OSError: it cannot be read.
        """
        known = self._of(name)
        with known.lock:
            known.reader.read()
            return known.reader.last.get(event, {})

    def _of(self, name: str) -> _Known:
        folder = self.folder(name)
        return self._known.get(name) or self._known.setdefault(name, _Known(RunReader(folder, name)))


def _own(path: Path) -> bool:
    """Return whether a folder is a run without links, which might lead to private files."""
    run = RunFolder(path)
    files = (run.recipe, run.plan, run.events, run.scores, run.samples, run.requests, path / "owner.json")
    return _regular(run.events) and not any(file.is_symlink() for file in files)


def _regular(path: Path) -> bool:
    """Return whether a path is a regular file and no link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):  # a name that can be none
        return False


def _progress(seen: Glance) -> Iterator[tuple[str, Any]]:
    step = seen.step
    if not step:
        return
    seconds, left = float(step["seconds"]), step["eta_seconds"]
    yield "step", int(step["step"])
    yield "images", int(step["images"])
    yield "spent", clock(seconds)
    if seen.again:
        if seen.steps is not None:
            yield "done", min(1.0, int(step["step"]) / max(1, seen.steps))
    elif left is not None:
        yield "left", clock(float(left))
        yield "done", seconds / max(1e-9, seconds + float(left))


def _since(curve: Mapping[str, Any], after: int) -> dict[str, Any]:
    """A curve from its last point not after a step on: from there, what was known before gives way."""
    steps = curve["steps"]
    first = max((number for number, step in enumerate(steps) if step <= after), default=0)
    return {**curve, "steps": steps[first:], "values": curve["values"][first:]}
