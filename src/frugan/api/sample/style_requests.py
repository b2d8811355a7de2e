"""What may be asked of networks that make pictures of styles, and how the sheets of it are called."""

from collections.abc import Sequence
from dataclasses import dataclass

from frugan.contract.family import Noise, SheetRequest
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe

MOST_PSI = 100
"""Styles that far from the mean one give noise already."""
MOST_SEED_NUMBER = 2**32 - 1
"""Largest number that NumPy's generator takes, by which NVlabs' programs count latents."""


def check_psi(psi: float, layers: int | None, noise: Noise, recipe: Recipe) -> None:
    """Refuse a place of styles that is none, and one of networks that have no styles.

    Raises:
        BadInput: not a number, beyond all use, for no layer, or of a family without a mapping network.
    """
    asked = {"--psi": psi != 1, "--psi-layers": layers is not None, "--noise": noise != "const"}
    if any(asked.values()) and not recipe.kind.styles(recipe.networks):
        named = ", ".join(name for name, given in asked.items() if given)
        raise BadInput(
            f"{named}: {recipe.family} has no mapping network, whose styles this would change; leave it out"
            + ("" if recipe.shows_given else " (--truncation makes latents shorter)")
        )
    if not abs(psi) <= MOST_PSI:
        raise BadInput(f"--psi {psi}: expected a number from -{MOST_PSI} to {MOST_PSI}; 1 is as trained, 0 the mean")
    if layers is not None and layers < 1:
        raise BadInput(f"--psi-layers {layers}: expected at least 1")
    if layers is not None and psi == 1:
        raise BadInput(f"--psi-layers {layers}: says for how many layers --psi holds, which is 1; give --psi too")


def check_numbered(request: SheetRequest, recipe: Recipe) -> None:
    """Refuse seeds and mixtures that cannot be drawn.

    Raises:
        BadInput: of a family without styles; numbers out of range, or none; layers that there are not; together.
    """
    mixing = request.mixing
    for option, given in (("--seeds", bool(request.seeds)), ("--style-mixing", mixing is not None)):
        if given and not recipe.kind.styles(recipe.networks):
            raise BadInput(f"{option}: {recipe.family} has no mapping network and no styles; leave it out")
    if mixing is not None and (request.seeds or request.interpolate):
        raise BadInput("--style-mixing: not with --seeds, --interpolate or --animate; run it once for each")
    numbers = {"--seeds": request.seeds}
    if mixing is not None:
        numbers = {"--style-mixing rows": mixing.rows, "--style-mixing cols": mixing.columns}
        if not (mixing.rows and mixing.columns and mixing.layers):
            raise BadInput("--style-mixing: expected a row, a column and a layer at least")
    for option, values in numbers.items():
        for seed in values:
            if not 0 <= seed <= MOST_SEED_NUMBER:
                raise BadInput(f"{option} {seed}: expected a whole number from 0 to {MOST_SEED_NUMBER}")


def extent(request: SheetRequest) -> tuple[int, int]:
    """Rows and columns of the sheet that a request gives, as far as it says so."""
    if request.mixing is not None:
        return len(request.mixing.rows) + 1, len(request.mixing.columns) + 1
    rows = len(request.classes) if request.classes is not None else 1 if request.seeds else request.rows
    return rows, len(request.seeds) if request.seeds and request.interpolate is None else request.columns


@dataclass(frozen=True)
class Words:
    """What stands above the columns and before the rows of a sheet."""

    titles: tuple[str, ...]
    labels: tuple[str, ...]


def words(request: SheetRequest, labels: Sequence[str]) -> Words:
    """Seeds above and beside a sheet of numbered latents; the labels of its rows otherwise."""
    if request.mixing is not None:
        titles = ("", *map(str, request.mixing.columns))
        return Words(titles, ("seed", *(f"seed {seed}" for seed in request.mixing.rows)))
    if request.seeds and request.interpolate is None:
        return Words(tuple(map(str, request.seeds)), tuple(labels))
    return Words(tuple(request.titles), tuple(labels))
