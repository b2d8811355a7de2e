"""`report`: a run, or several, as one HTML page, which can be read again while the run goes on."""

import base64
import io
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image

from frugan.engine.run.events import EventTail, read_events
from frugan.engine.run.owners import Owners
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput, checked
from frugan.files import atomic_file, read_json
from frugan.metrics.provenance import ALIKE, AS_REAL, NONE, REAL, SAME, Measured, Provenance
from frugan.metrics.scores import half_width, low_recall
from frugan.progress import METRIC_OF
from frugan.reporting.grids import GRID_KEYWORD, ROWS_KEYWORD
from frugan.reporting.run_report import Charts, Curve, Picture, RunView, add_floor, render, score_in_words
from frugan.reporting.standing import headlines, note, of_newest, origin, sentence
from frugan.wording import GIB, LEFT_OUT, beside_real, clock, score_name, show_size, with_interval

MOST_ROWS = 30
"""The newest ones: a page is looked at, the file keeps them all."""


def taken_scores(file: Path) -> tuple[tuple[dict[str, str], ...], tuple[str, ...]]:
    """Rows by column name, oldest first, and the warnings that came with them; a repeated measurement counts once.

    Scores that were measured at once with other pictures, or judged by something else, have rows of their own. A
    warning that some were left out is over where a later measurement of the same step has taken them.

    Args:
        file: lines of JSON, as `save_evaluations` writes them; lines that cannot be read are passed over.
    """
    rows: dict[str, tuple[list[dict[str, str]], tuple[str, ...]]] = {}
    for values in read_events(file) if file.is_file() else ():
        try:
            found, warnings = _rows(values), tuple(map(str, values.get("warnings", ())))
            key = json.dumps(values["provenance"], sort_keys=True)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            continue  # of another version
        at, taken = _at(values["provenance"]), {METRIC_OF.get(name) for name in values["scores"]} - {None}
        if taken:
            for other, (earlier, lines) in rows.items():
                blind = set(str(json.loads(other).get("blind", NONE)).split(",")) - {NONE}
                if blind and blind <= taken:
                    over = [line for line in lines if LEFT_OUT in line and line.startswith(f"evaluate, {at}: ")]
                    rows[other] = (earlier, tuple(line for line in lines if line not in over))
        rows.pop(key, None)
        rows[key] = (found, tuple(f"evaluate, {at}: {line}" for line in warnings))
    newest = list(rows.values())[-MOST_ROWS:]
    return tuple(row for found, _ in newest for row in found), tuple(line for _, lines in newest for line in lines)


def evaluated(file: Path) -> list[dict[str, Any]]:
    """Scores of a run's whole pictures by `evaluate`, as events of scores, newest first.

    What was made with a truncation, or of some classes alone, says nothing of the run as it is.

    Args:
        file: as for `taken_scores`.
    """
    found = []
    for values in read_events(file) if file.is_file() else ():
        with suppress(LookupError, TypeError, ValueError, AttributeError, OverflowError):  # of another version
            of = Provenance.from_json(values["provenance"])
            is_whole = of.classes in (ALIKE, AS_REAL) and (of.truncation, of.psi) == (1.0, 1.0)
            if is_whole and not of.is_of_real:
                found.append({"step": of.step, "scores": dict(values["scores"]), "provenance": values["provenance"]})
    return found[::-1]


def _is_left_out(line: str, doubts: Collection[str]) -> bool:
    """Whether a line says that `evaluate` could not take a score, which is no fault of the run."""
    return line in doubts and LEFT_OUT in line


def _with_interval(name: str, scores: Mapping[str, Any], of: Mapping[str, Any]) -> str:
    """A score, with half of its 95 % interval where one is known, and with the real pictures' where it was taken."""
    width = half_width(name, scores, of)
    return with_interval(name, float(scores[name]), width) + beside_real(name, scores, of)


def _at(of: Mapping[str, Any]) -> str:
    return "real pictures" if of.get("scored") == REAL else f"step {int(of['step']):,}"


def _rows(values: Mapping[str, Any]) -> list[dict[str, str]]:
    of = Provenance.from_json(values["provenance"])
    scores: dict[Measured, dict[str, str]] = {}
    for name in map(str, values["scores"]):
        if not name.endswith(("_half_width", "_real")):
            beside = scores.setdefault(of.measured(name), {})
            beside[score_name(name, of.network)] = _with_interval(name, values["scores"], values["provenance"])
    return [_row(of, measured, beside) for measured, beside in scores.items()]


