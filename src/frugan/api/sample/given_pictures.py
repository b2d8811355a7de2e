"""Sheets of a family that shows what its networks make of given pictures: where these come from."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from frugan.contract.family import SheetRequest
from frugan.recipe.recipe import Recipe


class Previews(Protocol):
    """Where a sheet takes given pictures from."""

    def preview(self, source: str, count: int) -> Mapping[str, Tensor]:
        """The same few pictures each time."""


def with_pictures(recipe: Recipe, request: SheetRequest, previews: Previews | None) -> SheetRequest:
    """Add the pictures that a family shows on its sheets, if it shows given ones."""
    needs = recipe.kind.sources(recipe.networks, recipe.objective)
    wanted = [name for name, need in needs.items() if need.given]
    if not wanted or previews is None:
        return request
    return replace(request, pictures={name: previews.preview(name, request.rows) for name in wanted})
