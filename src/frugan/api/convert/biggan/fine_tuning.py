"""How converted networks are fine-tuned: by the settings of the recipe for it that ships."""

import json
from typing import Any

from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe

RECIPE = "biggan-finetune-128"


def fine_tuning() -> dict[str, Any]:
    """All sections of that recipe but what it is and its networks."""
    values = load_recipe(RECIPE).model_dump(mode="json")
    return {name: value for name, value in values.items() if name not in ("family", "rule", "about", "networks")}


def differing_networks(recipe: Recipe, *, discriminator: bool) -> list[tuple[str, str]]:
    """Fields of its networks that have to be set to these networks' values, but for the number of classes.

    Args:
        discriminator: whether there is one to start from; what does not know anything is not frozen.
    """
    theirs, ours = (each.networks.model_dump(mode="json") for each in (recipe, load_recipe(RECIPE)))
    frozen = "frozen_discriminator_blocks"
    if discriminator:
        theirs[frozen] = ours[frozen]
    values = {key: "none" if value is None else json.dumps(value) for key, value in theirs.items()}
    return [(key, values[key]) for key, value in theirs.items() if key != "classes" and ours[key] != value]
