"""Puts tables of all self-tests on cards into docs/memory-measured.md: what held, and figures beside predictions.

    python benchmarks/cards.py

Reads benchmarks/results/cards/*.json, which `frugan doctor --selftest` writes, with `--full` or without.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from frugan.doctor.real_size import PREDICTED, TIME
from frugan.doctor.selftest import FORMAT
from frugan.errors import BadInput
from frugan.wording import GIB, duration, show_size

RESULTS = Path(__file__).parent / "results" / "cards"
PAGE = Path(__file__).parents[1] / "docs" / "memory-measured.md"
BEGIN, END = "<!-- cards: made by benchmarks/cards.py -->", "<!-- end of cards -->"
"""Where a page has the table."""
NONE_YET = "None yet: no card has run `frugan doctor --selftest`."


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Records of cards in a folder, by name.

    Raises:
        BadInput: a JSON file there is no record.
    """
    records = []
    for file in sorted(folder.glob("*.json")):
        try:
            values = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise BadInput(f"{file}: no JSON: {error}") from error
        if not isinstance(values, dict) or values.get("format") != FORMAT or "outcomes" not in values:
            raise BadInput(f"{file}: expected what `frugan doctor --selftest --record FILE` writes, format {FORMAT}")
        records.append(values)
    return records


def table_of(records: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of records: which promises held on which card."""
    if not records:
        return NONE_YET
    lines = [
        "| card | torch | system | passed | failed | not checked | memory, worst off | time, worst off |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for values in records:
        outcomes = values["outcomes"]
        counts = [sum(o["verdict"] == verdict for o in outcomes) for verdict in ("passed", "failed", "not checked")]
        cells = [
            _card(values),
            str(_machine(values, "versions").get("torch", "?")),
            str(values["system"]),
            str(counts[0]),
            _failed(outcomes) if counts[1] else "0",
            str(counts[2]),
            _worst(outcomes, PREDICTED, "reserved_off"),
            _worst(outcomes, TIME, "off"),
        ]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


MEASURED = ("taken_", "measured_")
"""What a figure's name begins with beside the same name after "predicted_"."""


def figures_of(records: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of all that was measured and had been predicted; empty: nothing was."""
    rows = [
        f"| {_card(values)} | {each['check']} | {each['subject']} | {name.replace('_', ' ')} | "
        f"{_shown(name, predicted)} | {_shown(name, measured)} | {_off(predicted, measured)} |"
        for values in records
        for each in values["outcomes"]
        for name, predicted, measured in _pairs(each["figures"])
    ]
    head = ["| card | check | on | figure | predicted | measured | off |", "|---|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) if rows else ""


def _pairs(figures: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Name, prediction and measurement of each figure that has both."""
    for key, predicted in figures.items():
        name = key.removeprefix("predicted_")
        found = [figures[begin + name] for begin in MEASURED if figures.get(begin + name) is not None]
        if name != key and found:
            yield name, float(predicted), float(found[0])


def _shown(name: str, value: float) -> str:
    """With its unit, which the end of its name says."""
    if name.endswith("bytes_per_s"):
        return f"{value / 1e9:.1f} GB/s"
    if name.endswith("bytes"):
        return show_size(value)
    return duration(value) if name.endswith("seconds") else f"{value:,.4g}"


def _off(predicted: float, measured: float) -> str:
    return f"{predicted / measured - 1:+.0%}" if measured else "-"


def page_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Both tables."""
    return "\n\n".join(table for table in (table_of(records), figures_of(records)) if table)


def with_table(page: str, table: str) -> str:
    """A page with the table between its two marks.

    Raises:
        BadInput: they are gone.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BadInput(f"the page has no place for the table of cards: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _machine(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((each["values"] for each in values["machine"] if each["finding"] == name), {})


def _card(values: Mapping[str, Any]) -> str:
    total = _machine(values, "card memory").get("total_bytes")
    return f"{values['device']}, {total / GIB:.0f} GiB" if total else str(values["device"])


def _failed(outcomes: Sequence[Mapping[str, Any]]) -> str:
    failed = [f"{o['check']} ({o['subject']})" for o in outcomes if o["verdict"] == "failed"]
    return f"{len(failed)}: {', '.join(failed)}"


def _worst(outcomes: Sequence[Mapping[str, Any]], check: str, figure: str) -> str:
    offs = [o["figures"][figure] for o in outcomes if o["check"] == check and figure in o["figures"]]
    return f"{max(offs, key=abs):+.0%}" if offs else "-"


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), page_of(read_records(RESULTS))), "utf-8")


if __name__ == "__main__":
    main()
