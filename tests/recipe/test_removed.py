"""Fields that are gone: recipes, runs and weights of earlier versions hold them, and still load."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.accelerator.precision import resolve_precision
from frugan.engine.plan import Plan
from frugan.errors import BadInput
from frugan.files import RUN_RECIPE
from frugan.recipe.loading import dump_recipe, load_recipe, parse_recipe
from frugan.recipe.recipe import Recipe
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import RECIPE, write_recipe

KEY = "training.compile"
WORDS = r"training\.compile = true: .*removed.*docs/performance\.md.*training\.compile=false.*training\.kernels"


def with_field(recipe: str, value: str) -> str:
    return recipe.replace("[training]", f"[training]\ncompile = {value}")


def saved_values(recipe: Recipe, value: bool) -> dict[str, Any]:
    """As an earlier version wrote a run's recipe: every field, with its value."""
    values = recipe.model_dump(mode="json")
    values["training"]["compile"] = value
    return values


def test_a_recipe_file_with_its_default_loads_as_without(tmp_path: Path) -> None:
    without = load_recipe(write_recipe(tmp_path))
    for_file = write_recipe(tmp_path, with_field(RECIPE, "false"), "older.toml")
    assert load_recipe(for_file) == load_recipe(for_file, [f"{KEY}=false"]) == without
    assert "compile" not in dump_recipe(load_recipe(for_file))


def test_another_value_is_refused_with_what_to_use(tmp_path: Path) -> None:
    older = write_recipe(tmp_path, with_field(RECIPE, "true"), "older.toml")
    with pytest.raises(BadInput, match=rf"^recipe {re.escape(older)}:\n{WORDS}"):
        load_recipe(older)
    with pytest.raises(BadInput, match=WORDS):
        load_recipe(write_recipe(tmp_path), [f"{KEY}=true"])


def test_a_key_like_it_is_unknown_as_ever(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"training\.compiler: unknown key"):
        load_recipe(write_recipe(tmp_path), ["training.compiler=false"])


@pytest.mark.parametrize("value", [False, True])
def test_weights_are_read_whatever_it_was(value: bool, tmp_path: Path) -> None:
    """It never changed what was trained, and nobody can leave it out of a file's metadata."""
    recipe = load_recipe(write_recipe(tmp_path))
    assert parse_recipe(saved_values(recipe, value), "weights") == recipe


@pytest.mark.parametrize(("value", "words"), [(False, ()), (True, (f"{KEY}=false",))])
def test_a_run_that_has_it_goes_on(
    value: bool, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    recipe, pictures = minigan_and_pictures(tmp_path)
    run, options = tmp_path / "run", TrainingOptions(device="cpu")
    train(recipe, pictures, run, overrides=["training.duration=1 step"], options=options)
    kept = run / RUN_RECIPE
    kept.write_text(json.dumps(saved_values(load_recipe(str(run)), value)), "utf-8")
    if value:
        with pytest.raises(BadInput, match=WORDS):
            train(str(run), pictures, run, options=options)
    train(str(run), pictures, run, overrides=["training.duration=2 steps", *words], options=options)
    assert "compile" not in json.loads(kept.read_text("utf-8"))["training"]
    assert any(run.glob("checkpoints/*2/networks.safetensors"))


def test_a_plan_that_has_cuda_graphs_is_the_plan_without() -> None:
    precision = resolve_precision("fp32", torch.device("cpu"))
    plan = Plan(4, precision)
    assert Plan.from_json(plan.as_json() | {"cuda_graphs": True}, precision) == plan
