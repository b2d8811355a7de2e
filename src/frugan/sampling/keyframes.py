"""Keyframes of a film, read from a file: seeds or latents, in order, with moves along directions and times."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from frugan.errors import BadInput
from frugan.files import read_json
from frugan.sampling.directions import Directions
from frugan.sampling.explorer import Explorer, Points
from frugan.sampling.requests import MOST_SEED_NUMBER, DrawRequest
from frugan.sampling.sheets import MOST_MOVE, points_of_seeds
from frugan.wording import first_names, nearest

MOST_KEYFRAMES = 1000
MOST_TIME = 100.0
"""Longest way beside one of usual length."""
FIELDS = frozenset({"seed", "latents", "class", "move", "time"})


def read_keyframes(
    path: Path, explorer: Explorer, request: DrawRequest, directions: Directions | None, class_names: Sequence[str]
) -> tuple[Points, list[float]]:
    """Read the points of a film's keyframes, and how long the way from each to the next takes beside the others.

    Args:
        request: says how seeds are drawn, and what moves every keyframe.
        directions: that keyframes may be moved along.
        class_names: by number; may be empty.

    Raises:
        BadInput: no such file, or anything in it that is no keyframe of these weights.
    """

    def wrong(why: str) -> BadInput:
        return BadInput(
            f'--keyframes {path}: {why}; expected {{"keyframes": [{{"seed": 3}}, {{"seed": 7, "time": 2}}]}} '
            "(docs/explore.md)"
        )

    entries = read_json(path, wrong).get("keyframes")
    if not isinstance(entries, list) or not 2 <= len(entries) <= MOST_KEYFRAMES:
        raise wrong(f"no list of 2 to {MOST_KEYFRAMES:,} keyframes")
    parts: list[Points] = []
    times: list[float] = []
    for number, entry in enumerate(entries, 1):
        try:
            point = _keyframe(explorer, request, entry, path.parent, class_names)
            time = _number(entry.get("time", 1), "time", 1 / MOST_TIME, MOST_TIME)
            if (moves := request.fixed | _moves(entry)) and directions is None:
                raise BadInput("moves along a direction; add --directions FILE, which says what can be moved")
            if directions is not None:
                point = point.moved(directions.shift(moves, explorer.space.layers))
        except ValueError as error:  # BadInput is one too
            raise wrong(f"keyframe {number}: {error}") from error
        parts.append(point)
        times.append(time)
    return Points.joined(parts), times


def _keyframe(
    explorer: Explorer, request: DrawRequest, entry: object, folder: Path, class_names: Sequence[str]
) -> Points:
    """The point of one entry, not moved yet.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(entry, Mapping):
        raise BadInput(f"{str(entry)[:60]!r} is no object")
    if unknown := [name for name in entry if name not in FIELDS]:
        raise BadInput(f"{str(unknown[0])[:60]!r}{nearest(unknown[0], sorted(FIELDS))} is no field of one")
    if ("seed" in entry) == ("latents" in entry):
        raise BadInput("needs a seed or latents, one of them")
    if "latents" in entry:
        if "class" in entry:
            raise BadInput("latents hold the classes of their pictures; leave class out")
        points = explorer.read(folder / str(entry["latents"]))
        if len(points) != 1:
            raise BadInput(f"{entry['latents']}: holds {len(points)} pictures; a keyframe is one")
        return points
    seed = entry["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= MOST_SEED_NUMBER:
        raise BadInput(f"seed {str(seed)[:60]}: expected a whole number from 0 to {MOST_SEED_NUMBER}")
    chosen = _class_number(entry["class"], class_names, explorer.recipe.classes) if "class" in entry else 0
    return points_of_seeds(explorer, replace(request, classes=(chosen,)), (seed,))


def _class_number(value: object, names: Sequence[str], known: int) -> int:
    """Number of a class that is named or counted."""
    if isinstance(value, str) and value in names:
        return names.index(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < known:
        return value
    there = f"; there are {first_names(names)}" if names else ""
    hint = nearest(value, names) if isinstance(value, str) else ""
    raise BadInput(f"class {str(value)[:60]!r}{hint}: expected a name or a number from 0 to {known - 1}{there}")


def _moves(entry: Mapping[str, Any]) -> dict[str, float]:
    """Direction -> standard deviations by which one keyframe is moved."""
    moves = entry.get("move", {})
    if not isinstance(moves, Mapping):
        raise BadInput(f'move {str(moves)[:60]}: expected directions and numbers, such as {{"slant": 2}}')
    return {name: _number(amount, f"move {name[:60]}", -MOST_MOVE, MOST_MOVE) for name, amount in moves.items()}


def _number(value: object, name: str, least: float, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise BadInput(f"{name} {str(value)[:60]}: expected a number from {least:g} to {most:g}")
    return float(value)
