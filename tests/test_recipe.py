"""Recipes: what ships is what the published launch scripts say."""

from pathlib import Path

import pytest

from frugan.engine.optimizers import AdamSettings
from frugan.errors import BadInput
from frugan.recipe import built_in, differences, load_recipe

EXPECTED = {
    # recipe: resolution, batch, group, D steps, G lr, D lr, beta2, attention, z, shared, adam eps, EMA start, init
    "biggan-imagenet-128": (128, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 120, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-imagenet-256": (256, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 140, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-imagenet-512": (512, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 128, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-ch64-imagenet-128": (128, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 120, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-deep-imagenet-128": (128, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 128, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-deep-imagenet-256": (256, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 128, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-deep-imagenet-512": (512, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 128, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-places365-128": (128, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 120, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-cifar10-32": (32, 50, 50, 4, 2e-4, 2e-4, 0.999, (), 128, None, 1e-8, "1k steps", "normal"),
    "sagan-imagenet-128": (128, 256, 16, 1, 1e-4, 4e-4, 0.999, (64,), 128, None, 1e-8, "2k steps", "xavier"),
    "sngan-imagenet-128": (128, 64, 8, 5, 2e-4, 2e-4, 0.9, (), 128, None, 1e-8, "0 steps", "xavier"),
}
PARAMETERS = {
    "biggan-imagenet-128": (70_433_988, 87_982_370),
    "biggan-imagenet-256": (82_235_844, 99_225_890),
    "biggan-imagenet-512": (82_296_804, 99_401_282),
    "biggan-ch64-imagenet-128": (31_978_628, 39_448_258),
    "biggan-deep-imagenet-128": (50_244_484, 34_590_210),
    "biggan-deep-imagenet-256": (55_736_708, 38_247_426),
    "biggan-deep-imagenet-512": (56_019_780, 38_301_122),
    "sagan-imagenet-128": (42_017_412, 39_448_258),
    "sngan-imagenet-128": (41_996_931, 30_005_013),
    "biggan-cifar10-32": (4_304_387, 4_207_361),
}
"""Counts of the originals, and of their mirrored extensions."""


def test_what_ships_is_what_is_checked_here() -> None:
    assert set(built_in()) == {*EXPECTED, "biggan-digits-32"}


@pytest.mark.parametrize("name", EXPECTED)
def test_settings(name: str) -> None:
    recipe = load_recipe(name)
    networks, training = recipe.networks.model_dump(), recipe.training
    g, d = recipe.optimizers["G"], recipe.optimizers["D"]
    assert isinstance(g, AdamSettings)
    assert isinstance(d, AdamSettings)
    found = (
        networks["resolution"],
        training.batch,
        training.normalisation_batch,
        recipe.objective.model_dump()["discriminator_steps"],
        g.learning_rate,
        d.learning_rate,
        g.beta2,
        networks["generator_attention"],
        networks["latent_size"],
        networks["shared_embedding"],
        g.eps,
        str(recipe.ema.start),
        networks["generator_initialisation"],
    )
    assert found == EXPECTED[name]
    assert (d.beta1, d.beta2, d.eps) == (g.beta1, g.beta2, g.eps) == (0.0, g.beta2, g.eps)
    assert networks["discriminator_attention"] == networks["generator_attention"]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_originals(name: str) -> None:
    recipe = load_recipe(name)
    built = recipe.kind.build(recipe.networks, "meta")
    assert tuple(sum(p.numel() for p in built[n].parameters()) for n in ("G", "D")) == PARAMETERS[name]


@pytest.mark.parametrize("name", built_in())
def test_a_resolved_recipe_reads_back_as_itself(name: str) -> None:
    from frugan.recipe import parse_recipe  # noqa: PLC0415

    recipe = load_recipe(name)
    again = parse_recipe(recipe.model_dump(mode="json"), "again")
    assert again == recipe
    assert differences(recipe, again) == {}


def test_overrides_are_typed_and_listed_as_differences() -> None:
    before = load_recipe("biggan-cifar10-32")
    words = [
        "networks.generator_attention=[16]",
        "training.duration=2k steps",
        "networks.shared_embedding=8",
        "optimizers.G.learning_rate=1e-3",
        "saving.backup_every=1k steps",
    ]
    after = load_recipe("biggan-cifar10-32", words)
    changed = {key: (str(d.after), d.changeable) for key, d in differences(before, after).items()}
    assert changed == {
        "networks.generator_attention": ("(16,)", False),
        "training.duration": ("2k steps", True),
        "networks.shared_embedding": ("8", False),
        "optimizers.G.learning_rate": ("0.001", True),
        "saving.backup_every": ("1k steps", True),
    }
    assert load_recipe("biggan-imagenet-128", ["networks.shared_embedding=none", "networks.hierarchical_latent=false"])


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('family = "biggan"\nunknown = 1\n', "utf-8")
    with pytest.raises(BadInput, match=r"unknown: unknown key"):
        load_recipe(str(path))
    with pytest.raises(BadInput, match="no such file"):
        load_recipe(str(tmp_path / "none.toml"))
