"""How converted networks are fine-tuned: by the settings of the recipe for it that ships."""

from typing import Any

from frugan.recipe_loading import load_recipe

RECIPE = "biggan-finetune-128"


def fine_tuning() -> dict[str, Any]:
    """All sections of that recipe but what it is and its networks."""
    values = load_recipe(RECIPE).model_dump(mode="json")
    return {name: value for name, value in values.items() if name not in ("family", "rule", "about", "networks")}
