"""What is said of sets of pictures that a family reads in part."""

import re
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from frugan.contract.data import SourceOptions
from frugan.contract.settings import DataSettings
from frugan.data.digits import digits_set
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.data.picture_needs import PictureNeeds
from frugan.errors import BadInput
from frugan.families import family
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe


@pytest.mark.parametrize(("classes", "told"), [(None, 1), (10, 0)])
def test_class_folders_that_are_not_read_are_told_of(
    classes: int | None, told: int, tmp_path: Path, said: list[str]
) -> None:
    settings = DataSettings(flip=False, allow_upscale=False)
    options = SourceOptions(settings, tmp_path, said.append, None, {})
    PictureNeeds(8, classes).fitted("images", "images x", digits_set(8), options)
    assert sum("classes: not used" in line and "networks.classes=10" in line for line in said) == told


def test_classes_without_pictures_are_told_of(tmp_path: Path, said: list[str]) -> None:
    pictures = PictureSet.from_arrays(np.zeros((2, 3, 8, 8), np.uint8), np.array([1, 1]), ["a", "b", "c"])
    options = SourceOptions(DataSettings(), tmp_path, said.append, None, {})
    PictureNeeds(8, 3).fitted("images", "images x", pictures, options)
    PictureNeeds(8, 10).fitted("images", "images x", digits_set(8), options)
    assert said == ["classes: a, c without pictures: nothing can be learned of such a class"]


@pytest.mark.parametrize("name", ["biggan-digits-32", "r3gan-digits-32", "stylegan2-digits-32"])
def test_what_it_advises_where_there_are_no_classes_can_be_done(name: str, tmp_path: Path) -> None:
    options = SourceOptions(DataSettings(), tmp_path, print, None, {})
    digits = digits_set(32)
    one = np.zeros(len(digits), np.int64)
    flat = PictureSet(digits.pictures, one, ("pictures",), False, picture_digest(digits.pictures, one))
    for given in (flat, replace(flat, labelled=True)):
        with pytest.raises(BadInput) as refused:
            _needs(load_recipe(name, ["networks.classes=10", "networks.channels=3"])).fitted("i", "i", given, options)
        (advised,) = re.findall(r"networks\.classes=\w+", str(refused.value))
        _needs(load_recipe(name, [advised, "networks.channels=3"])).fitted("i", "i", given, options)


def _needs(recipe: Recipe) -> PictureNeeds:
    (needs,) = family(recipe.family).sources(recipe.networks, recipe.objective).values()
    return cast("PictureNeeds", needs)
