"""Recipes written as TOML read back as themselves."""

from pathlib import Path

import pytest

from frugan.recipe.loading import dump_recipe, load_recipe, parse_recipe
from frugan.recipe.overrides import differences
from frugan.recipe.recipe import Recipe
from frugan.recipes import built_in


def _again(recipe: Recipe, folder: Path) -> Recipe:
    path = folder / "again.toml"
    path.write_text(dump_recipe(recipe), "utf-8", newline="\n")
    return load_recipe(str(path))


@pytest.mark.parametrize("name", built_in())
def test_what_ships_reads_back_as_itself(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    assert differences(recipe, _again(recipe, tmp_path)) == {}
    assert _again(recipe, tmp_path) == recipe


def test_words_numbers_and_stages_of_every_kind(tmp_path: Path) -> None:
    base = load_recipe("saehd-demo-64").model_dump(mode="json")
    values = base | {
        "about": {"summary": 'quotes " and \\, a line\nbreak, ümläut, \x7f, \t', "source": "", "trained": "never"},
        "optimizers": {
            "default": {"kind": "rmsprop", "learning_rate": 1e-7, "dropout": 0.3},
            "autoencoder": {"kind": "adabelief", "learning_rate": 0.1 + 0.2, "clip_norm": 1},
        },
        "stages": [
            {"at": "100 steps", "set": {"objective.random_warp": False, "objective.ct_mode": "rct"}},
            {"at": "3k images", "set": {"optimizers.autoencoder.clip_norm": None, "objective.gan_power": 0.1}},
        ],
        "saving": {"backup_every": "90min"},
    }
    recipe = parse_recipe(values, "values")
    again = _again(recipe, tmp_path)
    assert again == recipe
    assert again.stages == recipe.stages
    assert again.model_dump(mode="json") == recipe.model_dump(mode="json")


def test_sections_of_defaults_are_left_out() -> None:
    text = dump_recipe(load_recipe("saehd-demo-64"))
    assert "[ema]" not in text
    assert "[data]" not in text
    assert '[networks]\narchi = "df-ud"\n' in text
    assert "random_warp = true" in text, "fields with defaults are there, to be changed"
