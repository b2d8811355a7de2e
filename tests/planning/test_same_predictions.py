"""`benchmarks/same_predictions.py` lets a file say for which torch its predictions hold, and for no other."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from benchmark_programs import FOLDER
from frugan.planning.predictions import prediction_version, versions_of, write_predictions

SHIPPED = {"a": {"live_bytes": 1}, "b": {"live_bytes": 2}}
OLDER = "1-torch-2.11.0"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """It imports others of its folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("same_predictions")


def test_where_all_are_equal_this_torch_is_named_and_what_is_not_made_any_more_goes(
    tmp_path: Path, program: ModuleType
) -> None:
    file = tmp_path / "recipe.json"
    write_predictions(file, [OLDER], SHIPPED)
    assert program.note(file, {"a": SHIPPED["a"], "new": {"live_bytes": 3}}) == []
    assert versions_of(file) == (OLDER, prediction_version())
    assert json.loads(file.read_text("utf-8"))["predictions"] == {"a": SHIPPED["a"]}


def test_where_one_differs_this_torch_is_named_no_longer(tmp_path: Path, program: ModuleType) -> None:
    file = tmp_path / "recipe.json"
    write_predictions(file, [OLDER, prediction_version()], SHIPPED)
    assert program.note(file, {"a": {"live_bytes": 1.0000001}}) == ["a"]
    assert versions_of(file) == (OLDER,)
    assert json.loads(file.read_text("utf-8"))["predictions"] == SHIPPED
