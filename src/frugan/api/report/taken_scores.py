"""Scores that `frugan evaluate` left in a run folder, as rows of the report."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frugan.engine.events import read_events

MOST_ROWS = 30
"""The newest ones: a page is looked at, the file keeps them all."""


def taken_scores(file: Path) -> tuple[tuple[dict[str, str], ...], tuple[str, ...]]:
    """Rows by column name, oldest first, and the warnings that came with them; a repeated measurement counts once.

    Args:
        file: lines of JSON, as `save_evaluations` writes them; lines that cannot be read are passed over.
    """
    rows: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {}
    for values in read_events(file) if file.is_file() else ():
        try:
            row, warnings = _row(values), tuple(map(str, values.get("warnings", ())))
            key = json.dumps(values["provenance"], sort_keys=True)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            continue  # of another version
        rows.pop(key, None)
        rows[key] = (row, tuple(f"evaluate, step {row['step']}: {line}" for line in warnings))
    newest = list(rows.values())[-MOST_ROWS:]
    return tuple(row for row, _ in newest), tuple(line for _, lines in newest for line in lines)


def _row(values: Mapping[str, Any]) -> dict[str, str]:
    of = values["provenance"]
    row = {"step": f"{int(of['step']):,}", "samples": f"{int(of['samples']):,}", "truncation": f"{of['truncation']:g}"}
    if of.get("psi", 1.0) != 1.0:
        row["psi"] = f"{of['psi']:g}"
    if of["classes"] != "all":
        row["classes"] = str(of["classes"])
    row |= {name: f"{float(value):.4g}" for name, value in values["scores"].items()}
    real = f"{of['data']} ({of['split']})" if of["real"] else str(of.get("reference"))
    weights = "averaged" if of["ema"] else "trained"
    return row | {"compared with": real, "features": str(of["network"]), "weights": weights}
