"""A recipe's subset and test pictures, from whatever the pictures are read."""

import shutil
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from frugan.data.digits import digits_set
from frugan.data.formats.picture_set import PictureSet
from frugan.errors import BadInput
from frugan.files import Folders
from frugan.progress import Say, quiet
from frugan.recipe.loading import load_recipe
from frugan.setup.run_data_sources import open_sources
from training.pictures import write_pictures, write_recipe


def opened(recipe: str, data: Path, fields: list[str], say: Say = quiet) -> PictureSet:
    return cast("PictureSet", open_sources(load_recipe(recipe, fields), data, say, None)["images"])


def pixels(pictures: PictureSet) -> set[bytes]:
    return {picture.tobytes() for picture in pictures[np.arange(len(pictures))]}


def test_a_subset_is_one_wherever_pixels_are_read_from(tmp_path: Path, said: list[str]) -> None:
    recipe, data = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    stored = opened(recipe, data, ["data.subset=4"], said.append)
    assert stored.labels.tolist() == [0, 0, 1, 1]
    assert sum("4 of 12 pictures trained on, 2 of each of 2 classes (data.subset=4" in line for line in said) == 1
    assert any("less than training.batch=8" in line for line in said)
    again = opened(recipe, data, ["data.subset=4"])
    assert again.digest == stored.digest
    encoded = opened(recipe, data, ["data.subset=4", "data.stored=encoded"])
    assert pixels(stored) == pixels(again) == pixels(encoded)
    other_seed = opened(recipe, data, ["data.subset=4", "training.seed=1"])
    assert other_seed.digest != stored.digest
    assert pixels(other_seed) != pixels(stored)


def test_a_smaller_subset_has_the_same_test_pictures(tmp_path: Path, said: list[str]) -> None:
    recipe, data = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    many = opened(recipe, data, ["data.holdout=2"], said.append)
    few = opened(recipe, data, ["data.holdout=2", "data.subset=4"])
    assert many.held_out is not None
    assert few.held_out is not None
    assert (len(many), len(few), len(few.held_out)) == (10, 4, 2)
    assert any(line.startswith("data: 2 pictures held out") for line in said)
    assert many.held_out.digest == few.held_out.digest
    assert not pixels(many) & pixels(many.held_out)
    encoded = opened(recipe, data, ["data.holdout=2", "data.stored=encoded"])
    assert encoded.held_out is not None
    assert pixels(encoded.held_out) == pixels(many.held_out)


@pytest.mark.parametrize("part", ["0.3", "4"])
def test_every_seed_has_the_same_test_pictures(tmp_path: Path, part: str) -> None:
    recipe, data = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    drawn = [opened(recipe, data, [f"data.holdout={part}", f"training.seed={seed}"]).held_out for seed in range(3)]
    assert len({test.digest for test in drawn if test is not None}) == 1
    assert None not in drawn


@pytest.mark.parametrize("stored", ["pixels", "encoded"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["data.subset=13"], r"data.subset=13: images .* has 12 pictures; choose at most 12"),
        (["data.subset=9", "data.holdout=4"], "has 8 pictures besides the 4 held out; choose at most 8"),
        (["data.holdout=12"], r"data.holdout=12: images .* has 12 pictures, and 12 held out leave none"),
    ],
)
def test_more_than_there_are_is_refused_before_anything_is_prepared(
    tmp_path: Path, said: list[str], fields: list[str], message: str, stored: str
) -> None:
    data = write_pictures(tmp_path / "pictures")
    with pytest.raises(BadInput, match=message):
        opened(write_recipe(tmp_path), data, [*fields, f"data.stored={stored}"], said.append)
    assert not said
    assert not Folders.from_environment().prepared.exists()


def test_a_folder_of_test_pictures(tmp_path: Path, said: list[str]) -> None:
    recipe, data = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    test = write_pictures(tmp_path / "test", classes=("hell",), each=3)
    (test / "other").mkdir()
    shutil.copy(test / "hell" / "0.png", test / "other")
    with pytest.raises(BadInput, match=r"its class 'other' is none of images .*: dunkel ü, hell"):
        opened(recipe, data, [f"data.holdout={test}"])
    (test / "other").rename(test / "dunkel ü")
    few = opened(recipe, data, [f"data.holdout={test}", "data.subset=9"]).held_out
    assert few is not None
    assert len(few) == 4
    pictures = opened(recipe, data, [f"data.holdout={test}"], said.append)
    assert pictures.held_out is not None
    assert (len(pictures), pictures.held_out.labels.tolist()) == (12, [0, 1, 1, 1])
    assert any("4 pictures held out" in line and "drawn" not in line for line in said)
    with pytest.raises(BadInput, match=r"lies inside .*, whose pictures are trained on"):
        opened(recipe, data, [f"data.holdout={data / 'hell'}"])
    with pytest.raises(BadInput, match=r"holds .*, whose pictures are trained on"):
        opened(recipe, data, [f"data.holdout={tmp_path}"])
    shutil.copytree(data, tmp_path / "copy")
    with pytest.raises(BadInput, match="holds the very pictures that are trained on"):
        opened(recipe, data, [f"data.holdout={tmp_path / 'copy'}"])
    with pytest.raises(BadInput, match="does not exist"):
        opened(recipe, data, [f"data.holdout={tmp_path / 'none'}"])
    flat = write_pictures(tmp_path / "flat", classes=())
    with pytest.raises(BadInput, match=r"data.holdout=.*flat: one class"):
        opened(recipe, data, [f"data.holdout={flat}"])


@pytest.mark.parametrize("value", ["0", "1.0", "-3", "0.0", "true", "[]", "''"])
def test_what_is_neither_a_share_nor_a_number_nor_a_folder(tmp_path: Path, value: str) -> None:
    with pytest.raises(
        BadInput, match=r"data\.holdout: expected a share of the pictures between 0 and 1, such as 0\.1"
    ):
        load_recipe(write_recipe(tmp_path), [f"data.holdout={value}"])


def test_faces_have_no_parts() -> None:
    with pytest.raises(BadInput, match="data: these settings are for sets of pictures"):
        load_recipe("saehd-demo-64", ["data.subset=100"])


def test_a_subset_is_drawn_from_an_opened_set() -> None:
    recipe = load_recipe("biggan-digits-32", ["data.subset=20"])
    (pictures,) = open_sources(recipe, {"images": digits_set(32)}, quiet, None).values()
    assert len(pictures) == 20
    unconditional = load_recipe("stylegan2-digits-32", ["data.subset=4", "networks.classes=none"])
    (pictures,) = open_sources(unconditional, {"images": digits_set(32)}, quiet, None).values()
    assert len(pictures) == 4