def _row(of: Provenance, measured: Measured, scores: Mapping[str, str]) -> dict[str, str]:
    last = {"compared with": measured.compared_with, "judged by": measured.judged_by}
    if of.is_of_real:
        return {"step": "-", "samples": measured.samples, **scores, **last, "weights": "real pictures"}
    row = {"step": f"{of.step:,}", "samples": measured.samples, "truncation": f"{of.truncation:g}"}
    if of.psi != 1.0:
        row["psi"] = f"{of.psi:g}"
    if of.classes != ALIKE:
        row["classes"] = of.classes
    return {**row, **scores, **last, "weights": "averaged" if of.ema else "trained"}


def floors(file: Path) -> dict[str, tuple[str, dict[str, float]]]:
    """Newest scores of real pictures: digest of the feature network -> its name, and the scores by name.

    Args:
        file: as for `taken_scores`.
    """
    found = {}
    for values in read_events(file) if file.is_file() else ():
        with suppress(LookupError, TypeError, ValueError, AttributeError, OverflowError):  # of another version
            of = values["provenance"]
            if of.get("scored") == REAL:
                scores = {str(name): float(value) for name, value in values["scores"].items()}
                finite = {name: value for name, value in scores.items() if math.isfinite(value)}
                found[str(of["network_digest"])] = str(of["network"]), finite
    return found


PICTURE_BYTES = 3_000_000
"""Room for all grids of a page, so that it can be sent by mail."""


