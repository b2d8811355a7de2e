"""Sheets of a family that shows what its networks make of given pictures: where these come from."""

from dataclasses import replace

from frugan.contract.family import Previews, SheetRequest
from frugan.recipe.recipe import Recipe


def with_pictures(recipe: Recipe, request: SheetRequest, previews: Previews | None) -> SheetRequest:
    """Add the pictures that a family shows on its sheets, if it shows given ones."""
    needs = recipe.kind.sources(recipe.networks, recipe.objective)
    wanted = [name for name, need in needs.items() if need.given]
    if not wanted or previews is None:
        return request
    return replace(request, pictures={name: previews.preview(name, request.rows) for name in wanted})
