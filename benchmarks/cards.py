"""Puts the table of all self-tests on cards into docs/memory.md.

    python benchmarks/cards.py

Reads benchmarks/results/cards/*.json, which `frugan doctor --selftest` writes.
"""

from pathlib import Path

from frugan.api.doctor.card_record import read_records, table_of, with_table

RESULTS = Path(__file__).parent / "results" / "cards"
PAGE = Path(__file__).parents[1] / "docs" / "memory.md"


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), table_of(read_records(RESULTS))), "utf-8")


if __name__ == "__main__":
    main()
