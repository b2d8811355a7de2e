"""Report of runs: plain values from a run's events and pictures, and several runs as one HTML page."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from statistics import fmean
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, StrictUndefined

from frugan.metrics.provenance import METRICS_BY_NEIGHBOURS
from frugan.reporting.gradient_maps import GradientMap, GradientMaps
from frugan.reporting.standing import Headline
from frugan.wording import GIB, score_name

MOST_POINTS = 500
"""Points of one curve: more than a chart has pixels would only make the page heavy."""
SCORES: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "fid": ("FID", "lower is better", "FID"),
        "intra_fid": ("FID within classes", "lower is better", "mean"),
        "is_mean": ("inception score", "higher is better", "mean"),
        "is_std": ("inception score", "higher is better", "deviation"),
        "kid_mean": ("KID", "lower is better", "mean"),
        "kid_std": ("KID", "lower is better", "deviation"),
        "precision": ("precision and recall", "higher is better", "precision"),
        "recall": ("precision and recall", "higher is better", "recall"),
        "precision_real": ("precision and recall", "higher is better", "precision, real against real"),
        "recall_real": ("precision and recall", "higher is better", "recall, real against real"),
        "f_score": ("precision and recall", "higher is better", "F score"),
        "density": ("density and coverage", "higher is better", "density"),
        "coverage": ("density and coverage", "higher is better", "coverage"),
        "density_real": ("density and coverage", "higher is better", "density, real against real"),
        "coverage_real": ("density and coverage", "higher is better", "coverage, real against real"),
        "cmmd": ("CMMD", "lower is better", "CMMD"),
        "two_sample": ("two-sample", "lower is better, 0.5 at best", "generated against real"),
        "two_sample_real": ("two-sample", "lower is better, 0.5 at best", "real against real"),
    }
)
"""Score -> what its chart is called, which way is better, and name of its curve."""
REAL = "real pictures"
"""Part of the name of the curve of their scores."""
VARIETY = "Score: variety within classes, generated over real (1: as varied)"
VARIETY_CURVES: Mapping[str, str] = MappingProxyType({"mean": "mean distance", "nearest": "to the nearest neighbour"})
STEP_TIME = "Seconds of a step"
CARD: Mapping[str, tuple[str, str, float]] = MappingProxyType(
    {
        "busy": ("Card busy (% of the time)", "all programs", 100),
        "others_busy": ("Card busy (% of the time)", "other programs", 100),
        "temperature_c": ("Card temperature (°C)", "temperature", 1),
        "power_w": ("Card power (W)", "power", 1),
        "clock_mhz": ("Card clock (MHz)", "clock", 1),
        "used_bytes": ("Memory (GiB)", "on the card, by all programs", 1 / GIB),
    }
)
"""Reading of the card -> title of its chart, name of its curve, and what it is multiplied by."""
PHASES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "D": ("Loss of the discriminator", "discriminator"),
        "G": ("Loss of the generator", "generator"),
        "D_r1": ("Loss of the discriminator: gradient penalty (R1)", "gradient penalty"),
        "G_path": ("Loss of the generator: path length penalty", "path length penalty"),
    }
)
"""Phase -> title of the chart of its losses, and its name in charts of other numbers."""
TERMS: Mapping[str, str] = MappingProxyType(
    {
        "real": "real pictures",
        "fake": "generated pictures",
        "relativistic": "pairs of real and generated",
        "adversarial": "generated pictures",
        "r1": "at real pictures (R1)",
        "r2": "at generated pictures (R2)",
        "path_length": "path lengths",
    }
)
"""Term of a loss -> name of its curve."""
AXES: Mapping[str, str] = MappingProxyType(
    {
        "Score": "score",
        "Loss scale": "factor",
        "Loss": "loss",
        "Gradient": "norm",
        "Skipped": "updates",
        "Learning": "learning rate",
        "Largest": "singular value",
        "Images": "images per second",
        "Seconds": "seconds",
    }
)
"""Beginning of a chart's title -> the name of its vertical axis, unless the title has a unit in brackets."""
MOST_LAYERS = 8
"""Layers whose singular values are shown, those with the largest last ones."""


def chart_of(score: str, network: object) -> tuple[str, str]:
    """Title of a score's chart and name of its curve; scores by different feature networks are never in one chart."""
    title, better, curve = SCORES.get(score, (score, "", score))
    return f"Score: {score_name(title, network)}{', ' if better else ''}{better}", curve


