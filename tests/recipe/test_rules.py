"""Fields that follow from a recipe's resolution and batch."""

import pytest

from frugan.engine.run.training import normalisation_group
from frugan.errors import BadInput
from frugan.families.stylegan2.config import StyleGAN2Networks, StyleGAN2Objective
from frugan.recipe.loading import load_recipe, rule_followed
from frugan.recipe.recipe import Recipe
from frugan.setup.recipe_setup import training_of

AUTO = "stylegan2-auto"
PUBLISHED = {64: (32, 0.0256), 128: (32, 0.1024), 256: (16, 0.8192), 512: (8, 6.5536), 1024: (4, 52.4288)}
"""Resolution -> batch and strength of R1 that the release chooses on one card."""


def chosen(recipe: Recipe) -> tuple[object, ...]:
    networks, objective = recipe.networks, recipe.objective
    assert isinstance(networks, StyleGAN2Networks)
    assert isinstance(objective, StyleGAN2Objective)
    rates = {settings.learning_rate for settings in recipe.optimizers.values()}
    return recipe.training.batch, objective.r1_gamma, networks.channel_base, rates, recipe.ema.half_life_images


@pytest.mark.parametrize("resolution", PUBLISHED)
def test_the_published_choices(resolution: int) -> None:
    batch, gamma = PUBLISHED[resolution]
    base, rate = (32768 if resolution >= 512 else 16384), (0.002 if resolution == 1024 else 0.0025)
    recipe = load_recipe(AUTO, [f"networks.resolution={resolution}"])
    assert chosen(recipe) == (batch, gamma, base, {rate}, batch * 10_000 / 32)
    assert recipe.training.normalisation_batch == 4
    # path lengths see half of the batch, at 1024 pixels 2: their networks normalise nothing, so groups may be smaller
    assert training_of(recipe).group == 4
    in_threes = recipe.model_copy(update={"training": recipe.training.model_copy(update={"normalisation_batch": 3})})
    with pytest.raises(BadInput, match=f"phase G sees {batch} samples"):
        _ = training_of(in_threes).group


def test_a_phase_without_groups_may_see_part_of_one() -> None:
    """At 1024 pixels path length sees 2 pictures of the batch of 4; only the discriminator compares them, by fours."""
    recipe = load_recipe(AUTO, ["networks.resolution=1024"])
    training = training_of(recipe)
    assert training.group == 4
    looks = tuple(phase for phase in training.phases if phase.name in ("G_path", "D_r1"))
    with pytest.raises(BadInput, match="phase D_r1 sees 6 samples of the batch of 6: not whole groups of 4"):
        normalisation_group(training.build("meta"), looks, 6, 4)


@pytest.mark.parametrize(("resolution", "gamma"), [(128, 0.5), (256, 2.0), (512, 8.0), (1024, 32.0)])
def test_stylegan3s_proposals(resolution: int, gamma: float) -> None:
    """Four times the strength of R1 for twice the side, at batches of 32."""
    recipe = load_recipe("stylegan3-t-256", [f"networks.resolution={resolution}"])
    assert (recipe.training.batch, recipe.objective.model_dump()["r1_gamma"]) == (32, gamma)
    smaller = load_recipe("stylegan3-t-256", [f"networks.resolution={resolution}", "training.batch=6"])
    assert smaller.training.normalisation_batch == 3
    assert smaller.ema.half_life_images == 1875
    assert smaller.networks.model_dump()["magnitude_decay"] == pytest.approx(0.5 ** (6 / 20_000), abs=1e-6)


def test_as_it_ships_it_is_what_the_rule_says() -> None:
    for name in ("t-256", "r-256"):
        shipped = load_recipe(f"stylegan3-{name}")
        assert shipped == load_recipe(f"stylegan3-{name}", ["networks.resolution=256"])
    assert load_recipe(AUTO) == load_recipe(AUTO, ["networks.resolution=256"])


def test_a_batch_of_one_s_own_changes_what_goes_by_it() -> None:
    recipe = load_recipe(AUTO, ["networks.resolution=128", "training.batch=6"])
    assert chosen(recipe) == (6, round(0.0002 * 128**2 / 6, 6), 16384, {0.0025}, 1875)
    assert recipe.training.normalisation_batch == 3


def test_what_is_given_stays() -> None:
    words = ["networks.resolution=512", "objective.r1_gamma=3", "networks.channel_base=8192"]
    batch, gamma, base, *_ = chosen(load_recipe(AUTO, words))
    assert (batch, gamma, base) == (8, 3, 8192)


def test_other_changes_and_other_recipes_move_nothing() -> None:
    assert load_recipe(AUTO, ["objective.r1_gamma=3"]).training.batch == 16
    assert load_recipe("stylegan2-ffhq-256", ["networks.resolution=64"]).training.batch == 64


def test_what_follows_is_told() -> None:
    (line,) = rule_followed(AUTO, ["networks.resolution=64"])
    assert "by the recipe's rule auto, where nothing else is said: training.batch=32" in line
    assert rule_followed(AUTO, []) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["networks.resolution=100"], "resolution 100: expected 8, 16, 32"),
        (["networks.resolution=0"], "resolution 0: expected 8"),
        (["networks.resolution=big"], "networks.resolution"),
        (["training.batch=-2"], "training.batch"),
        (["rule=fast", "training.batch=8"], "rule 'fast': StyleGAN2 has one rule, auto"),
    ],
)
def test_bad_words_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_recipe(AUTO, words)


def test_a_family_without_rules_refuses_one() -> None:
    with pytest.raises(BadInput, match="rule 'auto': biggan has none"):
        load_recipe("biggan-digits-32", ["rule=auto", "training.batch=32"])
