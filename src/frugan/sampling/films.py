"""Films of a latent space: smooth closed loops, one for each cell of a grid, drawn and written frame by frame."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from frugan.contract.family import Noise
from frugan.errors import BadInput
from frugan.progress import Say, quiet
from frugan.reporting.grids import not_finite
from frugan.reporting.sample_files import FILM_ENDINGS, write_animation
from frugan.sampling.explorer import Explorer, Points
from frugan.sampling.generation import pixels

GAP = 2
"""Black pixels between the pictures of an animation."""


def write_loops(
    explorer: Explorer,
    stations: Sequence[Points],
    path: str | Path,
    *,
    frames: int = 48,
    columns: int | None = None,
    noise: Noise = "const",
    seed: int = 0,
    about: Mapping[str, str] | None = None,
    say: Say = quiet,
) -> Path:
    """Write a film of smooth closed loops, each through points of its own, side by side in cells.

    One frame is in memory at a time while an MP4 is written; see `write_animation` for the other kinds.

    Args:
        stations: the points of each cell, two or more, in the order in which the loop comes by.
        path: ends in .gif, .webp or .mp4; replaced if it exists.
        frames: of the whole loop; after the last one comes the first.
        columns: cells beside each other; None: as square as it can be.
        noise, seed: see `Explorer.draw`; random noise stays what it is from frame to frame.
        about: texts that the file carries; an MP4 has no room for them.
        say: is told of pictures that are not finite.

    Raises:
        BadInput: another ending, a cell with fewer than two points, or fewer than two frames.
    """
    path = Path(path)
    check_film(path, frames)
    if not stations or any(len(points) < 2 for points in stations):
        raise BadInput(f"{path}: a loop goes through two or more points; name more seeds or latents for each cell")
    loops = [closed_loop(points, frames, keep_lengths=explorer.space.mean is None) for points in stations]
    drawn = _frames(explorer, loops, columns, noise, seed, lambda line: say(f"warning: {path}: {line}"))
    write_animation(drawn, path, about or {})
    return path


def closed_loop(stations: Points, count: int, *, keep_lengths: bool) -> Points:
    """Return `count` points evenly along a closed Catmull-Rom spline through all stations, the first one once.

    Args:
        stations: two or more.
        count: points.
        keep_lengths: scale vectors to lengths between those of the stations before and after. Gaussian latents all lie
            near one sphere, which a straight way between two of them leaves; styles do not.
    """
    place = torch.arange(count) * len(stations) / count
    before = place.floor().long().clamp(max=len(stations) - 1)  # [count]
    share = place - before
    after = (before + 1) % len(stations)
    corners = [(before - 1) % len(stations), before, after, (before + 2) % len(stations)]
    squared, cubed = share**2, share**3
    eased = 3 * squared - 2 * cubed
    weights = [
        (-share + 2 * squared - cubed) / 2,
        (2 - 5 * squared + 3 * cubed) / 2,
        (share + 4 * squared - 3 * cubed) / 2,
        (cubed - squared) / 2,
    ]
    vectors = stations.vectors
    parts = [weight[:, None, None] * vectors[corner] for weight, corner in zip(weights, corners, strict=True)]
    points = torch.stack(parts).sum(0)  # [count, layers, size]
    if keep_lengths:
        lengths = vectors.norm(dim=-1, keepdim=True)
        wanted = torch.lerp(lengths[before], lengths[after], eased[:, None, None])
        points *= wanted / points.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    shares = stations.shares  # a spline would leave 0 to 1
    if shares is not None:
        shares = torch.lerp(shares[before], shares[after], eased[:, None])
    return replace(stations, vectors=points, shares=shares)


def _frames(
    explorer: Explorer, loops: Sequence[Points], columns: int | None, noise: Noise, seed: int, warn: Say
) -> Iterator[NDArray[np.uint8]]:
    warned = False
    for number in range(len(loops[0])):
        cells = explorer.draw(Points.joined([loop[[number]] for loop in loops]), noise, seed)
        if not warned and (line := not_finite(cells[:, None])) is not None:
            warn(f"frame {number + 1}: {line}")
            warned = True
        yield side_by_side(pixels(cells).numpy(), columns)


def side_by_side(pictures: NDArray[np.uint8], columns: int | None = None) -> NDArray[np.uint8]:
    """[n, C, R, R] -> a grid [H, W, C], as square as it can be unless its columns are given."""
    count = len(pictures)
    columns = columns or int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    channels, side = pictures.shape[1:3]
    grid = np.zeros((rows * (side + GAP) - GAP, columns * (side + GAP) - GAP, channels), np.uint8)
    for number, picture in enumerate(pictures):
        top, left = (side + GAP) * (number // columns), (side + GAP) * (number % columns)
        grid[top : top + side, left : left + side] = picture.transpose(1, 2, 0)
    return grid


def check_film(path: Path, frames: int) -> None:
    """Refuse a kind of file that no film is written as, and a film that shows nothing move.

    Raises:
        BadInput: another ending, or fewer than two frames.
    """
    if path.suffix not in FILM_ENDINGS:
        raise BadInput(f"{path}: expected a name that ends in .gif, .webp or .mp4")
    if frames < 2:
        raise BadInput(f"{path}: {frames} frames: expected at least 2, the two ends (--frames)")
