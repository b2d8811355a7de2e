"""Sheets and films that are asked for: what cannot be drawn is refused, and what is too large."""

from frugan.api.sample.generation import check_truncation
from frugan.api.sample.style_requests import check_numbered, check_psi, extent
from frugan.contract.family import SheetRequest
from frugan.data.decoding import MOST_PIXELS
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe

OF_RANDOM_INPUTS = ("classes", "interpolate", "truncation", "psi", "psi_layers", "spherical", "columns", "seed")
"""What a request asks of random inputs, which a family that is shown faces has not."""
MOST_SEED = 2**63 - 1
MOST_ON_A_SHEET = 10_000
"""Pictures: 100 rows of 100, which take minutes to draw on a processor."""


def check_request(request: SheetRequest, recipe: Recipe) -> None:
    """Refuse what cannot be drawn.

    Raises:
        BadInput: a class out of range, no columns or too many pictures, a truncation or a seed that is none.
    """
    if recipe.shows_given:
        usual = SheetRequest()
        ignored = [name for name in OF_RANDOM_INPUTS if getattr(request, name) != getattr(usual, name)]
        if ignored:
            given = " and ".join(f"--{name.replace('_', '-')}" for name in ignored)
            raise BadInput(
                f"{given}: for families that draw from random inputs; {recipe.family} shows what it makes of given "
                "pictures, which these leave as they are; leave them out (--rows says how many pictures)"
            )
    known = recipe.classes
    for chosen in request.classes or ():
        if not 0 <= chosen < known:
            raise BadInput(f"--classes {chosen}: expected 0 to {known - 1}; this network has {known} classes")
    if request.columns < 1 or request.rows < 1 or request.micro_batch < 1:
        raise BadInput("columns, rows and micro-batch: expected at least 1")
    check_truncation(request.truncation)
    check_psi(request.psi, request.psi_layers, request.noise, recipe)
    check_numbered(request, recipe)
    if not 0 <= request.seed <= MOST_SEED:
        raise BadInput(f"--seed {request.seed}: expected a whole number from 0 to {MOST_SEED}")
    check_sheet(*extent(request), recipe)
    if request.interpolate is not None and request.columns < 2:
        raise BadInput(f"--columns {request.columns}: an interpolation has at least its 2 ends")


def check_sheet(rows: int, columns: int, recipe: Recipe) -> None:
    """Refuse a sheet or a film that is too large to be drawn in memory, or looked at.

    Raises:
        BadInput: too many pictures or pixels.
    """
    needs = recipe.kind.sources(recipe.networks, recipe.objective).values()
    side = max(need.resolution for need in needs)
    if rows * columns > MOST_ON_A_SHEET or rows * columns * side**2 > MOST_PIXELS:
        most = min(MOST_ON_A_SHEET, MOST_PIXELS // side**2)
        raise BadInput(
            f"{rows:,} x {columns:,} pictures (--rows, --columns or --frames): expected at most {most:,} together at "
            f"{side} pixels; --npz N and --pngs N write any number"
        )
