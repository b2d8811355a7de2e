"""Options of BigGAN-PyTorch as recipe fields and back; what has no counterpart is refused by its name."""

from typing import Any

import pytest

from frugan.engine.durations import Duration
from frugan.errors import BadInput
from frugan.families.biggan.release_options import DEFAULTS, network_values, training_values
from frugan.families.biggan.release_recipe import options_of
from frugan.recipe.loading import load_recipe, parse_recipe
from frugan.recipe.recipe import Recipe
from frugan.recipes import built_in
from parity.golden import CASES, Case

COMPLETE = {**DEFAULTS, "resolution": 128, "n_classes": 1000, "num_D_steps": 1}
BS256X8 = {
    **COMPLETE,
    "batch_size": 256,
    "num_G_accumulations": 8,
    "num_D_accumulations": 8,
    "G_lr": 1e-4,
    "D_lr": 4e-4,
    "G_nl": "inplace_relu",
    "D_nl": "inplace_relu",
    "SN_eps": 1e-6,
    "adam_eps": 1e-6,
    "G_shared": True,
    "hier": True,
    "dim_z": 120,
    "shared_dim": 128,
    "G_ch": 96,
    "D_ch": 96,
    "ema": True,
    "use_ema": True,
    "ema_start": 20000,
    "save_every": 1000,
    "num_best_copies": 5,
    "test_every": 2000,
    "G_eval_mode": True,
}


def recipe_of(options: dict[str, Any]) -> Recipe:
    return parse_recipe(
        {"family": "biggan", "networks": network_values(options), **training_values(options)}, "options"
    )


def same_average(one: Recipe, other: Recipe) -> bool:
    starts = {recipe.ema.start.steps(recipe.training.batch) for recipe in (one, other)}
    return one.ema.decay == other.ema.decay and len(starts) == 1


def test_the_published_script_is_the_published_recipe() -> None:
    recipe, expected = recipe_of(BS256X8), load_recipe("biggan-imagenet-128")
    assert recipe.networks == expected.networks
    assert recipe.optimizer_settings() == expected.optimizer_settings()
    assert recipe.training.batch == expected.training.batch
    assert same_average(recipe, expected)
    assert recipe.objective == expected.objective
    assert scoring(recipe) == scoring(expected)


def scoring(recipe: Recipe) -> dict[str, Any]:
    """How it is scored while it trains, the interval in steps."""
    assert isinstance(recipe.evaluation.every, Duration)
    values = recipe.evaluation.model_dump(mode="json")
    return values | {"every": recipe.evaluation.every.steps(recipe.training.batch)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {"every": 2000, "metrics": ["is", "fid"], "samples": 50000, "statistics": "running", "keep_best": 5}),
        ({}, {"network": "inception-torchvision", "best_by": "is_mean"}),
        ({"which_best": "FID", "G_eval_mode": False}, {"best_by": "fid", "statistics": "batch"}),
        ({"which_best": "FID", "no_fid": True}, {"best_by": "is_mean", "metrics": ["is"]}),
        ({"accumulate_stats": True}, {"statistics": "standing", "standing_batches": 16}),
        ({"num_inception_images": 3}, {"samples": 10}),
    ],
)
def test_an_imported_run_is_scored_as_it_was(change: dict[str, Any], expected: dict[str, Any]) -> None:
    found = scoring(recipe_of(BS256X8 | change))
    assert {name: found[name] for name in expected} == expected


def test_a_run_that_was_never_scored_is_not() -> None:
    assert recipe_of(BS256X8 | {"test_every": 0}).evaluation.every is None


@pytest.mark.parametrize("name", CASES)
def test_recorded_configurations(name: str) -> None:
    case = Case.load(name)
    options = {**DEFAULTS, **case.options}
    options["num_G_accumulations"] = options["num_D_accumulations"]
    networks = Recipe.model_validate(
        {"family": "biggan", "networks": network_values(options), **training_values(options)}
    ).networks
    ours = case.networks
    if options["resolution"] == 32:
        ours = ours.model_copy(update={"reference_attention_at_32": bool(ours.discriminator_attention)})
    if options["model"] == "BigGAN":
        ours = ours.model_copy(update={"blocks_per_stage": 2})  # deep ones alone have them
    assert networks == ours


def its_programs(name: str) -> bool:
    """Whether that program could train a recipe's networks."""
    recipe = load_recipe(name)
    networks = recipe.networks.model_dump()
    return recipe.family == "biggan" and networks["resolution"] <= 256 and bool(networks["spectral_norm"])


@pytest.mark.parametrize("name", [name for name in built_in() if its_programs(name)])
def test_there_and_back(name: str) -> None:
    """Of every recipe that the program could have trained: the same networks and optimizers come back."""
    recipe = load_recipe(name)
    values = recipe.model_dump(mode="json")
    values["ema"]["start"] = recipe.ema.start.steps(recipe.training.batch)
    adam = {key: of.model_dump() for key, of in recipe.optimizer_settings().items()}
    options, lines = options_of(values, adam)
    if recipe.objective.model_dump()["loss"] != "hinge":
        assert "objective.loss: that program has no option for it" in lines
        return
    again = recipe_of({**DEFAULTS, **options})
    frozen = recipe.networks.model_copy(update={"frozen_discriminator_blocks": 0})
    assert again.networks == frozen
    assert again.optimizer_settings() == recipe.optimizer_settings()
    assert same_average(again, recipe)
    assert (again.training.batch, again.training.normalisation_batch) == (
        recipe.training.batch,
        recipe.training.normalisation_batch,
    )


