"""A family whose parts call things by different names is told so before anything runs."""

from dataclasses import replace

import pytest

from frugan.engine.run.training import networks_used
from frugan.families.biggan.family import BigGANFamily
from frugan.recipe.loading import load_recipe
from frugan.setup.recipe_setup import parameter_counts, training_of


def test_a_source_that_the_family_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = BigGANFamily.phases
    monkeypatch.setattr(
        BigGANFamily,
        "phases",
        lambda family, *config: tuple(replace(phase, sources=("pixels",)) for phase in usual(family, *config)),
    )
    with pytest.raises(ValueError, match="phase D reads the source 'pixels'; its `sources` names images"):
        training_of(load_recipe("biggan-digits-32"))


def test_a_network_that_is_kept_and_not_trained_is_counted_where_it_is_asked_for() -> None:
    recipe = load_recipe("saehd-demo-64")
    assert "patch_discriminator" not in parameter_counts(recipe)
    assert parameter_counts(recipe, also=("patch_discriminator",))["patch_discriminator"] > 0


def test_networks_that_are_not_built() -> None:
    recipe = load_recipe("biggan-digits-32")
    built = recipe.kind.build(recipe.networks, "meta")
    with pytest.raises(ValueError, match="phases use D; the family builds G"):
        networks_used({"G": built["G"]}, training_of(recipe).phases)
