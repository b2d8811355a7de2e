"""DeepFaceLab's options under its own names, as words of the command line."""

import pytest

from frugan.engine.durations import ENDLESS
from frugan.errors import BadInput
from frugan.faces.saehd.leras_options import ORDER
from frugan.recipe.loading import as_given, load_recipe
from frugan.recipes import built_in

RECIPE = "saehd-df-ud-256"
LEFT_OUT = {
    "models_opt_on_gpu": "--use optimizer-on-host puts it into the computer's",
    "write_preview_history": "previews are always kept",
    "learn_mask": "masks are always learned here",
}
VALUES = {"resolution": "128", "face_type": "f", "archi": "df-ud", "ct_mode": "rct", "gan_patch_size": "16"}
NUMBERS = {"batch_size": "6", "target_iter": "9", "autobackup_hour": "2", "ae_dims": "128", "gan_dims": "8"}
SIZES = {"e_dims": "32", "d_dims": "32", "d_mask_dims": "16"}
POWERS = ("random_hsv_power", "true_face_power", "face_style_power", "bg_style_power", "gan_power")


@pytest.mark.parametrize("name", [option for option in ORDER if option not in LEFT_OUT])
def test_every_option_has_words_that_a_recipe_takes(name: str) -> None:
    value = (VALUES | NUMBERS | SIZES | dict.fromkeys(POWERS, "0.1")).get(name, "y")
    words, lines = as_given(RECIPE, [f"{name}={value}"])
    assert lines == [f"{name}={value} is {' '.join(words)} here"]
    assert load_recipe(RECIPE, [f"{name}={value}"]) == load_recipe(RECIPE, words)
    key, _, ours = words[0].partition("=")
    assert "." in key
    assert ours


@pytest.mark.parametrize("name", LEFT_OUT)
def test_an_option_that_nothing_stands_for_is_left_out_with_a_line_that_says_why(name: str) -> None:
    words, lines = as_given(RECIPE, [f"{name}=y", "batch_size=6"])
    assert words == ["training.batch=6"]
    assert lines[0].startswith(f"{name}=y is left out: ")
    assert LEFT_OUT[name] in lines[0]
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
        ("batchsize=4", r"batchsize: unknown key \(did you mean batch_size\?\)"),
        ("batch_sz=4", r"batch_sz: unknown key \(did you mean batch_size\?\)"),
        ("iterations=500", r"iterations: unknown key \(did you mean target_iter\?\)"),
        ("iteration=500", r"iteration: unknown key \(did you mean target_iter\?\)"),
        ("bs=8", r"bs: unknown key \(did you mean batch_size\?\)"),
        ("super_warp=y", r"super_warp: unknown key; .* the table of options in docs/faces\.md"),
        ("networks.batch_sz=4", r"networks.batch_sz: unknown key \(did you mean networks"),
    ],
)
def test_values_and_options_that_are_none(word: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_recipe(RECIPE, [word])


def test_where_a_rate_falls_until_the_end_there_must_be_one() -> None:
    """What is wrong is said of what was typed, and what is advised is taken."""
    told = r"target_iter=0 \(training\.duration=endless here\):\nthis recipe needs an end, and endless has none"
    with pytest.raises(BadInput, match=told) as refused:
        load_recipe("saehd-demo-64", ["target_iter=0"])
    advised = "optimizers.default.final_learning_rate=none"
    assert f"or {advised}, which stays" in str(refused.value)
    assert "burn_in" not in str(refused.value)
    assert load_recipe("saehd-demo-64", ["target_iter=0", advised]).training.duration == ENDLESS


ON_A_PROCESSOR = {"saehd-demo-64", "amp-small-64", "xseg-small"}


@pytest.mark.parametrize("name", [name for name in built_in() if name.startswith(("saehd", "amp", "quick96", "xseg"))])
def test_the_recipes_for_faces_may_be_endless_but_those_for_a_processor(name: str) -> None:
    """So docs/faces.md says."""
    words = ["training.duration=endless"]
    if name in ON_A_PROCESSOR:
        with pytest.raises(BadInput, match="needs an end"):
            load_recipe(name, words)
    else:
        assert load_recipe(name, words).training.duration == ENDLESS


@pytest.mark.parametrize(
    ("recipe", "word", "hint"),
    [
        ("quick96", "batch-size=4", "batch_size"),
        ("quick96", "iterations=500", "training.duration"),
        ("xseg", "target_iter=500", "training.duration"),
        ("amp-256", "iterations=500", "target_iter"),
    ],
)
def test_misspelt_options_of_the_other_models_get_a_hint(recipe: str, word: str, hint: str) -> None:
    with pytest.raises(BadInput, match=rf"unknown key \(did you mean {hint}\?\)"):
        load_recipe(recipe, [word])


def test_other_families_have_words_of_their_own() -> None:
    with pytest.raises(BadInput, match="batch_size: unknown key"):
        load_recipe("biggan-digits-32", ["batch_size=4"])
