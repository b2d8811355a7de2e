"""Closed ways through a latent space, for films: through seeds and latents, along directions, by keyframes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import torch

from frugan.errors import BadInput
from frugan.progress import Say
from frugan.sampling.directions import Directions
from frugan.sampling.explorer import Explorer, Points
from frugan.sampling.keyframes import read_keyframes
from frugan.sampling.requests import DrawRequest
from frugan.sampling.sheets import chosen_directions, points_in_turn, ranges_along


def closed_loop(stations: Points, spans: Sequence[float], keep_lengths: bool) -> Points:
    """Return the points of all frames along a closed Catmull-Rom spline through all stations, the first one once.

    Args:
        stations: two or more.
        spans: frames from each station to the next one, all above 0; their sum is a whole number, of all frames.
        keep_lengths: scale vectors to lengths between those of the stations before and after. Gaussian latents all lie
            near one sphere, which a straight way between two of them leaves; styles do not.
    """
    span = torch.tensor(spans, dtype=torch.float64)
    ends = span.cumsum(0)
    frame = torch.arange(round(float(ends[-1])), dtype=torch.float64)
    before = torch.searchsorted(ends, frame + 1e-6, right=True).clamp(max=len(stations) - 1)  # [frames]
    share = ((frame - ends[before] + span[before]) / span[before]).clamp(0, 1).float()
    after = (before + 1) % len(stations)
    vectors = stations.vectors
    lengths_of_ways = span.float()[:, None, None]
    # Speed at a station: from the one before it to the one after it, in the frames that this takes.
    speed = (vectors.roll(-1, 0) - vectors.roll(1, 0)) / (lengths_of_ways + lengths_of_ways.roll(1, 0))
    squared, cubed = share**2, share**3
    eased = 3 * squared - 2 * cubed
    starting, arriving = cubed - 2 * squared + share, cubed - squared  # Hermite's basis
    points = torch.lerp(vectors[before], vectors[after], eased[:, None, None])  # [frames, layers, size]
    points += lengths_of_ways[before] * starting[:, None, None] * speed[before]
    points += lengths_of_ways[before] * arriving[:, None, None] * speed[after]
    if keep_lengths:
        lengths = vectors.norm(dim=-1, keepdim=True)
        wanted = torch.lerp(lengths[before], lengths[after], eased[:, None, None])
        points *= wanted / points.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    shares = stations.shares  # a spline would leave 0 to 1
    if shares is not None:
        shares = torch.lerp(shares[before], shares[after], eased[:, None])
    return replace(stations, vectors=points, shares=shares)


def loops(explorer: Explorer, request: DrawRequest, class_names: Sequence[str], out: Path, say: Say) -> list[Points]:
    """Ways of a film's cells, each with a point for each of the request's frames.

    Args:
        request: with `loop` or `keyframes`.
        class_names: by number; may be empty.
        out: where directions are kept that are found.
        say: is told of it.

    Raises:
        BadInput: a number of pictures that the cells cannot share; keyframes, latents or directions that are not there,
            damaged or of other weights.
    """
    directions = chosen_directions(explorer, request, out, say)
    keep_lengths = explorer.space.mean is None
    if request.keyframes is not None:
        for name, (low, high) in request.ranges.items():
            raise BadInput(f"--move {name}={low:g}..{high:g}: keyframes have one number each; write it into the file")
        stations, times = read_keyframes(Path(request.keyframes), explorer, request, directions, class_names)
        spans = [time * request.columns / sum(times) for time in times]
        return [closed_loop(stations, spans, keep_lengths)]
    stations = _stations(explorer, request)
    if directions is not None:
        stations = stations.moved(directions.shift(request.fixed, explorer.space.layers))
        if request.shows_directions:
            return _along(explorer, request, directions, stations)
    parts = _shared(stations, request.loop or (1, 1))
    return [closed_loop(part, [request.columns / len(part)] * len(part), keep_lengths) for part in parts]


def _stations(explorer: Explorer, request: DrawRequest) -> Points:
    """Points of latents and seeds, in the order in which they are named.

    Classes go with seeds one by one, from the first again where there are fewer.
    """
    return points_in_turn(explorer, request, list(zip(request.seeds, cycle(request.classes or (0,)))))


def _shared(stations: Points, loop: tuple[int, int]) -> list[Points]:
    """Stations of each cell, as many for each."""
    wide, high = loop
    count, cells = len(stations), wide * high
    if count < 2 * cells or count % cells:
        raise BadInput(
            f"--loop {wide}x{high}: {count} pictures of --seeds and --latents; expected a multiple of {cells}, and two "
            f"or more for each cell, such as --seeds 0-{3 * cells - 1}"
        )
    stops = count // cells
    return [stations[cell * stops : (cell + 1) * stops] for cell in range(cells)]


def _along(explorer: Explorer, request: DrawRequest, directions: Directions, stations: Points) -> list[Points]:
    """Ways along directions: for each direction a cell for each station, there and back, slowly at both ends."""
    wide, high = request.loop or (1, 1)
    cells, count = wide * high, len(stations)
    ranges = ranges_along(request, directions, max(1, cells // count))
    if len(ranges) * count != cells:
        raise BadInput(
            f"--loop {wide}x{high}: {cells} cells for {len(ranges)} directions of {count} pictures; expected one for "
            f"each direction of each picture, such as --loop {count}x{len(ranges)}"
        )
    turn = torch.arange(request.columns) / request.columns
    eased = (1 - torch.cos(2 * math.pi * turn)) / 2  # 0 at the first frame, 1 in the middle
    ways = []
    for name, (low, high_end) in ranges.items():
        one = directions.shift({name: 1.0}, explorer.space.layers)
        amounts = low + (high_end - low) * eased
        shifts = amounts[:, None, None] * one  # [frames, layers, size]
        ways += [stations[[number] * request.columns].moved(shifts) for number in range(count)]
    return ways
