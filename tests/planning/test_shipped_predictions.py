"""The predictions that ship are what the planner finds now: some at every run, all of them in `make test-long`."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frugan.planning.plan_recipe import PlanOptions, planner_of
from frugan.planning.planner import Planner
from frugan.planning.predictions import VERSION, prediction_version, versions_of
from frugan.planning.recipe_predictions import shipped_predictions
from frugan.recipes import built_in

NEGLIGIBLE = 2e-4
"""Share of a figure that may differ: a small tensor more or less at some moment is no other prediction."""

OF_EACH_KIND = (
    "biggan-imagenet-128",
    "biggan-deep-imagenet-128",
    "stylegan2-ffhq-256",
    "r3gan-ffhq-64",
    "saehd-df-ud-256",
)
"""A recipe of each kind of networks, of a size at which what a step keeps shows."""


@pytest.mark.long
@pytest.mark.parametrize("name", built_in())
def test_shipped_predictions_hold(name: str) -> None:
    """The plain plan, the thriftiest and those that estimates come from, run anew."""
    _skip_where_it_is_for_other_torches(name)
    planner = _without_what_ships(name)
    planner.search.run(planner.search.least().plan)
    planner.store.close()
    _assert_shipped(name, planner.store.known)


@pytest.mark.parametrize("name", built_in())
def test_what_ships_is_of_the_recipe_as_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is answered without a run of its own."""
    _skip_where_it_is_for_other_torches(name)
    monkeypatch.setenv("FRUGAN_BASE", str(tmp_path))
    with planner_of(name, (), PlanOptions()) as planner:
        space = planner.search.space
        planner.store(space.plan(space.micro_batches()[0], "all"), planner.training.stages[0], rough=True)
        assert planner.store.ran == 0, f"of another recipe: run benchmarks/what_fits.py {name}"


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_plain_plan_takes_what_ships(name: str) -> None:
    """Roughly."""
    _skip_where_it_is_for_other_torches(name)
    planner = _without_what_ships(name)
    space = planner.search.space
    planner.store(space.plan(space.micro_batches()[0], "all"), planner.training.stages[0], rough=True)
    _assert_shipped(name, planner.store.known)


def _skip_where_it_is_for_other_torches(name: str) -> None:
    file = shipped_predictions(name)
    versions = () if file is None else versions_of(file)
    if prediction_version() not in versions and any(version.startswith(f"{VERSION}-") for version in versions):
        pytest.skip(f"predictions of {name} hold for {', '.join(versions)}; this is {prediction_version()}")


def _without_what_ships(name: str) -> Planner:
    return replace(planner_of(name, (), PlanOptions()), name="")


def _assert_shipped(name: str, predictions: Mapping[str, Mapping[str, Any]]) -> None:
    file = shipped_predictions(name)
    assert file is not None, f"{name} ships without predictions: run benchmarks/what_fits.py {name}"
    shipped = json.loads(file.read_text("utf-8"))
    assert prediction_version() in shipped["versions"]
    both = predictions.keys() & shipped["predictions"].keys()
    assert both, f"of another recipe: run benchmarks/what_fits.py {name}"
    for key in both:
        before = _flat(shipped["predictions"][key])
        now = {name: value for name, value in _flat(predictions[key]).items() if name in before}  # or counted since
        assert before == pytest.approx(now, rel=NEGLIGIBLE)


def _flat(prediction: Mapping[str, Any]) -> dict[str, Any]:
    """Its numbers, and those of its tables, by name."""
    tables = {name: values for name, values in prediction.items() if isinstance(values, dict)}
    nested = {f"{name}/{key}": value for name, values in tables.items() for key, value in values.items()}
    return {name: value for name, value in prediction.items() if isinstance(value, int | float)} | nested
