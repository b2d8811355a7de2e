"""`frugan plan` by exit code and output."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli.calling import Frugan
from frugan.recipe.loading import overrides_in_words
from training.pictures import write_pictures


def test_plan_for_a_program_and_for_a_person(frugan: Frugan) -> None:
    ended = frugan("plan", "biggan-digits-32", "--memory", "6GiB", "--json")
    assert ended.returncode == 0, ended.stderr
    values = json.loads(ended.stdout)
    assert values["fits"] is True
    assert values["peak_bytes"] == sum(values["categories"].values()) < 6 * 2**30
    told = frugan("plan", "biggan-digits-32", "--memory", "6GiB", "--card", "rtx-3060", "--price-per-hour", "0.2")
    assert told.returncode == 0, told.stderr
    for words in (
        "biggan-digits-32 fits 6.00 GiB",
        "total",
        "the peak is in",
        ", sample grids 0.",
        "an estimate",
        "Next: frugan train",
    ):
        assert words in told.stdout


def test_options_under_the_originals_names_are_told_of_as_in_training(frugan: Frugan) -> None:
    words = ["saehd-demo-64", "models_opt_on_gpu=n", "batch_size=4", "autobackup_hour=2", "--card", "rtx-3060"]
    ended = frugan("plan", *words)
    assert ended.returncode == 0, ended.stderr
    for line in overrides_in_words(words[0], words[1:4]):
        assert line in ended.stdout + ended.stderr
    assert "models_opt_on_gpu=n is left out: " in ended.stdout + ended.stderr
    assert "batch_size=4 is training.batch=4 here" in ended.stdout + ended.stderr


def test_a_recipe_that_freezes_layers_is_trained_from_weights(frugan: Frugan) -> None:
    told = frugan("plan", "stylegan2-finetune-256", "--card", "rtx-3060")
    assert "Next: frugan train stylegan2-finetune-256 --init WEIGHTS --data PICTURES --out RUN" in told.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--memory", "six"), "'six' is not a size"),
        (("--memory", "100MiB"), "the parameters alone take"),
        (("--largest", "width"), "together with --memory"),
        (("--largest", "12GiB"), "such as --largest batch --memory 12GiB"),
        (("--largest", "depth", "--memory", "6GiB"), "expected resolution, batch, width"),
        (("--largest", "btach", "--memory", "6GiB"), "(did you mean batch?)"),
        (("--largest",), "--largest: its value is missing (resolution, batch or width: find"),
        (("--largest", "resolution", "--memory", "100MiB"), "not even networks.resolution="),
        (("--largest", "batch", "--memory", "6GiB", "--gpus", "100000"), "leaves some card without a normalisation"),
        (("--card", "foo"), "'foo' is not known; known are "),
        (("--use", "recompute", "--use", "keep-products"), "contradict each other"),
        (("--card", "riva-128"), "'riva-128' is not known"),
        (("--gpus", "5"), "at least one to each card"),
        (("--gpus", "0"), "expected at least one"),
        (("--gpus", "2", "--link", "8", "--card", "rtx-3060"), "with its unit"),
        (("--link", "8GB/s"), "between several cards"),
        (("--micro-batch", "33"), "micro-batch 33"),
        (
            ("--card", "gtx-1080", "training.tf32=true"),
            "training.tf32=true: for NVIDIA cards of compute capability 8.0",
        ),
        (("training.batch=7",), "normalisation_batch"),
    ],
)
def test_plans_that_cannot_be(frugan: Frugan, words: tuple[str, ...], message: str) -> None:
    ended = frugan("plan", "biggan-digits-32", *words)
    assert ended.returncode == 2
    assert message in ended.stderr.replace("\n", " ")


def test_a_large_picture_is_looked_at_without_a_word(frugan: Frugan, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=12)
    Image.new("1", (9500, 9500)).save(next(pictures.iterdir()) / "large.png")  # Pillow would warn of an attack
    ended = frugan("plan", "--data", str(pictures), "--for", "20min", "networks.resolution=32")
    assert (ended.returncode, "attack" in ended.stderr) == (0, False), ended.stderr
    assert "25 of 40 to 9,500 pixels (median 40)" in ended.stdout


def test_pictures_are_looked_at_for_a_recipe(frugan: Frugan, tmp_path: Path) -> None:
    ramp = np.arange(0, 4096, 4, dtype=np.uint16).reshape(32, 32)  # 12 bits in files of 16
    for at in range(20):
        Image.fromarray(ramp).save(tmp_path / f"{at}.png")
    ended = frugan("plan", "biggan-small-32", "--data", str(tmp_path), "--card", "rtx-3060", "--micro-batch", "32")
    assert ended.returncode == 0, ended.stderr
    assert "warning: 20 pictures of 16 bits use 0 to 4,092 of 65,535: almost black" in ended.stdout
    assert "pictures: 20 of 32 pixels, no classes, all grey" in ended.stdout
    assert "grey: networks.channels=1 draws grey pictures" in ended.stdout
    assert "micro-batch" in ended.stdout
    known = frugan(
        *("plan", "biggan-small-32", "networks.channels=1", "data.range=4095", "--data", f"images={tmp_path}"),
        *("--card", "rtx-3060", "--micro-batch", "32"),
    )
    assert "of 16 bits" not in known.stdout
    assert "grey:" not in known.stdout
    for words, message in (
        (("saehd-demo-64", "--data", str(tmp_path)), "this recipe takes src and dst: leave --data out"),
        (("saehd-demo-64", "--data", str(tmp_path / "gone")), "gone: does not exist"),
        (("biggan-small-32", "--data", f"src={tmp_path}"), "this recipe takes images, not src"),
    ):
        refused = frugan("plan", *words)
        assert (refused.returncode, message in refused.stderr.replace("\n", " ")) == (2, True), refused.stderr


def test_what_is_chosen_where_no_recipe_is_named(frugan: Frugan, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=12)
    ended = frugan("plan", "--data", str(pictures), "--for", "20min", "networks.resolution=32")
    assert ended.returncode == 0, ended.stderr
    assert "24 of 40 pixels, 2 classes of 12, in colour" in ended.stdout
    assert "biggan-small-32 at 32 pixels" in ended.stdout
    named = frugan("plan", "--data", f"images={pictures}", "--for", "20min", "--card", "rtx-3060", "--json")
    assert json.loads(named.stdout)["chosen"]["recipe"].startswith("biggan-small")
    two = frugan("plan", "--data", str(pictures), "--for", "5min", "--card", "rtx-3060x2")
    assert two.returncode == 0, two.stderr
    assert "cards: planned for one of the 2" in two.stdout
    for words, message in (
        ((), "no recipe and no pictures given"),
        (("--data", str(tmp_path / "none")), "does not exist"),
        (("--data", str(pictures), "--for", "soon"), "--for soon: expected a time such as 15min or 2h"),
        (("--data", str(pictures), "--for", ""), "--for '': expected a time such as 15min"),
        (("biggan-small-32", "--for", "3h"), "--for 3h: goes without a recipe"),
        (("biggan-small-32", "--init", "w"), "--init w: goes without a recipe"),
        (("--data", str(pictures), "--memory", "6GiB"), "--memory 6GiB: for a card, and none is here"),
        (("--memory", "6GiB"), "no recipe and no pictures given"),
        (("--data", str(pictures), "--calibrate"), "--calibrate: for a card, and none is here"),
        (("--data", str(pictures), "--use", "recompute"), "--use recompute: for a card, and none is here"),
        (("--data", str(pictures), "--gpus", "0"), "--gpus 0: for a card, and none is here"),
    ):
        refused = frugan("plan", *words)
        assert refused.returncode == 2
        assert message in refused.stderr.replace("\n", " ")