def _other_counts(score: str, measured: Mapping[str, Any]) -> str:
    """End of the name of a curve of scores by neighbours in pixels that an older version took, of other counts."""
    older = measured.get("network") == "pixels" and not measured.get("neighbours")
    return ", all samples and pictures" if older and score in METRICS_BY_NEIGHBOURS else ""


def score_in_words(score: str) -> str:
    """Name of a score among others, as people know it."""
    title, _, curve = SCORES.get(score, (score, "", score))
    return curve if title in (curve, "precision and recall", "density and coverage") else f"{title}, {curve}"


@dataclass
class Curve:
    """A curve that is thinned as it grows: neighbours are averaged, so that a long run keeps its shape."""

    steps: list[int] = field(default_factory=list)  # steps of the points so far
    values: list[float] = field(default_factory=list)  # values of the points so far
    _stride: int = 1
    _waiting: list[tuple[int, float]] = field(default_factory=list)

    def add(self, step: int, value: float) -> None:
        """Add a point; what is not finite is left out."""
        if not math.isfinite(value):
            return
        self._waiting.append((step, value))
        if len(self._waiting) < self._stride:
            return
        self._flush()
        if len(self.values) >= 2 * MOST_POINTS:
            pairs = range(0, len(self.values) - 1, 2)
            self.values = [(self.values[i] + self.values[i + 1]) / 2 for i in pairs]
            self.steps = [self.steps[i + 1] for i in pairs]
            self._stride *= 2

    def cut(self, step: int) -> None:
        """Forget the points after a step: training has gone back to it."""
        self._waiting = [point for point in self._waiting if point[0] <= step]
        while self.steps and self.steps[-1] > step:
            self.steps.pop()
            self.values.pop()

    def _flush(self) -> None:
        if self._waiting:
            self.steps.append(self._waiting[-1][0])
            self.values.append(sum(value for _, value in self._waiting) / len(self._waiting))
            self._waiting.clear()

    def finish(self) -> "Curve":
        """Return the curve to draw, at most `MOST_POINTS` long, with pending values; this object can go on growing."""
        done = Curve([*self.steps], [*self.values], _waiting=[*self._waiting])
        done._flush()
        while len(done.values) > MOST_POINTS:
            pairs = range(0, len(done.values) - 1, 2)
            kept = (done.steps[-1], done.values[-1]) if len(done.values) % 2 else None
            done.values = [(done.values[i] + done.values[i + 1]) / 2 for i in pairs]
            done.steps = [done.steps[i + 1] for i in pairs]
            if kept is not None:
                done.steps.append(kept[0])
                done.values.append(kept[1])
        return done


@dataclass(frozen=True)
class Picture:
    """A grid at a step."""

    step: int  # step of training
    kind: str  # name of the grid ("samples")
    uri: str  # the picture itself, as a data URI
    rows: tuple[str, ...] = ()  # names of its rows, from the top; empty: they have none
    columns: int = 0  # pictures beside each other; 0: not known


@dataclass(frozen=True)
class RunView:
    """Values that the report shows of one run."""

    name: str  # name of the run's folder
    charts: Mapping[str, Mapping[str, Curve]]  # title -> curve name -> curve; in the order in which they are shown
    facts: Mapping[str, Mapping[str, str]]  # title -> fact -> value, as text: recipe, plan, machine
    pictures: tuple[Picture, ...]  # grids, oldest first
    notes: tuple[tuple[str, str], ...]  # lines that training said: choices and warnings, with their kind
    tiles: Mapping[str, str]  # name -> value, as text: where the run stands
    sentence: str = ""  # how it goes and what to do
    origin: str = ""  # kind of generator, and pictures that it was trained on
    headlines: Sequence[Headline] = ()  # at most two scores
    damaged: int = 0  # lines of the event file that could not be read
    gradients: tuple[GradientMap, ...] = ()  # by layer through time, of each network and phase
    never: Mapping[str, Sequence[str]] = field(default_factory=dict)  # network -> parameters that never got a gradient
    # rows of what `frugan evaluate` found, column -> value, as text; oldest first
    scores: Sequence[Mapping[str, str]] = ()


def add_floor(charts: Mapping[str, dict[str, Curve]], scores: Mapping[str, float], network: object) -> None:
    """Draw scores of real pictures as lines through the charts of the same scores of generated ones.

    Args:
        charts: title -> curve name -> curve, finished.
        scores: by name.
        network: that they were measured by.
    """
    for name, value in scores.items():
        title, curve = chart_of(name, network)
        drawn = charts.get(title, {}).get(curve)
        if drawn is not None and drawn.steps and not name.endswith("_std"):
            charts[title][f"{curve} of {REAL}"] = Curve([drawn.steps[0], drawn.steps[-1]], [value, value])


