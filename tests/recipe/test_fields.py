"""Every field of every recipe can be read about."""

import pytest

from frugan.recipe.loading import load_recipe, recipe_fields
from frugan.recipes import built_in
from tools import recipe_tables


@pytest.mark.parametrize("name", built_in())
def test_every_field_says_what_it_does_and_may_be(name: str) -> None:
    fields = recipe_fields(load_recipe(name))
    assert [field.key for field in fields if not field.description] == []
    assert [field.values for field in fields if "typing" in field.values or "[" in field.values] == []


def test_the_tables_of_the_docs_are_what_the_fields_say() -> None:
    page = recipe_tables.PAGE.read_text("utf-8")
    assert page == recipe_tables.with_tables(page), "run python -m tools.recipe_tables"
    for key in (
        "| `training.batch` |",
        "| `training.normalisation_batch` * |",
        "| `optimizers.NAME.beta1` * |",
        "| `objective.r1_gamma` |",
    ):
        assert key in page
    with pytest.raises(ValueError, match="expected <!-- fields"):
        recipe_tables.with_tables("no marks")


def test_values_are_as_they_are_typed() -> None:
    fields = {field.key: field for field in recipe_fields(load_recipe("biggan-digits-32", ["training.precision=bf16"]))}
    batch = fields["training.batch"]
    assert (batch.value, batch.default, batch.values, batch.changeable) == ("24", None, "whole number", True)
    precision = fields["training.precision"]
    assert (precision.value, precision.default) == ("bf16", "auto")
    assert precision.values == "auto | fp32 | fp16 | bf16"
    assert fields["networks.generator_attention"].value == "[]"
    assert fields["objective.augmentation.method"].values == "diffaugment | ada or none"
    assert fields["optimizers.D.learning_rate"].changeable
    assert fields["training.duration"].value == "1000 steps"
