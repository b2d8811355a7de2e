"""Films of a latent space: ways through it, one for each cell of a grid, drawn and written frame by frame."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frugan.contract.family import Noise
from frugan.errors import BadInput
from frugan.progress import Say, quiet
from frugan.reporting.grids import not_finite
from frugan.reporting.sample_files import FILM_ENDINGS, write_animation
from frugan.sampling.explorer import Explorer, Points
from frugan.sampling.generation import pixels
from frugan.sampling.loops import closed_loop

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

    Args:
        stations: the points of each cell, two or more, in the order in which the loop comes by.
        path, columns, noise, seed, about, say: see `write_film`.
        frames: of the whole loop; after the last one comes the first.

    Raises:
        BadInput: another ending, a cell with fewer than two points, or fewer than two frames.
    """
    check_film(Path(path), frames)
    if not stations or any(len(points) < 2 for points in stations):
        raise BadInput(f"{path}: a loop goes through two or more points; name more seeds or latents for each cell")
    keep_lengths = explorer.space.mean is None
    loops = [closed_loop(points, [frames / len(points)] * len(points), keep_lengths) for points in stations]
    return write_film(explorer, loops, path, columns=columns, noise=noise, seed=seed, about=about, say=say)


def write_film(
    explorer: Explorer,
    ways: Sequence[Points],
    path: str | Path,
    *,
    columns: int | None = None,
    noise: Noise = "const",
    seed: int = 0,
    about: Mapping[str, str] | None = None,
    say: Say = quiet,
) -> Path:
    """Write a film of which each cell shows the points of a way, one in each frame.

    One frame is in memory at a time while an MP4 is written; see `write_animation` for the other kinds.

    Args:
        ways: as many points in each as the film has frames.
        path: ends in .gif, .webp or .mp4; replaced if it exists.
        columns: cells beside each other; None: as square as it can be.
        noise, seed: see `Explorer.draw`; random noise stays what it is from frame to frame.
        about: texts that the file carries; an MP4 has no room for them.
        say: is told of pictures that are not finite.

    Raises:
        BadInput: another ending, or fewer than two frames.
    """
    path = Path(path)
    check_film(path, len(ways[0]))
    drawn = _frames(explorer, ways, columns, noise, seed, lambda line: say(f"warning: {path}: {line}"))
    write_animation(drawn, path, about or {})
    return path


def _frames(
    explorer: Explorer, ways: Sequence[Points], columns: int | None, noise: Noise, seed: int, warn: Say
) -> Iterator[NDArray[np.uint8]]:
    warned = False
    for number in range(len(ways[0])):
        cells = explorer.draw(Points.joined([way[[number]] for way in ways]), noise, seed)
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
