"""Sheets of what a generator's latent space holds: rows along directions, moved pictures, and walks between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from frugan.contract.family import GridRequest, StyleMixing
from frugan.errors import BadInput
from frugan.progress import Say
from frugan.recipe.recipe import Recipe
from frugan.sampling.directions import Directions
from frugan.sampling.explorer import Explorer, Points
from frugan.sampling.provenance import numbers
from frugan.sampling.requests import DrawRequest, check_grid

REACH = 3.0
"""Standard deviations to both sides, if nothing is said."""
MOST_MOVE = 100.0
"""Standard deviations: far beyond what a generator was trained to draw."""
KEPT_AS = "directions.json"


@dataclass(frozen=True)
class Sheet:
    """A grid of points, with what stands above and beside it."""

    points: Points  # [rows * columns]
    rows: int
    columns: int
    titles: tuple[str, ...]  # of the columns; none: they need none
    labels: tuple[str, ...]  # of the rows; none: they need none


def explores(request: GridRequest, recipe: Recipe) -> bool:
    """Return whether a request is drawn from points of a latent space instead of by the family itself."""
    if isinstance(request, DrawRequest) and (request.directions is not None or request.latents):
        return True
    return bool(request.seeds) and request.mixing is None and not recipe.kind.styles(recipe.networks)


def sheets(
    explorer: Explorer, request: DrawRequest, class_names: Sequence[str], out: Path, say: Say
) -> dict[str, Sheet]:
    """The sheets that a request asks for, by name.

    Args:
        request: what `explores`.
        class_names: by number; may be empty.
        out: where directions are kept that are found.
        say: is told of it.

    Raises:
        BadInput: latents or directions that are not there or of other weights, too many pictures, or walks that go
            nowhere.
    """
    if request.mixing is not None:
        stations, titles, classes = _mixtures(explorer, request, request.mixing)
    else:
        stations, titles, classes = _stations(explorer, request)
    directions = None
    if request.directions is not None:
        directions = explorer.directions(request.directions, request.classes)
        if explorer.finds(request.directions):
            _keep(explorer, directions, out / KEPT_AS, say)
        _check_moves(request)
        stations = stations.moved(directions.shift(request.fixed, explorer.space.layers))
    if request.mixing is not None:
        labels = tuple(f"seed {seed}" for seed in request.mixing.rows)
    else:
        labels = _class_labels(request, classes, class_names)
    if directions is not None and request.shows_directions:
        return _along(explorer, request, directions, stations, titles, labels)
    if request.interpolate is not None:
        return {"interpolation-latent": _walks(explorer, request, stations, len(titles), labels)}
    check_grid(classes, len(titles), explorer.recipe)
    name = "style-mixing" if request.mixing is not None else "latents" if request.latents else "seeds"
    return {name: Sheet(stations, classes, len(titles), titles, labels)}


def _keep(explorer: Explorer, found: Directions, path: Path, say: Say) -> None:
    """Keep directions in a file; those that it held and somebody has named stay, in front."""
    if path.exists():
        try:
            found = found.beside(explorer.directions(path))
        except BadInput as error:
            candidates = (path.with_name(f"{path.stem}-before-{number}.json") for number in count(1))
            aside = next(candidate for candidate in candidates if not candidate.exists())
            path.rename(aside)
            say(f"{path}: set aside as {aside.name}, as it cannot be used here: {error}")
    found.write(path)
    say(f"directions: {len(found.entries)} of {found.space}, kept in {path}")


def _stations(explorer: Explorer, request: DrawRequest) -> tuple[Points, tuple[str, ...], int]:
    """Points that a request names, class by class; what each of a class is called; and how many classes."""
    seeds = tuple(request.seeds) or (() if request.latents else (request.seed,))
    classes = len(request.classes) if request.classes is not None and explorer.space.classes else 1
    check_grid(classes, len(seeds), explorer.recipe)
    if not request.latents:
        return _of_seeds(explorer, request, seeds), tuple(map(str, seeds)), classes
    if classes > 1:
        raise BadInput(
            "--latents: hold the classes of their pictures; --classes beside them is for --seeds: one at most"
        )
    stems = [Path(path).stem for path in request.latents]
    if len({*stems}) < len(stems):
        twice = next(stem for stem in stems if stems.count(stem) > 1)
        raise BadInput(f"--latents: two files are called {twice}, by which pictures are named; rename one")
    parts = [explorer.read(Path(path)) for path in request.latents]
    names = [
        path.stem if len(part) == 1 else f"{path.stem} {number}"
        for path, part in zip(map(Path, request.latents), parts, strict=True)
        for number in range(1, len(part) + 1)
    ]
    if seeds:
        parts.append(_of_seeds(explorer, request, seeds))
    return Points.joined(parts), (*names, *map(str, seeds)), 1


def _of_seeds(explorer: Explorer, request: DrawRequest, seeds: Sequence[int]) -> Points:
    chosen = {"truncation": request.truncation, "psi": request.psi}
    return explorer.seeds(seeds, request.classes, psi_layers=request.psi_layers, **chosen)


def _mixtures(explorer: Explorer, request: DrawRequest, mixing: StyleMixing) -> tuple[Points, tuple[str, ...], int]:
    """Points of the rows with the columns' vectors in some layers, row by row."""
    if wrong := [layer for layer in mixing.layers if not 0 <= layer < explorer.space.layers]:
        raise BadInput(f"layers {numbers(wrong)}: expected 0 to {explorer.space.layers - 1}")
    if len(request.classes or ()) > 1:
        raise BadInput(f"--classes {numbers(request.classes or ())}: styles are mixed within one class; expected one")
    rows, columns = (_of_seeds(explorer, request, seeds) for seeds in (mixing.rows, mixing.columns))
    mixtures = [rows[[row] * len(columns)].mixed(columns, mixing.layers) for row in range(len(rows))]
    return Points.joined(mixtures), tuple(map(str, mixing.columns)), len(rows)


