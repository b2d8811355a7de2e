"""Sheets of what a generator's latent space holds: rows along directions, moved pictures, and walks between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
"""Standard deviations to both sides, by default."""
MOST_MOVE = 100.0
"""Largest move in standard deviations, far beyond all that a generator was trained to draw."""
KEPT_AS = "directions.json"


@dataclass(frozen=True)
class Sheet:
    """A grid of points, with titles above and names beside it."""

    points: Points  # [rows * columns]
    rows: int
    columns: int
    titles: tuple[str, ...]  # titles of the columns; empty: they have none
    labels: tuple[str, ...]  # names of the rows; empty: they have none


def explores(request: GridRequest, recipe: Recipe) -> bool:
    """Return whether a request is drawn from points of a latent space instead of by the family itself."""
    if isinstance(request, DrawRequest) and (request.directions is not None or request.latents):
        return True
    if not request.seeds or request.mixing is not None:
        return False
    return request.interpolate is not None or not recipe.kind.styles(recipe.networks)


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
    if (directions := chosen_directions(explorer, request, out, say)) is not None:
        stations = stations.moved(directions.shift(request.fixed, explorer.space.layers))
    if request.mixing is not None:
        labels = tuple(f"seed {seed}" for seed in request.mixing.rows)
    else:
        labels = _class_labels(request, classes, class_names)
    if directions is not None and request.shows_directions:
        return _along(explorer, request, directions, stations, titles, labels)
    if request.interpolate is not None:
        return {f"interpolation-{request.interpolate}": _walks(explorer, request, stations, len(titles), labels)}
    check_grid(classes, len(titles), explorer.recipe)
    name = "style-mixing" if request.mixing is not None else "latents" if request.latents else "seeds"
    return {name: Sheet(stations, classes, len(titles), titles, labels)}


def chosen_directions(explorer: Explorer, request: DrawRequest, out: Path, say: Say) -> Directions | None:
    """Find or read the directions of a request; those that are found are kept in a folder.

    Raises:
        BadInput: see `Explorer.directions`; or a move too far.
    """
    if request.directions is None:
        return None
    directions = explorer.directions(request.directions, request.classes)
    if explorer.finds(request.directions):
        _keep(explorer, directions, out / KEPT_AS, say)
    _check_moves(request)
    return directions


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
    if request.interpolate == "both":
        points = points_in_turn(explorer, request, _pairs(seeds, tuple(request.classes or (0,))))
        return points, ("",) * len(points), 1
    classes = len(request.classes) if request.classes is not None and explorer.space.classes else 1
    check_grid(classes, len(seeds), explorer.recipe)
    if not request.latents:
        return points_of_seeds(explorer, request, seeds), tuple(map(str, seeds)), classes
    if classes > 1:
        raise BadInput(
            "--latents: hold the classes of their pictures; --classes beside them is for --seeds: one at most"
        )
    parts, names = points_of_files(explorer, [Path(path) for path in request.latents])
    if seeds:
        parts.append(points_of_seeds(explorer, request, seeds))
    return Points.joined(parts), (*names, *map(str, seeds)), 1


def _pairs(seeds: tuple[int, ...], classes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Seed and class of each picture that a walk of kind both comes by; a single one goes with all of the others.

    Raises:
        BadInput: several of both, and not as many.
    """
    turns = seeds * len(classes) if len(seeds) == 1 else seeds
    of_turns = classes * len(seeds) if len(classes) == 1 else classes
    if len(turns) != len(of_turns):
        raise BadInput(
            f"--seeds and --classes: {len(seeds):,} seeds and {len(classes):,} classes; expected as many "
            "of both, or one of either for all of the other (--interpolate latent: all seeds in each class, in rows)"
        )
    return list(zip(turns, of_turns, strict=True))


def points_in_turn(explorer: Explorer, request: DrawRequest, pairs: Sequence[tuple[int, int]]) -> Points:
    """Points of a request's latents and of seeds, each of a class, in this order."""
    check_grid(1, len(pairs), explorer.recipe)
    parts = points_of_files(explorer, [Path(path) for path in request.latents])[0] if request.latents else []
    parts += [points_of_seeds(explorer, replace(request, classes=(chosen,)), (seed,)) for seed, chosen in pairs]
    return Points.joined(parts)


def points_of_files(explorer: Explorer, paths: Sequence[Path]) -> tuple[list[Points], list[str]]:
    """Points of each file, and a name for each point."""
    stems = [path.stem for path in paths]
    if len({*stems}) < len(stems):
        twice = next(stem for stem in stems if stems.count(stem) > 1)
        raise BadInput(f"--latents: two files are called {twice}, by which pictures are named; rename one")
    parts = [explorer.read(path) for path in paths]
    names = [
        stem if len(part) == 1 else f"{stem} {number}"
        for stem, part in zip(stems, parts, strict=True)
        for number in range(1, len(part) + 1)
    ]
    return parts, names