@dataclass
class Charts:
    """Curves and maps gathered from events."""

    by_title: dict[str, dict[str, Curve]] = field(default_factory=dict)  # title -> curve name -> curve
    gradients: GradientMaps = field(default_factory=GradientMaps)  # by layer
    # phase -> (step, updates skipped until then), for each step in which any was skipped
    skipped: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    took_seconds: float = 0.0  # duration of all steps whose events have it
    data_seconds: float = 0.0  # part of this duration that was spent waiting for data
    card_busy: float | None = None  # share of the time in which the card was busy, by the last event that says so

    def read(self, events: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        """Take the numbers of step and metric events, and pass every other event on."""
        for event in events:
            kind = event.get("event")
            try:
                if kind == "start" and "parameters" in event:
                    self.gradients.sizes = dict(event["parameters"])
                if kind in ("start", "resume"):
                    self._cut(int(event["step"]))
                if kind == "step":
                    self._step(event)
                    continue
                if kind == "metrics":
                    measured = event.get("provenance", {})
                    for name, value in event["scores"].items():
                        if not name.endswith("_half_width"):  # a chart of it would say nothing
                            title, curve = chart_of(name, measured.get("network"))
                            self._add(title, curve + _other_counts(name, measured), int(event["step"]), value)
                if kind == "variety":
                    for curve in ("mean", "nearest"):
                        self._add(VARIETY, VARIETY_CURVES[curve], int(event["step"]), fmean(event[curve].values()))
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
                continue  # an event of another version
            yield event

    def _cut(self, step: int) -> None:
        """Forget what came after the step that a run goes on from: it is trained again."""
        self.gradients.cut(step)
        for curves in self.by_title.values():
            for curve in curves.values():
                curve.cut(step)
        for phase, skips in self.skipped.items():
            self.skipped[phase] = [skip for skip in skips if skip[0] <= step]

    def _step(self, event: Mapping[str, Any]) -> None:
        step = int(event["step"])
        for phase, entry in event["phases"].items():
            title, shown = PHASES.get(phase, (f"Loss of {phase}", phase))
            for name, value in entry["terms"].items():
                self._add(title, TERMS.get(name, name.replace("_", " ")), step, value)
            self._add("Gradient norms", shown, step, entry["gradient_norm"])
            self._add("Loss scale", shown, step, entry["loss_scale"])
            if "learning_rate" in entry:
                self._add("Learning rate", shown, step, entry["learning_rate"])
            skips = self.skipped.setdefault(phase, [])
            before = skips[-1][1] if skips else 0
            if entry["skipped"]:
                skips.append((step, before + int(entry["skipped"])))
            self._add("Skipped updates in all", shown, step, before + int(entry["skipped"]))
            self.gradients.add(step, phase, entry)
        for name, value in event.get("carried", {}).items():
            self._add(name.capitalize(), name, step, value)
        for layer, value in event.get("singular_values", {}).items():
            self._add("Largest singular values", layer, step, value)
        self._add("Images per second", "images per second", step, event["images_per_second"])
        if "took_seconds" in event:
            self.took_seconds += event["took_seconds"]
            self.data_seconds += event["data_seconds"]
            self._add(STEP_TIME, "step", step, event["took_seconds"])
            self._add(STEP_TIME, "of it, waiting for data", step, event["data_seconds"])
        for name, value in event.get("card", {}).items():
            if name in CARD:
                title, curve, scale = CARD[name]
                self._add(title, curve, step, value * scale)
        self.card_busy = event.get("card", {}).get("busy", self.card_busy)
        if event.get("memory_bytes"):
            self._add("Memory (GiB)", "measured", step, event["memory_bytes"] / GIB)

    def _add(self, title: str, curve: str, step: int, value: Any) -> None:
        self.by_title.setdefault(title, {}).setdefault(curve, Curve()).add(step, float(value))

    def finish(self) -> dict[str, dict[str, Curve]]:
        """All charts; of singular values the largest; without those in which nothing happens."""
        shown = {
            title: {name: curve.finish() for name, curve in curves.items()} for title, curves in self.by_title.items()
        }
        if layers := shown.get("Largest singular values"):
            largest = sorted(layers, key=lambda name: -(layers[name].values or [0.0])[-1])[:MOST_LAYERS]
            shown["Largest singular values"] = {name: layers[name] for name in sorted(largest)}
        if all(set(curve.values) <= {1.0} for curve in shown.get("Loss scale", {}).values()):
            shown.pop("Loss scale", None)  # no scaling in this precision
        if not any(self.skipped.values()):
            shown.pop("Skipped updates in all", None)
        return {title: shown[title] for title in sorted(shown, key=_order)}


def _order(title: str) -> tuple[int, str]:
    """Scores first, those of a judge before those that flatter; losses last: they do not say how good pictures are."""
    scores = ("Score: two-sample", "Score")
    first = (*scores, "Images", "Seconds", "Memory", "Card busy", "Card", "Learning", "Gradient", "Skipped", "Largest")
    if title.startswith("Loss "):
        return len(first) + 1, title
    return next((i for i, start in enumerate(first) if title.startswith(start)), len(first)), title


def axis_of(title: str) -> str:
    """Name of a chart's vertical axis."""
    _, _, unit = title.rpartition(" (")
    if title.endswith(")") and not title.startswith(("Score", "Loss")):
        return unit.removesuffix(")")
    return next((name for start, name in AXES.items() if title.startswith(start)), "value")


def report_file(name: str) -> str:
    """Read one of the files of which the page is made."""
    return (resources.files("frugan") / "reporting" / name).read_text("utf-8")


LIVE_SECONDS = 5
"""Interval at which the page of a running training reloads itself."""


def render(runs: Sequence[RunView], *, live: bool = False, title: str = "") -> str:
    """The page.

    Args:
        runs: one, or several to compare.
        title: empty: the names of the runs.
        live: let the page renew itself while it is served.
    """
    if not runs:
        raise ValueError("a report of no runs")
    style, charts, script, template = map(report_file, ("page.css", "charts.js", "page.js", "page.html"))
    data = {
        "runs": [run.name for run in runs],
        "charts": chart_data(runs),
        "gradients": [[_gradient_map(gradients) for gradients in run.gradients] for run in runs],
        "pictures": [[_picture(picture) for picture in run.pictures] for run in runs],
        "live": LIVE_SECONDS if live else 0,
    }
    environment = Environment(autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        title=title or " · ".join(run.name for run in runs),
        runs=runs,
        several=len(runs) > 1,
        scores=[(run, _columns(run.scores)) for run in runs if run.scores],
        style=style,
        script=charts + script,
        # "</script" or "<!--" would end the script element, or begin another, also inside a string
        data=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    )


def _picture(picture: Picture) -> dict[str, Any]:
    named = {"rows": list(picture.rows)} if picture.rows else {}
    return {"step": picture.step, "kind": picture.kind, "uri": picture.uri, "columns": picture.columns, **named}


def chart_data(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """Charts of all runs, curves of the same title together: title, and name, run, steps and values of each curve."""
    titles = list(dict.fromkeys(title for run in runs for title in run.charts))
    charts: list[dict[str, Any]] = []
    for title in titles:
        curves = [
            {"name": name, "run": number, "steps": curve.steps, "values": _rounded(curve)}
            for number, run in enumerate(runs)
            for name, curve in run.charts.get(title, {}).items()
            if curve.values
        ]
        if curves:
            charts.append({"title": title, "axis": axis_of(title), "curves": curves})
    return charts


def _gradient_map(gradient_map: GradientMap) -> dict[str, Any]:
    norms = [[_short(value) for value in row] for row in gradient_map.norms]
    zeros = [[None if value is None else round(value, 3) for value in row] for row in gradient_map.zeros]
    return {
        "network": gradient_map.network,
        "phase": gradient_map.phase,
        "layers": gradient_map.layers,
        "steps": gradient_map.steps,
        "norms": norms,
        "zeros": zeros,
    }


def _short(logarithm: float | None) -> float | str | None:
    """Round to two decimals; "zero" where all gradients were zero, as JSON has no infinity."""
    if logarithm is None:
        return None
    return round(logarithm, 2) if math.isfinite(logarithm) else "zero"


def _rounded(curve: Curve) -> list[float]:
    return [float(f"{value:.5g}") for value in curve.values]


def _columns(scores: Sequence[Mapping[str, str]]) -> list[str]:
    """Columns of a run's table of what `frugan evaluate` found; of truncations only where there was one."""
    columns = dict.fromkeys(name for row in scores for name in row)
    if all(row.get("truncation", "1") == "1" for row in scores):
        columns.pop("truncation", None)
    last = ("compared with", "judged by", "weights")  # how it was measured stands behind what was
    return [name for name in columns if name not in last] + [name for name in last if name in columns]
