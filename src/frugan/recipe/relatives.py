"""Relatives of a recipe, which differ from it in size alone, to find those that fit a card."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.recipes import built_in

Largest = Literal["resolution", "batch", "width"]
"""Sizes in which relatives differ."""
MOST_BATCH = 16_384
"""Largest batch that is a relative, eight times BigGAN's: of larger ones a training would have too few updates."""


def with_networks(recipe: Recipe, fields: Mapping[str, Any]) -> Recipe:
    """Return a recipe with other fields of its networks.

    Raises:
        ValueError: the fields do not fit the rest.
    """
    networks = recipe.networks.model_dump() | dict(fields)
    return recipe.model_validate(recipe.model_dump(mode="json") | {"networks": networks})


def with_training(recipe: Recipe, **fields: Any) -> Recipe:
    """Return a recipe with other training settings.

    Raises:
        ValueError: the fields do not fit the rest.
    """
    values = recipe.model_dump(mode="json")
    return recipe.model_validate(values | {"training": values["training"] | fields})


def relatives(recipe: Recipe, what: Largest) -> Iterator[tuple[tuple[str, ...], Recipe]]:
    """Relatives of a recipe, smallest first: overrides that give it, and the recipe itself."""
    if what == "batch":
        group = recipe.training.normalisation_batch or 1
        most = max(MOST_BATCH, recipe.training.batch)
        for exponent in range(14):
            for factor in (1, 1.5):
                batch = int(2**exponent * factor) * group
                if batch == 2**exponent * factor * group <= most:
                    yield (f"training.batch={batch}",), with_training(recipe, batch=batch)
        return
    for fields in recipe.kind.variants(recipe.networks).get(what, ()):
        try:
            yield tuple(f"networks.{key}={value}" for key, value in fields.items()), with_networks(recipe, fields)
        except ValueError:
            continue  # these do not fit the recipe's other fields


def of_resolution(recipe: Recipe, most: int) -> tuple[str, ...]:
    """Overrides that give a recipe its family's largest resolution of at most `most` pixels; (): there is none."""
    fitting = [words for words, other in relatives(recipe, "resolution") if _size(other, "resolution") <= most]
    return fitting[-1] if fitting else ()


def picture_resolutions() -> list[int]:
    """All resolutions, in order, of shipped recipes that draw pictures, and of their relatives."""
    resolutions: set[int] = set()
    for recipe in map(load_recipe, built_in()):
        if not recipe.shows_given:
            resolutions |= {
                _size(recipe, "resolution"),
                *(_size(other, "resolution") for _, other in relatives(recipe, "resolution")),
            }
    return sorted(resolutions)


def smaller_recipes(recipe: Recipe, precision: str) -> Iterator[tuple[tuple[str, ...], Recipe]]:
    """Recipes that need less memory: half precision, smaller groups, narrower or smaller networks."""
    if precision == "fp32" and recipe.training.precision == "fp32":
        yield ("training.precision=auto",), with_training(recipe, precision="auto")
    group = recipe.training.normalisation_batch or 1
    for smaller in (g for g in (group // 2, group // 4) if g >= 8 and recipe.training.batch % g == 0):
        yield (
            (f"training.normalisation_batch={smaller}",),
            with_training(recipe, normalisation_batch=smaller),
        )
    dimensions: tuple[Largest, ...] = ("width", "resolution")
    for what in dimensions:
        size = _size(recipe, what)
        below = [(words, other) for words, other in relatives(recipe, what) if _size(other, what) < size]
        yield from reversed(below[-3:])


def _size(recipe: Recipe, what: Largest) -> int:
    """Size of a recipe: pixels for "resolution", else the number of parameters."""
    if what == "resolution":
        needs = recipe.sources.values()
        return max(need.resolution for need in needs)
    return sum(p.numel() for n in recipe.kind.build(recipe.networks, "meta").values() for p in n.parameters())
