"""Recipe fields typed beside a conversion."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.recipe.toml import RECIPE_FILE, dump_recipe


def overridden(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe with `key.sub=value` words in force.

    Raises:
        BadInput: an unknown key, or a value out of range.
    """
    if not overrides:
        return recipe
    with TemporaryDirectory() as folder:
        path = Path(folder) / RECIPE_FILE
        path.write_text(dump_recipe(recipe), "utf-8", newline="\n")
        return load_recipe(str(path), overrides)
