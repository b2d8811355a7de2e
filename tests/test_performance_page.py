"""The page about speed says what the records say."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_tables_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tables = importlib.import_module("performance_page")
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    assert tables.filled(page) == page, "run python benchmarks/performance_page.py"
    assert page.count("<!-- table: ") == len(tables.TABLES)
    assert tables.filled(page.replace("| step |", "| stop |")) == page  # a table that is wrong is seen