@dataclass
class RunReader:
    """Reads a run piece by piece as it grows."""

    folder: RunFolder  # the run
    name: str  # name to show
    owners: Owners = field(default_factory=Owners)  # tell whether somebody trains it
    _charts: Charts = field(default_factory=Charts)
    _notes: dict[tuple[str, str], None] = field(default_factory=dict)
    last: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # newest event of each kind
    _damaged: int = 0
    beginnings: int = 0  # starts and resumptions so far: from each on steps may come again

    def __post_init__(self) -> None:
        self._tail = EventTail(self.folder.events, self._count_damaged)
        self._grids = Grids(self.folder)

    def read(self, *, to_the_end: bool = False) -> None:
        """Take in the events that were added since the last time.

        Args:
            to_the_end: also a last line that has no end.
        """
        if self._tail.restarted():  # the file is not the one that it was
            self._charts, self._notes, self.last, self._damaged = Charts(), {}, {}, 0
            self.beginnings += 1
        for event in self._charts.read(self._remembered(self._tail.added(to_the_end=to_the_end))):
            if event.get("event") == "warning_over":
                self._end(event)
            elif line := note(event):
                self._notes[line] = None

    def view(self, picture_bytes: int | None = PICTURE_BYTES, state: str | None = None, by: str = "") -> RunView:
        """Return the report's view of what has been read.

        Args:
            picture_bytes: room for its pictures; None: without them.
            state: of the run, see `sentence`; None: by its events and its owner.
            by: who trained it; empty: nobody is named.
        """
        last, charts = self.last, self._charts
        metrics = last.get("metrics", {})
        state = self._state() if state is None else state
        shown = charts.finish()
        scores, doubts = taken_scores(self.folder.scores)
        shown_scores = of_newest([*evaluated(self.folder.scores), metrics])
        plan = read_json(self.folder.plan)
        measured = shown.get("Memory (GiB)", {}).get("measured")
        if isinstance(peak := plan.get("peak_bytes"), int | float) and peak and measured:
            ends = [measured.steps[0], measured.steps[-1]]
            shown["Memory (GiB)"]["planned"] = Curve(ends, [peak / GIB] * 2)
        provenance = metrics.get("provenance", {})
        scored_with = provenance if isinstance(provenance, Mapping) else {}
        if (floor := floors(self.folder.scores).get(str(scored_with.get("network_digest")))) is not None:
            add_floor(shown, floor[1], floor[0])
        notes = tuple(dict.fromkeys([*self._notes, *_in_words(metrics), *(("warning", line) for line in doubts)]))
        of_run = (line for kind, line in reversed(notes) if kind == "warning" and not _is_left_out(line, doubts))
        newest = next(of_run, None)
        return RunView(
            name=self.name,
            sentence=sentence(state, {**last, "metrics": shown_scores}, newest, str(self.folder.path)),
            headlines=headlines(shown_scores),
            origin=origin(last.get("start", {}), by),
            charts=shown,
            facts=facts(last.get("start", {}), plan, read_json(self.folder.recipe), scored_with),
            pictures=() if picture_bytes is None else tuple(self._grids.pictures(picture_bytes)),
            notes=notes,
            tiles=tiles(
                last,
                state == "running",
                charts.data_seconds / max(charts.took_seconds, 1e-9),
                charts.card_busy,
            ),
            damaged=self._damaged,
            gradients=charts.gradients.finish(),
            never=charts.gradients.never(),
            scores=scores,
        )

    def _end(self, event: Mapping[str, Any]) -> None:
        """Say of a warning until when it held, in its place; it is none any more."""
        line = str(event.get("line"))
        self._notes = dict.fromkeys(
            ("over", f"{at} until step {event.get('step')}: {told}")
            if kind == "warning" and told == line
            else (kind, text)
            for kind, text in self._notes
            for at, _, told in [text.partition(": ")]
        )

    def _state(self) -> str:
        """Where the run stands: what ended without an event, by a kill or before its first step, left no owner."""
        if stop := self.last.get("stop", {}):
            return "finished" if stop.get("over") else "stopped"
        if self.owners.process(self.folder.path) is None:
            return "imported" if "imported" in self.last and self.beginnings == 0 else "died"
        return "running" if "step" in self.last else "starting"

    def _count_damaged(self, line: int) -> None:
        self._damaged += 1

    def _remembered(self, events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Pass events on, and keep the last of each kind."""
        for event in events:
            self.last[str(event.get("event"))] = event
            if event.get("event") in ("start", "resume"):
                self.beginnings += 1
                self.last.pop("stop", None)  # it goes on
            yield event


def _in_words(metrics: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Explain the last scores in words."""
    try:
        line = low_recall(metrics["scores"], Provenance.from_json(metrics["provenance"]))
    except (KeyError, TypeError, AttributeError):  # no scores, or of another version
        return
    if line is not None:
        yield "warning", f"step {metrics.get('step')}: {line}"


MOST_LEVELS = 12
"""Most levels of nested tables; recipes have up to 5."""
NOTABLE_DATA_SHARE = 0.05
"""Share of the steps' time spent waiting for data from which on it is worth a tile."""


def tiles(
    last: Mapping[str, Mapping[str, Any]], trains: bool, data_share: float, card_busy: float | None = None
) -> dict[str, str]:
    """Tiles that show the state of a run: name -> value.

    Args:
        last: newest event of each kind.
        trains: whether somebody trains it now.
        data_share: share of the steps' time spent waiting for data.
        card_busy: share of the time in which the card was lately; None: it is not known.
    """
    step, metrics, stop = (last.get(kind, {}) for kind in ("step", "metrics", "stop"))
    values: dict[str, str] = {}
    with suppress(LookupError, TypeError, ValueError, OverflowError):  # an event of another version, or damaged
        values |= _of_step(step, trains, data_share) if step else {}
    if preliminary := last.get("start", {}).get("preliminary"):
        values["not yet the usual training"] = str(preliminary)
    if card_busy is not None:
        values["card busy"] = f"{100 * card_busy:.0f} %"
    scores, measured = (
        dict(found) if isinstance(found := metrics.get(key), Mapping) else {} for key in ("scores", "provenance")
    )
    for name, value in scores.items():
        if isinstance(value, int | float) and not name.endswith(("_half_width", "_real")):
            values[score_name(score_in_words(name), measured.get("network"))] = _with_interval(name, scores, measured)
    if stop and stop.get("over"):
        values["state"] = "finished"
    return values


def _of_step(step: Mapping[str, Any], trains: bool, data_share: float) -> dict[str, str]:
    values = {
        "step": f"{step['step']:,}",
        "images": f"{step['images']:,}",
        "of training": clock(float(step["seconds"])),
        "images per second": f"{step['images'] / max(float(step['seconds']), 1e-9):.1f}",
    }
    if data_share >= NOTABLE_DATA_SHARE:
        values["of the time, waiting for data"] = f"{100 * data_share:.0f} %"
    if step.get("memory_bytes"):
        values["memory at most"] = show_size(int(step["memory_bytes"]))
    if trains and step["eta_seconds"] is not None:
        values["left"] = clock(float(step["eta_seconds"]))
    return values


def facts(
    start: Mapping[str, Any], plan: Mapping[str, Any], recipe: Mapping[str, Any], scored_with: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = {}
    for title, values in (("What the scores were measured with", scored_with), ("Recipe", recipe)):
        if values:
            tables[title] = dict(_flat(values))
    with suppress(LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        tables |= {"Plan": _of_plan(plan)} if plan else {}
    if start:
        kept = ("frugan", "torch", "machine", "device", "data")
        tables["Machine and versions"] = dict(_flat({name: start[name] for name in kept if name in start}))
    return tables


def _of_plan(plan: Mapping[str, Any]) -> dict[str, str]:
    chosen = {name: plan[name] for name in ("micro_batch", "accumulation", "precision", "savers") if name in plan}
    if "peak_bytes" in plan:
        chosen["predicted peak"] = show_size(int(plan["peak_bytes"]))
    categories = {f"at the peak: {k}": show_size(int(v)) for k, v in plan.get("categories", {}).items()}
    return {name: _text(value) for name, value in (chosen | categories).items()}


def _flat(values: Mapping[str, Any], before: str = "", levels: int = MOST_LEVELS) -> Iterable[tuple[str, str]]:
    """Nested values by dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and levels:
            yield from _flat(value, f"{before}{name}.", levels - 1)
        else:
            yield f"{before}{name}", _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):
        return ", ".join(map(_text, value)) or "none"
    return "-" if value is None or value == "" else str(value)


MOST_PICTURES = 40
MOST_PIXELS = 1 << 26
"""Most pixels of a grid: 64 pictures of 1024 x 1024."""
FORMATS = ("PNG",)
WIDEST = 1024
"""Width in pixels above which grids are scaled down."""
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""Errors that Pillow raises on damaged PNG files."""

Shown = tuple[str, tuple[str, ...], int]
"""A picture as a data URI, the names of its rows, and the number of its columns (0: not known)."""


@dataclass
class Grids:
    """The grids of a run; what was encoded once is kept, so that a page that renews itself costs little."""

    run: RunFolder
    _known: dict[tuple[Path, int, int], Shown] = field(default_factory=dict)
    _before: dict[tuple[Path, int, int], Shown] = field(default_factory=dict)

    def pictures(self, most_bytes: int) -> Iterator[Picture]:
        """Grids of all kinds, evenly over the training, as many as there is room for; the last ones always."""
        by_kind: dict[str, list[tuple[int, Path]]] = {}
        here = self.run.samples.resolve()
        for step, kind, path in self.run.grids():
            if _own(path, here):
                by_kind.setdefault(kind, []).append((step, path))
        self._before, self._known = self._known, {}
        for kind, paths in by_kind.items():
            yield from self._of_kind(kind, paths, most_bytes // len(by_kind))
        self._before = {}

    def _of_kind(self, kind: str, paths: list[tuple[int, Path]], share: int) -> Iterator[Picture]:
        while paths and (last := self._shown(paths[-1][1], share)) is None:
            paths.pop()
        if not paths or last is None:
            return
        count = max(1, min(len(paths), MOST_PICTURES, share // len(last[0])))
        chosen = sorted({round(i * (len(paths) - 1) / max(1, count - 1)) for i in range(count)} | {len(paths) - 1})
        room = share - len(last[0])
        for at in chosen[-count:]:
            number, path = paths[at]
            shown = last if at == len(paths) - 1 else self._shown(path, share // count)
            if shown is not None and (at == len(paths) - 1 or (room := room - len(shown[0])) >= 0):
                yield Picture(number, kind, *shown)

    def _shown(self, path: Path, most_bytes: int) -> Shown | None:
        """Picture to show; None: the file cannot be read."""
        try:
            key = (path, path.stat().st_mtime_ns, most_bytes)
            if key not in self._known:  # what the last page no longer showed is forgotten
                self._known[key] = self._before.get(key) or _encoded(path, most_bytes)
            return self._known[key]
        except UNREADABLE:
            return None


def _own(path: Path, folder: Path) -> bool:
    """Return whether a regular file lies in a folder itself: a foreign run may hold links to private files."""
    try:
        return path.is_file() and path.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # a link in a circle
        return False


def _encoded(path: Path, most_bytes: int) -> Shown:
    """Encode as WebP, scaled down until it fits."""
    with Image.open(path, formats=FORMATS) as opened:
        if opened.width * opened.height > MOST_PIXELS:
            raise ValueError(f"{path}: {opened.width} x {opened.height} pixels")
        picture = opened.convert("RGB")
        rows, columns = str(opened.info.get(ROWS_KEYWORD, "")), _columns_in(str(opened.info.get(GRID_KEYWORD, "")))
    width = min(picture.width, WIDEST)
    while True:
        height = max(1, picture.height * width // picture.width)
        reduced = picture if width == picture.width else picture.resize((width, height), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        reduced.save(file, "WEBP", quality=85, method=4)
        if len(file.getvalue()) * 4 // 3 <= most_bytes or width <= 64:
            uri = "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
            return uri, tuple(rows.split("\n")) if rows else (), columns
        width //= 2


def _columns_in(grid: str) -> int:
    """Number of columns that the chunk `GRID_KEYWORD` tells; 0: none."""
    with suppress(ValueError, TypeError, LookupError, RecursionError):
        return max(0, int(json.loads(grid)["columns"]))
    return 0


@checked
def write_report(runs: Sequence[str | Path], out: str | Path | None = None, *, title: str = "", by: str = "") -> Path:
    """Write one self-contained HTML page about a run, or several to compare.

    Args:
        runs: their folders.
        out: the page; None: in the first run, report.html, or comparison.html of several runs.
        title: of the page; empty: the names of the runs.
        by: who trained the runs; empty: nobody is named.

    Returns:
        The page's path.

    Raises:
        BadInput: a folder that is no run.
    """
    page = page_of(runs, title=title, by=by)
    path = Path(out) if out is not None else Path(runs[0]) / ("report.html" if len(runs) == 1 else "comparison.html")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as beside:
        beside.write_text(page, "utf-8")
    return path


def page_of(runs: Sequence[str | Path], *, title: str = "", by: str = "") -> str:
    """The page as text.

    Raises:
        BadInput: a folder that is no run, or none at all.
    """
    return page(readers_of(runs), title=title, by=by)


def readers_of(runs: Sequence[str | Path]) -> list[RunReader]:
    """Return a reader for each run; nothing is read yet.

    Raises:
        BadInput: a folder that is no run, or none at all.
    """
    if not runs:
        raise BadInput("a report of no runs: name one or several run folders")
    folders = [RunFolder(Path(run)) for run in runs]
    for folder in folders:
        if not folder.events.is_file():
            raise BadInput(
                f"{folder.path}: not a run folder (it has no events.jsonl); expected one that `frugan train` made"
            )
    return [RunReader(folder, name) for folder, name in zip(folders, _names([f.path for f in folders]), strict=True)]


def page(readers: Sequence[RunReader], *, live: bool = False, title: str = "", by: str = "") -> str:
    """The page of what these have read, and of what was added since.

    Args:
        live: the runs go on: a last line that is being written is left for the next time.
    """
    views = []
    for reader in readers:
        reader.read(to_the_end=not live)
        views.append(reader.view(PICTURE_BYTES // len(readers), by=by))
    text = render([_with_doubt(view, views[0]) for view in views], live=live, title=title)
    return text.encode("utf-8", "replace").decode()  # JSON may spell half a character, which no file can hold


def _with_doubt(run: RunView, first: RunView) -> RunView:
    """Warn where the scores of a run cannot be compared with those of the first one."""
    title = "What the scores were measured with"
    one, other = dict(first.facts.get(title, {})), dict(run.facts.get(title, {}))
    older = {"reference_digest": NONE, "judge": NONE, "neighbours": "0"}  # since older versions
    pairs = [(name, (older | one).get(name, "?"), (older | other).get(name, "?")) for name in SAME]
    apart = [f"{name} {mine} and {theirs}" for name, mine, theirs in pairs if mine != theirs]
    if not one or not other or not apart:
        return run
    line = f"scores of {first.name} and {run.name} do not compare: {', '.join(apart)}"
    return replace(run, notes=(*run.notes, ("warning", line)))


def view(folder: RunFolder, name: str, picture_bytes: int = PICTURE_BYTES) -> RunView:
    """Read a run and return what its report shows."""
    reader = RunReader(folder, name)
    reader.read(to_the_end=True)
    return reader.view(picture_bytes)


def _names(paths: Sequence[Path]) -> list[str]:
    """Names of run folders, with as much of their paths as tells them apart."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(words[-count:]) for words in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(words[-1:])} ({number})" for number, words in enumerate(parts, 1)]
