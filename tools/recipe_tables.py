"""The tables of recipe fields in docs/recipe-fields.md, made from the fields themselves.

python -m tools.recipe_tables            # writes them between their marks
python -m tools.recipe_tables --check    # exits 1 where they are not what the fields say
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from frugan.engine.state.optimizer_settings import KINDS
from frugan.recipe.loading import RecipeField, fields_of, load_recipe, recipe_fields
from frugan.recipe.recipe import Recipe
from frugan.recipes import built_in

PAGE = Path(__file__).parents[1] / "docs" / "recipe-fields.md"
BEGIN, END = "<!-- fields: python -m tools.recipe_tables writes what follows -->", "<!-- end of fields -->"
SHARED = ("training", "data", "ema", "saving", "evaluation", "about")
OF_FAMILIES = ("networks", "objective")


def tables() -> str:
    """All tables, as Markdown."""
    recipes: dict[str, Recipe] = {}
    for name in built_in():
        recipe = load_recipe(name)
        recipes.setdefault(recipe.family, recipe)
    any_recipe = next(iter(recipes.values()))
    parts = ["### Every family", _table(recipe_fields(any_recipe, SHARED))]
    for kind, settings in KINDS.items():
        made = settings.model_validate({"learning_rate": 1.0})
        parts += [f"### Optimizers of kind `{kind}`", _table(fields_of(made, "optimizers.NAME"))]
    for family, recipe in recipes.items():
        parts += [f"### Family `{family}`", _table(recipe_fields(recipe, OF_FAMILIES))]
    return "\n\n".join(parts)


def with_tables(page: str) -> str:
    """A page with the tables between their marks.

    Raises:
        ValueError: it has no marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: expected {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _table(fields: Iterable[RecipeField]) -> str:
    rows = [("field", "may be", "default", "what it does"), ("---",) * 4]
    for field in fields:
        key = f"`{field.key}`" + ("" if field.changeable else " *")
        default = "-" if field.default is None else f"`{field.default}`" if field.default else ""
        rows.append((key, field.values.replace(" | ", ", "), default, field.description))
    return "\n".join(_row(row) for row in rows)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Write the page, or compare it."""
    page = PAGE.read_text("utf-8")
    made = with_tables(page)
    if "--check" in sys.argv:
        sys.exit(0 if made == page else f"{PAGE}: not what the fields say; run python -m tools.recipe_tables")
    PAGE.write_text(made, "utf-8", newline="\n")


if __name__ == "__main__":
    main()