def _class_labels(request: DrawRequest, classes: int, names: Sequence[str]) -> tuple[str, ...]:
    if classes == 1 or request.classes is None:
        return ()
    return tuple(names[number] if number < len(names) else f"class {number}" for number in request.classes)


def _check_moves(request: DrawRequest) -> None:
    for name, move in request.moves.items():
        for end in move if isinstance(move, tuple) else (move,):
            if not abs(end) <= MOST_MOVE:
                raise BadInput(
                    f"--move {name}={end:g}: expected standard deviations from -{MOST_MOVE:g} to {MOST_MOVE:g}"
                )
    if request.ranges and request.interpolate is not None:
        name, (low, high) = next(iter(request.ranges.items()))
        raise BadInput(
            f"--move {name}={low:g}..{high:g}: is a row by itself, without --interpolate; one number moves both ends"
        )


def _along(
    explorer: Explorer,
    request: DrawRequest,
    directions: Directions,
    stations: Points,
    titles: Sequence[str],
    labels: Sequence[str],
) -> dict[str, Sheet]:
    """For each station a sheet with a row for each direction."""
    ranges = request.ranges or {direction.name: (-REACH, REACH) for direction in directions.entries[: request.rows]}
    ends = set(ranges.values())
    # the picture itself stands in the middle, where both ends are as far
    columns = request.columns | 1 if all(low == -high for low, high in ends) else request.columns
    if columns < 2:
        raise BadInput(f"--columns {request.columns}: a row along a direction has at least its 2 ends")
    check_grid(len(ranges), columns, explorer.recipe)
    shifts = torch.stack(
        [
            directions.shift({name: amount}, explorer.space.layers)
            for name, (low, high) in ranges.items()
            for amount in _amounts(low, high, columns)
        ]
    )  # [rows*columns, layers, size]
    above: tuple[str, ...] = ()
    if len(ends) == 1:
        above = tuple(f"{amount:+.3g}" if amount else "0" for amount in _amounts(*next(iter(ends)), columns))
    # classes by number, as what they are called may be no name of a file
    classes = [f"-class{number}" for number in request.classes or ()] if labels else [""]
    every = [f"{title}{of_class}" for of_class in classes for title in titles]
    found = {}
    for number, name in enumerate(every):
        here = stations[[number] * len(shifts)]
        file = "directions" if len(every) == 1 else f"directions-{name}"
        found[file] = Sheet(here.moved(shifts), len(ranges), columns, above, tuple(ranges))
    return found


def _amounts(low: float, high: float, count: int) -> list[float]:
    """Evenly from one end to the other; between ends that are as far, the middle is 0 exactly."""
    last = count - 1
    return [(low * (last - i) + high * i) / last for i in range(count)]


def _walks(explorer: Explorer, request: DrawRequest, stations: Points, stops: int, labels: tuple[str, ...]) -> Sheet:
    """A row for each class, by all of its stations."""
    if request.interpolate != "latent":
        raise BadInput(f"--interpolate {request.interpolate}: walks by --seeds or --latents are of kind latent")
    if stops < 2:
        raise BadInput("one picture: a walk goes between two or more; name more with --seeds or --latents")
    rows = len(stations) // stops
    check_grid(rows, request.columns, explorer.recipe)
    walks = [stations[row * stops : (row + 1) * stops].walk(request.columns) for row in range(rows)]
    return Sheet(Points.joined(walks), rows, request.columns, (), labels)


def drawn(explorer: Explorer, sheet: Sheet, request: DrawRequest) -> Tensor:
    """Its pictures [rows, columns, C, R, R] in [-1, 1]."""
    pictures = explorer.draw(sheet.points, request.noise, request.seed)
    return pictures.view(sheet.rows, sheet.columns, *pictures.shape[1:])
