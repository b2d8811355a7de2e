"""DeepFaceLab's options under its own names, as words of the command line."""

import pytest

from frugan.errors import BadInput
from frugan.faces.saehd.leras_options import ORDER
from frugan.recipe.loading import as_given, load_recipe

RECIPE = "saehd-df-ud-256"
NOTHING_STANDS_FOR = {"models_opt_on_gpu", "write_preview_history"}
VALUES = {"resolution": "128", "face_type": "f", "archi": "df-ud", "ct_mode": "rct", "gan_patch_size": "16"}
NUMBERS = {"batch_size": "6", "target_iter": "9", "autobackup_hour": "2", "ae_dims": "128", "gan_dims": "8"}
SIZES = {"e_dims": "32", "d_dims": "32", "d_mask_dims": "16"}
POWERS = ("random_hsv_power", "true_face_power", "face_style_power", "bg_style_power", "gan_power")


@pytest.mark.parametrize("name", [option for option in ORDER if option not in NOTHING_STANDS_FOR])
def test_every_option_has_words_that_a_recipe_takes(name: str) -> None:
    value = (VALUES | NUMBERS | SIZES | dict.fromkeys(POWERS, "0.1")).get(name, "y")
    words, lines = as_given(RECIPE, [f"{name}={value}"])
    assert lines == [f"{name}={value} is {' '.join(words)} here"]
    assert load_recipe(RECIPE, [f"{name}={value}"]) == load_recipe(RECIPE, words)
    key, _, ours = words[0].partition("=")
    assert "." in key
    assert ours


@pytest.mark.parametrize("name", sorted(NOTHING_STANDS_FOR))
def test_an_option_that_nothing_stands_for_is_left_out_with_a_line(name: str) -> None:
    words, lines = as_given(RECIPE, [f"{name}=y", "batch_size=6"])
    assert words == ["training.batch=6"]
    assert lines[0] == f"{name}=y is left out: nothing stands for it here"
    assert load_recipe(RECIPE, [f"{name}=y"]) == load_recipe(RECIPE)


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("lr_dropout=n", ["optimizers.default.dropout=none", "optimizers.default.period=none"]),
        ("lr_dropout=cpu", ["optimizers.default.dropout=0.3", "optimizers.default.period=500"]),
        ("adabelief=n", ["optimizers.default.kind=rmsprop"]),
        ("clipgrad=no", ["optimizers.default.clip_norm=none"]),
        ("target_iter=0", ["training.duration=endless"]),
        ("autobackup_hour=0", ["saving.backup_every=none", "saving.keep_backups=24"]),
        ("random_warp=N", ["objective.random_warp=false"]),
    ],
)
def test_values_as_they_are_typed_there(word: str, ours: list[str]) -> None:
    assert as_given(RECIPE, [word])[0] == ours


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lr_dropout=maybe", "lr_dropout=maybe: expected y or n"),
        ("target_iter=1k", "target_iter=1k: expected a whole number; 0: none"),
        ("models_opt_on_gpu=maybe", "models_opt_on_gpu=maybe: expected y or n"),
        ("batchsize=4", "batchsize: unknown key"),
    ],
)
def test_values_and_options_that_are_none(word: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_recipe(RECIPE, [word])


def test_other_families_have_words_of_their_own() -> None:
    with pytest.raises(BadInput, match="batch_size: unknown key"):
        load_recipe("biggan-digits-32", ["batch_size=4"])
