"""Options that say which pictures are read."""

import json
from pathlib import Path

import pytest
from PIL import Image

from cli.calling import Frugan
from frugan.cli.train import TrainOptions
from frugan.recipe.loading import load_recipe
from training.pictures import write_pictures, write_recipe


@pytest.mark.parametrize(
    ("options", "subset", "holdout"),
    [
        (TrainOptions(subset=4), 4, None),
        (TrainOptions(holdout="0.1"), None, 0.1),
        (TrainOptions(overrides=["data.subset=9"], subset=4, holdout="500"), 4, 500),
        (TrainOptions(holdout="no folder"), None, "no folder"),
    ],
)
def test_parts_are_fields_of_the_recipe(options: TrainOptions, subset: int | None, holdout: object) -> None:
    _, fields = options.recipe_and_overrides
    data = load_recipe("biggan-digits-32", fields).data
    assert (data.subset, data.holdout) == (subset, holdout)


def test_a_folder_of_test_pictures_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'a "test"').mkdir()
    monkeypatch.chdir(tmp_path)
    _, fields = TrainOptions(holdout='a "test"').recipe_and_overrides
    assert load_recipe("biggan-digits-32", fields).data.holdout == str(tmp_path / 'a "test"')


def test_small_pictures_are_left_out_and_named_each_time(tmp_path: Path, frugan: Frugan) -> None:
    source, out = write_pictures(tmp_path / "pictures"), str(tmp_path / "out")
    Image.new("RGB", (20, 20)).save(source / "hell" / "small.png")
    words = ["prepare", str(source), out, "--resolution", "32"]
    line = "1 picture left out, smaller than 32 x 32: hell/small.png"
    few = frugan("prepare", str(source), str(tmp_path / "few"), "--resolution", "32")
    assert few.returncode == 0, few.stderr
    assert f"{line} (data.allow_upscale=true enlarges " in few.stderr
    Image.new("RGB", (20, 20)).save(source / "hell" / "smaller.png")
    refused = frugan(*words)
    assert refused.returncode == 2
    assert "--leave-out-small" in refused.stderr
    line = "2 pictures left out, smaller than 32 x 32: hell/small.png, hell/smaller.png"
    for _ in range(2):
        prepared = frugan(*words, "--leave-out-small")
        assert prepared.returncode == 0, prepared.stderr
        assert prepared.stderr.count(line) == 1
        assert "12 pictures of 32 pixels, 2 classes" in prepared.stdout
    both = frugan(*words, "--leave-out-small", "--allow-upscale")
    assert both.returncode == 2
    assert "--allow-upscale with --leave-out-small" in both.stderr


def test_a_run_keeps_its_parts(tmp_path: Path, frugan: Frugan) -> None:
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    words = ["--data", str(write_pictures(tmp_path / "pictures")), "--out", str(run), "--device", "cpu"]
    began = frugan("train", recipe, "training.duration=1 steps", *words, "--subset", "4", "--holdout", "0.2")
    assert began.returncode == 0, began.stderr
    assert "4 of 12 pictures trained on, 2 of each of 2 classes" in began.stderr
    kept = json.loads((run / "recipe.json").read_text("utf-8"))["data"]
    assert (kept["subset"], kept["holdout"]) == (4, 0.2)
    other = frugan("train", recipe, "training.duration=1 steps", *words, "--subset", "5", "--holdout", "0.2")
    assert other.returncode == 2
    assert "data.subset: 4 in the run, 5 now" in other.stderr
