"""Recipes of ordinary size by which predictions are measured on a card: small enough for one of 4 GiB."""

from collections.abc import Mapping
from types import MappingProxyType

from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe

MEASURED: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "biggan": ("biggan-cifar10-32", ("training.batch=100",)),
        "saehd": ("saehd-df-ud-256", ()),
        "stylegan2": ("stylegan2-cifar10", ()),
    }
)
"""Family -> built-in recipe, and fields by which its batch is more than one micro-batch."""


def measured_recipe(family: str) -> tuple[str, Recipe] | None:
    """The recipe of a family, and its name; None: the family has none here."""
    if family not in MEASURED:
        return None
    name, overrides = MEASURED[family]
    return name, load_recipe(name, overrides)
