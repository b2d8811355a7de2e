"""Pages say what the records say, and records of predictions what is predicted today."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("program", ["performance_page", "training_page", "predicted_pages"])
def test_tables_are_those_of_the_records(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tables, maker = importlib.import_module("page_tables"), importlib.import_module(program)
    pages = [page.read_text("utf-8") for page in maker.PAGES]
    for page in pages:
        assert tables.filled(page, maker.TABLES) == page, f"run python benchmarks/{program}.py"
        assert tables.filled(page.replace("| --- |", "| === |"), maker.TABLES) == page  # a table that is wrong is seen
    assert sum(page.count("<!-- table: ") for page in pages) == len(maker.TABLES)


def test_predictions_in_records_are_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program = importlib.import_module("published_costs")
    recorded = importlib.import_module("page_tables").read(program.RECORD.name)["rows"]
    for row in ("auto-128-8", "imagenet-128-8"):
        found = program.run(program.trainings()[row])
        assert {**recorded[row], "ran_seconds": found["ran_seconds"]} == found, (
            "run python benchmarks/predicted_pages.py --anew"
        )
