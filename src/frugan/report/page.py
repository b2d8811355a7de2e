"""One HTML page about one or several runs: everything inside, nothing fetched."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

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
    style, script = ((files / name).read_text("utf-8") for name in ("page.css", "page.js"))
    title = " · ".join(run.name for run in runs)
    data = {
        "runs": [run.name for run in runs],
        "charts": _charts(runs),
        "gradients": [[_gradient_map(each) for each in run.gradients] for run in runs],
        "pictures": [[_picture(picture) for picture in run.pictures] for run in runs],
        "live": LIVE_SECONDS if live else 0,
    }
    # "</script" or "<!--" would end the script element, or begin another, also inside a string
    inside = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)} · frugan</title><style>{style}</style></head><body>"
        f"<header><h1>{html.escape(title)}</h1></header><main>"
        + "".join(_head(run, several=len(runs) > 1) for run in runs)
        + "".join(_scores(run, several=len(runs) > 1) for run in runs)
        + '<section id="sheets" hidden><h2>Samples through time</h2><div id="sheet-rows"></div></section>'
        + '<section><h2>Curves</h2><div id="charts"></div></section>'
        + '<section id="gradients" hidden><h2>Gradients by layer</h2>'
        + '<div class="bar" id="gradient-bar"></div><div id="gradient-maps"></div></section>'
        + "".join(_never(run, several=len(runs) > 1) for run in runs)
        + "".join(_facts(run, several=len(runs) > 1) for run in runs)
        + f'</main><script id="data" type="application/json">{inside}</script><script>{script}</script></body></html>\n'
    )


def _picture(picture: Picture) -> dict[str, Any]:
    named = {"rows": list(picture.rows)} if picture.rows else {}
    return {"step": picture.step, "kind": picture.kind, "uri": picture.uri, **named}


def _charts(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """Charts of all runs, curves of the same title together: title, and name, run, steps and values of each curve."""
    titles = list(dict.fromkeys(title for run in runs for title in run.charts))
    found: list[dict[str, Any]] = []
    for title in titles:
        curves = [
            {"name": name, "run": number, "steps": curve.steps, "values": _rounded(curve)}
            for number, run in enumerate(runs)
            for name, curve in run.charts.get(title, {}).items()
            if curve.values
        ]
        if curves:
            found.append({"title": title, "curves": curves})
    return found


def _gradient_map(found: GradientMap) -> dict[str, Any]:
    norms = [[_short(value) for value in row] for row in found.norms]
    zeros = [[None if value is None else round(value, 3) for value in row] for row in found.zeros]
    return {
        "network": found.network,
        "phase": found.phase,
        "layers": found.layers,
        "steps": found.steps,
        "norms": norms,
        "zeros": zeros,
    }


def _short(logarithm: float | None) -> float | str | None:
    """To two places; "zero" where all gradients were: JSON knows no infinity."""
    if logarithm is None:
        return None
    return round(logarithm, 2) if math.isfinite(logarithm) else "zero"


def _never(run: RunView, *, several: bool) -> str:
    of = f"{html.escape(run.name)}: " if several else ""
    return "".join(
        f'<p class="never">{of}no phase gave these parameters of {html.escape(network)} a gradient: '
        f"{html.escape(', '.join(names))}</p>"
        for network, names in run.never.items()
    )


def _rounded(curve: Curve) -> list[float]:
    return [float(f"{value:.5g}") for value in curve.values]


def _head(run: RunView, *, several: bool) -> str:
    tiles = "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>'
        for name, value in run.tiles.items()
    )
    name = f"<h2>{html.escape(run.name)}</h2>" if several else ""
    warnings = "".join(f'<p class="warning">{html.escape(line)}</p>' for kind, line in run.notes if kind == "warning")
    damaged = (
        f'<p class="warning">{run.damaged} lines of the event file could not be read and are left out.</p>'
        if run.damaged
        else ""
    )
    return f'<section>{name}<div class="tiles">{tiles}</div>{warnings}{damaged}</section>'


def _scores(run: RunView, *, several: bool) -> str:
    """A table of what `frugan evaluate` found."""
    if not run.scores:
        return ""
    of = f" of {html.escape(run.name)}" if several else ""
    columns = list(dict.fromkeys(name for row in run.scores for name in row))
    last = ("compared with", "features", "weights")  # how it was measured stands behind what was
    columns = [name for name in columns if name not in last] + [name for name in last if name in columns]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(row.get(name, ''))}</td>" for name in columns) + "</tr>"
        for row in run.scores
    )
    return (
        f"<section><h2>Scores{of} by frugan evaluate</h2>"
        f'<div class="wide"><table class="scores"><tr>{head}</tr>{rows}</table></div></section>'
    )


def _facts(run: RunView, *, several: bool) -> str:
    of = f" of {html.escape(run.name)}" if several else ""
    parts = [
        f"<details><summary>{html.escape(title)}{of}</summary>{_table(rows)}</details>"
        for title, rows in run.facts.items()
    ]
    said = "".join(f"<li>{html.escape(line)}</li>" for kind, line in run.notes if kind != "warning")
    if said:
        parts.append(f"<details><summary>What training said{of}</summary><ul>{said}</ul></details>")
    return f"<section>{''.join(parts)}</section>"


def _table(rows: Mapping[str, str]) -> str:
    return (
        "<table>"
        + "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows.items())
        + "</table>"
    )