def points_of_seeds(explorer: Explorer, request: DrawRequest, seeds: Sequence[int]) -> Points:
    chosen = {"truncation": request.truncation, "psi": request.psi}
    return explorer.seeds(seeds, request.classes, psi_layers=request.psi_layers, **chosen)


def _mixtures(explorer: Explorer, request: DrawRequest, mixing: StyleMixing) -> tuple[Points, tuple[str, ...], int]:
    """Points of the rows with the columns' vectors in some layers, row by row."""
    if wrong := [layer for layer in mixing.layers if not 0 <= layer < explorer.space.layers]:
        raise BadInput(f"layers {numbers(wrong)}: expected 0 to {explorer.space.layers - 1}")
    if len(request.classes or ()) > 1:
        raise BadInput(f"--classes {numbers(request.classes or ())}: styles are mixed within one class; expected one")
    rows, columns = (points_of_seeds(explorer, request, seeds) for seeds in (mixing.rows, mixing.columns))
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


def ranges_along(request: DrawRequest, directions: Directions, most: int) -> dict[str, tuple[float, float]]:
    """Direction -> both ends of its row: those that are named, or those of the first directions."""
    return request.ranges or {direction.name: (-REACH, REACH) for direction in directions.entries[:most]}


def _along(
    explorer: Explorer,
    request: DrawRequest,
    directions: Directions,
    stations: Points,
    titles: Sequence[str],
    labels: Sequence[str],
) -> dict[str, Sheet]:
    """Sheets by file name: one for each station, with a row for each direction."""
    ranges = ranges_along(request, directions, request.rows)
    columns = request.columns
    if all(low == -high for low, high in ranges.values()):
        columns |= 1  # an odd number has the unchanged picture in the middle
    if columns < 2:
        raise BadInput(f"--columns {request.columns}: a row along a direction has at least its 2 ends")
    check_grid(len(ranges), columns, explorer.recipe)
    rows = {name: _amounts(low, high, columns) for name, (low, high) in ranges.items()}
    layers = explorer.space.layers
    # [rows*columns, layers, size]
    shifts = torch.stack([directions.shift({name: amount}, layers) for name, row in rows.items() for amount in row])
    column_titles = _common_titles(rows)
    names = _names_of_stations(request, titles, labels)
    sheets = {}
    for number, name in enumerate(names):
        station = stations[[number] * len(shifts)]
        file = "directions" if len(names) == 1 else f"directions-{name}"
        sheets[file] = Sheet(station.moved(shifts), len(rows), columns, column_titles, tuple(rows))
    return sheets


def _common_titles(rows: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """Titles of columns, if all rows have the same amounts."""
    first, *others = rows.values()
    if any(row != first for row in others):
        return ()
    return tuple(f"{amount:+.3g}" if amount else "0" for amount in first)


def _names_of_stations(request: DrawRequest, titles: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Ends of the stations' file names, with numbers of classes, whose names need not be valid in file names."""
    classes = [f"-class{number}" for number in request.classes or ()] if labels else [""]
    return [f"{title}{of_class}" for of_class in classes for title in titles]


def _amounts(low: float, high: float, count: int) -> list[float]:
    """Evenly from one end to the other; between ends that are as far, the middle is 0 exactly."""
    last = count - 1
    return [(low * (last - i) + high * i) / last for i in range(count)]


def _walks(explorer: Explorer, request: DrawRequest, stations: Points, stops: int, labels: tuple[str, ...]) -> Sheet:
    """A row for each class, by all of its stations; of kind both one row."""
    if request.interpolate == "class":
        raise BadInput(
            "--interpolate class: walks by --seeds or --latents are of kind latent, within a class, or both, from one "
            "class to the next (with one seed, the class alone changes)"
        )
    if stops < 2:
        raise BadInput("one picture: a walk goes between two or more; name more with --seeds or --latents")
    rows = len(stations) // stops
    check_grid(rows, request.columns, explorer.recipe)
    walks = [stations[row * stops : (row + 1) * stops].walk(request.columns) for row in range(rows)]
    return Sheet(Points.joined(walks), rows, request.columns, (), labels)


def drawn(explorer: Explorer, sheet: Sheet, request: DrawRequest) -> Tensor:
    """Draw the pictures of a sheet [rows, columns, C, R, R] in [-1, 1]."""
    pictures = explorer.draw(sheet.points, request.noise, request.seed)
    return pictures.view(sheet.rows, sheet.columns, *pictures.shape[1:])
