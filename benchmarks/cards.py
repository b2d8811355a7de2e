"""Puts the table of all self-tests on cards into docs/memory.md.

    python benchmarks/cards.py

Reads benchmarks/results/cards/*.json, which `frugan doctor --selftest` writes.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frugan.doctor.real_size import PREDICTED, TIME
from frugan.doctor.selftest import FORMAT
from frugan.errors import BadInput
from frugan.wording import GIB

RESULTS = Path(__file__).parent / "results" / "cards"
PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
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
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), table_of(read_records(RESULTS))), "utf-8")


if __name__ == "__main__":
    main()
