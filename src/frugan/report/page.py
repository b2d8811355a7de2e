"""One HTML page about one or several runs: everything inside, nothing fetched."""

import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from frugan.report.gradient_maps import GradientMap
from frugan.report.run_view import Curve, Picture, RunView

LIVE_SECONDS = 5
"""A page of a run that goes on asks for a newer one so often."""


def render(runs: Sequence[RunView], *, live: bool = False) -> str:
    """The page.

    Args:
        runs: one, or several to compare.
        live: let the page renew itself while it is served.
    """
    if not runs:
        raise ValueError("a report of no runs")
    files = resources.files("frugan") / "report"
    style, script, template = ((files / f"page.{kind}").read_text("utf-8") for kind in ("css", "js", "html"))
    data = {
        "runs": [run.name for run in runs],
        "charts": _charts(runs),
        "gradients": [[_gradient_map(each) for each in run.gradients] for run in runs],
        "pictures": [[_picture(picture) for picture in run.pictures] for run in runs],
        "live": LIVE_SECONDS if live else 0,
    }
    environment = Environment(autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        title=" · ".join(run.name for run in runs),
        runs=runs,
        several=len(runs) > 1,
        scores=[(run, _columns(run.scores)) for run in runs if run.scores],
        style=style,
        script=script,
        # "</script" or "<!--" would end the script element, or begin another, also inside a string
        data=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    )


def _picture(picture: Picture) -> dict[str, Any]:
    named = {"rows": list(picture.rows)} if picture.rows else {}
    return {"step": picture.step, "kind": picture.kind, "uri": picture.uri, **named}


def _charts(runs: Sequence[RunView]) -> list[dict[str, Any]]:
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
            charts.append({"title": title, "curves": curves})
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
    """To two places; "zero" where all gradients were: JSON knows no infinity."""
    if logarithm is None:
        return None
    return round(logarithm, 2) if math.isfinite(logarithm) else "zero"


def _rounded(curve: Curve) -> list[float]:
    return [float(f"{value:.5g}") for value in curve.values]


def _columns(scores: Sequence[Mapping[str, str]]) -> list[str]:
    """Columns of a run's table of what `frugan evaluate` found."""
    columns = dict.fromkeys(name for row in scores for name in row)
    last = ("compared with", "features", "weights")  # how it was measured stands behind what was
    return [name for name in columns if name not in last] + [name for name in last if name in columns]
