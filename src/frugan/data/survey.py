"""Look at every picture's header before hours are spent on pixels."""

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frugan.data.fitting import Fitting
from frugan.data.ordered import in_order
from frugan.data.source import Source, Unreadable
from frugan.data.wording import count, first_names, shown
from frugan.errors import BadInput

MOST_BAD = 0.01  # share of pictures that may be left out

Progress = Callable[[int, int], None]


class SmallPictures(BadInput):
    """Pictures that would have to be enlarged; what to do is said in the words of whoever asked for them.

    Attributes:
        reason: which they are.
        least: short side of the smallest, in pixels.
    """

    def __init__(self, reason: str, least: int) -> None:
        super().__init__(f"{reason}. Remove them, or enlarge them (allow_upscale=True).")
        self.reason = reason
        self.least = least


@dataclass(frozen=True, eq=False)
class Survey:
    """What the headers of N pictures say.

    Attributes:
        sizes: width and height in pixels, int64 [N, 2]; zeros where the header cannot be read.
        bad: index to reason of the pictures that cannot be read.
    """

    sizes: NDArray[np.int64]
    bad: dict[int, str]

    def smaller_than(self, side: int, but: Collection[int] = ()) -> NDArray[np.int64]:
        """Return the indices of readable pictures whose short side is below `side` pixels, without those in `but`."""
        short = self.sizes.min(axis=1)
        return np.setdiff1d(np.flatnonzero((short > 0) & (short < side)), list(but))

    @property
    def oblong(self) -> int:
        """Return how many pictures are not square."""
        return int((self.sizes[:, 0] != self.sizes[:, 1]).sum())


def survey(source: Source, fitting: Fitting, *, workers: int, progress: Progress | None = None) -> Survey:
    """Read the header of every picture of a source with `workers` threads; `progress` gets (done, N).

    Raises:
        BadInput: too many cannot be read, or are smaller than `fitting` allows.
    """
    sizes = np.zeros((len(source), 2), np.int64)
    bad: dict[int, str] = {}

    def size(index: int) -> tuple[int, int] | str:
        try:
            return source.size(index)
        except Unreadable as error:
            return str(error)

    with closing(in_order(size, len(source), workers)) as results:
        for index, found in enumerate(results):
            if isinstance(found, str):
                bad[index] = found
            else:
                sizes[index] = found
            if progress is not None:
                progress(index + 1, len(source))
    refuse_bad(source, bad)
    surveyed = Survey(sizes, bad)
    _refuse_small(source, surveyed, fitting)
    return surveyed


def _refuse_small(source: Source, found: Survey, fitting: Fitting) -> None:
    """Refuse pictures that would have to be enlarged.

    Raises:
        SmallPictures: there are some, and `fitting` does not allow it.
    """
    small = found.smaller_than(fitting.resolution)
    if fitting.allow_upscale or not small.size:
        return
    width, height = found.sizes[small[0]]
    raise SmallPictures(
        f"{count(small.size, 'picture')} of {len(source):,} in {shown(str(source.path))} "
        f"{'is' if small.size == 1 else 'are'} smaller than {fitting.resolution} x {fitting.resolution}: "
        f"{first_names([source.names[index] for index in small])} (the first has {width} x {height})",
        int(found.sizes[small].min()),
    )


def refuse_bad(source: Source, bad: Mapping[int, str]) -> None:
    """Refuse a source of which too much cannot be read.

    Raises:
        BadInput: more than `MOST_BAD` of the pictures are in `bad` (index to reason).
    """
    if len(bad) > MOST_BAD * len(source):
        raise BadInput(
            f"at least {count(len(bad), 'picture')} of {len(source):,} in {shown(str(source.path))} cannot be read, "
            f"more than {MOST_BAD:.0%}: {bad_names(source, bad)}. Replace or remove them."
        )


def bad_names(source: Source, bad: Mapping[int, str]) -> str:
    """Return the first names in `bad` with their reasons."""
    return first_names([f"{source.names[index]} ({reason})" for index, reason in sorted(bad.items())])
