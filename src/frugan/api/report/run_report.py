"""`report`: a run, or several, as one HTML page."""

import base64
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from frugan.api.report.taken_scores import taken_scores
from frugan.engine.events import read_events
from frugan.engine.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.memory.sizes import GIB, show_size
from frugan.metrics.low_recall import low_recall
from frugan.metrics.provenance import NONE, SAME, Provenance
from frugan.report.page import render
from frugan.report.run_view import Charts, Curve, Picture, RunView
from frugan.report.sheets import ROWS_KEYWORD

PICTURE_BYTES = 3_000_000
"""For all sheets of a page, so that it can be sent by mail."""
MOST_PICTURES = 40
NOTABLE_DATA_SHARE = 0.05
"""Of the steps' time that was waiting for data: what is less is not worth a tile."""
WIDEST = 1024
"""Pixels: wider sheets are reduced."""


def write_report(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write one self-contained HTML page about a run, or several to compare.

    Args:
        runs: their folders.
        out: the page; None: report.html in the first run.

    Returns:
        The page's path.

    Raises:
        BadInput: a folder that is no run.
    """
    page = page_of(runs)
    path = Path(out) if out is not None else Path(runs[0]) / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(page, "utf-8")
    beside.replace(path)
    return path


def page_of(runs: Sequence[str | Path], *, live: bool = False) -> str:
    """The page as text.

    Raises:
        BadInput: a folder that is no run, or none at all.
    """
    if not runs:
        raise BadInput("a report of no runs: name one or several run folders")
    folders = [RunFolder(Path(run)) for run in runs]
    for folder in folders:
        if not folder.events.is_file():
            raise BadInput(f"{folder.path}: no run folder: it has no events.jsonl; expected what `frugan train` made")
    names = _names([folder.path for folder in folders])
    share = PICTURE_BYTES // len(folders)
    views = [view(folder, name, share) for folder, name in zip(folders, names, strict=True)]
    return render([_with_doubt(each, views[0]) for each in views], live=live)


def _with_doubt(run: RunView, first: RunView) -> RunView:
    """Warn where the scores of a run cannot be compared with those of the first one."""
    title = "What the scores were measured with"
    one, other = dict(first.facts.get(title, {})), dict(run.facts.get(title, {}))
    older = {"reference_digest": NONE}  # since older versions
    pairs = [(name, (older | one).get(name, "?"), (older | other).get(name, "?")) for name in SAME]
    apart = [f"{name} {mine} and {theirs}" for name, mine, theirs in pairs if mine != theirs]
    if not one or not other or not apart:
        return run
    line = f"scores of {first.name} and {run.name} do not compare: {', '.join(apart)}"
    return replace(run, notes=(*run.notes, ("warning", line)))


def view(folder: RunFolder, name: str, picture_bytes: int = PICTURE_BYTES) -> RunView:
    """What is shown of a run."""
    damaged: list[int] = []
    charts = Charts()
    notes: dict[tuple[str, str], None] = {}
    start: Mapping[str, Any] = {}
    last: dict[str, Mapping[str, Any]] = {}
    for event in charts.read(_remembered(read_events(folder.events, damaged.append), last)):
        kind = event.get("event")
        if kind == "start":
            start = event
        elif note := _note(event):
            notes[note] = None
    notes |= dict.fromkeys(_in_words(last.get("metrics", {})))
    scores, doubts = taken_scores(folder.scores)
    notes |= dict.fromkeys(("warning", line) for line in doubts)
    shown = charts.finish()
    plan = _json(folder.plan)
    if (peak := plan.get("peak_bytes")) and (measured := shown.get("Memory (GiB)", {}).get("measured")):
        ends = [measured.steps[0], measured.steps[-1]]
        shown["Memory (GiB)"]["planned"] = Curve(ends, [peak / GIB] * 2)
    return RunView(
        name=name,
        charts=shown,
        facts=_facts(start, plan, _json(folder.recipe), last.get("metrics", {}).get("provenance", {})),
        pictures=tuple(_pictures(folder.samples, picture_bytes)),
        notes=tuple(notes),
        tiles=_tiles(last, charts.data_seconds / max(charts.took_seconds, 1e-9)),
        damaged=len(damaged),
        gradients=charts.gradients.finish(),
        never=charts.gradients.never(),
        scores=scores,
    )


def _remembered(events: Iterable[dict[str, Any]], last: dict[str, Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Pass events on, and keep the last of each kind."""
    for event in events:
        last[str(event.get("event"))] = event
        yield event


def _note(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """A line for a person, and whether it is a warning."""
    match event.get("event"):
        case "choice":
            return "choice", str(event.get("line"))
        case "warning":
            return "warning", f"step {event.get('step')}: {event.get('line')}"
        case "out_of_memory":
            return "warning", f"step {event.get('step')}: out of memory in phase {event.get('phase')}; a smaller plan"
        case "snapshot_failed":
            return "warning", f"step {event.get('step')}: no sample grid: {event.get('reason')}"
        case _:
            return None


def _in_words(metrics: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What the last scores say to a person."""
    try:
        line = low_recall(metrics["scores"], Provenance.from_json(metrics["provenance"]))
    except (KeyError, TypeError, AttributeError):  # no scores, or of another version
        return
    if line is not None:
        yield "warning", f"step {metrics.get('step')}: {line}"


def _tiles(last: Mapping[str, Mapping[str, Any]], data_share: float) -> dict[str, str]:
    """Where a run stands.

    Args:
        last: newest event of each kind.
        data_share: of the steps' time, waiting for data.
    """
    step, metrics, stop = (last.get(kind, {}) for kind in ("step", "metrics", "stop"))
    found: dict[str, str] = {}
    if step:
        found |= {
            "step": f"{step['step']:,}",
            "images": f"{step['images']:,}",
            "of training": _time(float(step["seconds"])),
            "images per second": f"{step['images'] / max(float(step['seconds']), 1e-9):.1f}",
        }
        if data_share >= NOTABLE_DATA_SHARE:
            found["of the time, waiting for data"] = f"{100 * data_share:.0f} %"
        if step.get("memory_bytes"):
            found["memory at most"] = show_size(int(step["memory_bytes"]))
        if step["eta_seconds"] is not None and (not stop or stop.get("step", 0) < step["step"]):
            found["left"] = _time(float(step["eta_seconds"]))
    for name, value in metrics.get("scores", {}).items():
        if isinstance(value, int | float):
            found[name] = f"{value:.4g}"
    if stop and stop.get("over"):
        found["state"] = "finished"
    return found


def _time(seconds: float) -> str:
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def _facts(
    start: Mapping[str, Any], plan: Mapping[str, Any], recipe: Mapping[str, Any], scored_with: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    if scored_with:
        found["What the scores were measured with"] = dict(_flat(scored_with))
    if recipe:
        found["Recipe"] = dict(_flat(recipe))
    if plan:
        chosen = {name: plan[name] for name in ("micro_batch", "accumulation", "precision", "savers") if name in plan}
        if "peak_bytes" in plan:
            chosen["predicted peak"] = show_size(int(plan["peak_bytes"]))
        categories = {f"at the peak: {k}": show_size(int(v)) for k, v in plan.get("categories", {}).items()}
        found["Plan"] = {name: _text(value) for name, value in (chosen | categories).items()}
    if start:
        kept = ("frugan", "torch", "machine", "device", "data")
        found["Machine and versions"] = dict(_flat({name: start[name] for name in kept if name in start}))
    return found


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Nested values by dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return "-" if value is None else str(value)


def _pictures(folder: Path, most_bytes: int) -> Iterable[Picture]:
    """Sheets of all kinds, evenly over the training, as many as there is room for; the last ones always."""
    by_kind: dict[str, list[tuple[int, Path]]] = {}
    for path in sorted(folder.glob("step-*-*.png")) if folder.is_dir() else []:
        step, _, kind = path.stem.removeprefix("step-").partition("-")
        if step.isdigit():
            by_kind.setdefault(kind, []).append((int(step), path))
    for kind, paths in by_kind.items():
        share = most_bytes // len(by_kind)
        last = _uri(paths[-1][1], share)
        count = max(1, min(len(paths), MOST_PICTURES, share // len(last)))
        chosen = sorted({round(i * (len(paths) - 1) / max(1, count - 1)) for i in range(count)} | {len(paths) - 1})
        room = share - len(last)
        for at in chosen[-count:]:
            number, shown = paths[at]
            uri = last if at == len(paths) - 1 else _uri(shown, share // count)
            if at == len(paths) - 1 or (room := room - len(uri)) >= 0:
                yield Picture(number, kind, uri, _rows(shown))


def _uri(path: Path, most_bytes: int) -> str:
    """A picture as a data URI: WebP, reduced until it fits."""
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    width = min(picture.width, WIDEST)
    while True:
        height = max(1, picture.height * width // picture.width)
        reduced = picture if width == picture.width else picture.resize((width, height), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        reduced.save(file, "WEBP", quality=85, method=4)
        if len(file.getvalue()) * 4 // 3 <= most_bytes or width <= 64:
            return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
        width //= 2


def _rows(path: Path) -> tuple[str, ...]:
    """Names of a sheet's rows, as the file says them."""
    with Image.open(path) as picture:
        text = picture.info.get(ROWS_KEYWORD, "")
    return tuple(str(text).split("\n")) if text else ()


def _names(paths: Sequence[Path]) -> list[str]:
    """Names of run folders, with as much of their paths as tells them apart."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(each[-1:])} ({number})" for number, each in enumerate(parts, 1)]


def _json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is none."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