def test_optimizers_of_another_kind_are_told() -> None:
    words = ["optimizers.G.kind=sgd", "optimizers.G.learning_rate=0.1"]
    recipe = load_recipe("biggan-imagenet-128", words)
    kinds = {key: of.model_dump() for key, of in recipe.optimizer_settings().items()}
    values = recipe.model_dump(mode="json")
    values["ema"]["start"] = 0
    options, lines = options_of(values, kinds)
    assert lines[0] == "optimizers.G: that program has Adam alone, no sgd; it begins with fresh statistics"
    assert "G_lr" not in options
    assert options["D_lr"] == 4e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm_style": "in"}, "norm_style 'in': instance, group, layer or no normalisation is not built"),
        ({"norm_style": "nonorm"}, "norm_style 'nonorm'"),
        ({"norm_style": "gn"}, "norm_style 'gn'"),
        ({"G_param": "conv"}, "G_param 'conv': a generator without spectral norm is not built here; expected SN"),
        ({"D_param": "conv"}, "D_param 'conv': a discriminator without spectral norm"),
        ({"cross_replica": True}, "cross_replica True"),
        ({"G_nl": "selu"}, "G_nl 'selu': other activations"),
        ({"model": "BigGANdeep", "G_depth": 1, "D_depth": 2}, "G_depth 1: expected 2"),
        ({"model": "Other"}, "model 'Other': expected one of BigGAN, BigGANdeep"),
        ({"num_G_SVs": 2}, "num_G_SVs 2, num_D_SVs 1: both networks have the same number here"),
        ({"num_D_SV_itrs": 3}, "num_G_SV_itrs 1, num_D_SV_itrs 3"),
        ({"G_attn": "a"}, "G_attn 'a': expected sides such as 64 or 32_64, or 0"),
        ({"G_ch": 2.5}, "G_ch 2.5: expected a whole number"),
        ({"G_ch": -1}, "G_ch -1: expected a whole number"),
        ({"hier": "yes"}, "hier 'yes': expected True or False"),
        ({"BN_eps": [[]]}, "BN_eps a list: expected a number"),
        ({"G_init": "he"}, "G_init 'he': expected one of ortho, N02, xavier, glorot"),
    ],
)
def test_networks_that_are_not_built_here(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message.replace("[", r"\[")):
        network_values(BS256X8 | change)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["networks.resolution=512"], "networks.resolution 512: BigGAN-PyTorch has no such discriminator"),
        (["networks.channels=1"], "networks.channels 1: BigGAN-PyTorch draws pictures in colour only"),
        (["networks.spectral_norm=false"], "networks.spectral_norm false: BigGAN-PyTorch has no such discriminator"),
    ],
)
def test_networks_that_it_does_not_build(words: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        options_of(load_recipe("biggan-imagenet-128", words).model_dump(mode="json"), {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"which_train_fn": "dummy"}, "which_train_fn 'dummy': that program then trains nothing"),
        ({"G_fp16": True}, "G_fp16 True: its half-precision"),
        ({"D_mixed_precision": True}, "D_mixed_precision True"),
        ({"G_batch_size": 512}, "G_batch_size 512: the generator is updated on batches of another size than the disc"),
        ({"num_G_accumulations": 4}, "num_G_accumulations 4, num_D_accumulations 8: the generator is updated on 1,024"),
        ({"batch_size": None}, "batch_size None: expected a whole number"),
    ],
)
def test_trainings_that_are_not_done_here(change: dict[str, Any], message: str) -> None:
    network_values(BS256X8 | change)
    with pytest.raises(BadInput, match=message):
        training_values(BS256X8 | change)


@pytest.mark.parametrize("name", ["norm_style", "G_ch", "D_attn", "mybn", "shared_dim"])
def test_missing_options(name: str) -> None:
    with pytest.raises(BadInput, match=f"option {name} is missing"):
        network_values({key: value for key, value in BS256X8.items() if key != name})


def test_attention_where_no_block_ends_is_passed_over_as_that_program_does() -> None:
    at = network_values(BS256X8 | {"resolution": 32, "G_attn": "64", "D_attn": "0"})
    assert (at["generator_attention"], at["discriminator_attention"]) == ([], [])
    assert network_values(BS256X8 | {"resolution": 32, "D_attn": "16"})["reference_attention_at_32"] is True
    assert network_values(BS256X8 | {"G_attn": "32_64"})["generator_attention"] == [32, 64]


def test_its_own_batch_norm_and_no_average() -> None:
    assert network_values(BS256X8 | {"mybn": True})["running_variance"] == "biased"
    assert recipe_of(BS256X8 | {"ema": False}).ema.decay == 0
    assert network_values(BS256X8 | {"shared_dim": 0})["shared_embedding"] == 120
    assert network_values(BS256X8 | {"G_shared": False, "hier": False})["shared_embedding"] is None
