"""Facts of a set of pictures by which a recipe is chosen: counts, sizes, classes, and a look at some."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frugan.data.formats.decoding import BLACK, LARGEST, TRANSPARENT, WHITE, Background, Reading, is_grey
from frugan.data.formats.detect import open_source
from frugan.data.formats.picture_set import PictureSet
from frugan.data.formats.source import Source, Unreadable
from frugan.data.pixel_lines import range_lines
from frugan.data.survey import (
    Fitting,
    Progress,
    Survey,
    few_small,
    in_order,
    left_out_lines,
    refuse_bad,
    smallest_names,
    survey,
)
from frugan.errors import BadInput
from frugan.wording import count, first_names, shown

LOOKED_AT = 600
"""Number of pictures that are decoded; the headers of all are read."""
LOOKED_AT_PIXELS = 32
"""Side to which decoded pictures are scaled."""
FEWEST = 20
"""Fewest pictures from which facts are drawn."""
FAINT = 24
"""Levels of 255 between the darkest and the brightest place of a picture that shows nothing."""
WORKERS = 2
"""Number of threads that read and decode."""


@dataclass(frozen=True)
class Duplicate:
    """A picture whose pixels are those of one before it."""

    name: str
    first: str  # name of the one before it
    across: bool  # whether that is in another class

    def __str__(self) -> str:
        return f"{self.first} = {self.name}"


@dataclass(frozen=True, eq=False)
class PictureFacts:
    """Facts of N pictures before any is prepared."""

    sizes: NDArray[np.int64]  # width and height in pixels [N, 2], of those whose header can be read
    class_counts: tuple[int, ...]  # pictures of each class; empty: there are no classes
    # some of them, evenly from all, laid on and padded with a background [n, 3, LOOKED_AT_PIXELS, LOOKED_AT_PIXELS]
    looked_at: NDArray[np.uint8]
    grey: bool  # whether all those looked at are
    transparent: int  # how many of those looked at are transparent in places
    duplicates: tuple[Duplicate, ...]  # of those looked at
    background: Background = WHITE  # what those looked at are laid on
    vanished: int = 0  # how many of those looked at are transparent in places, and cannot be seen on it
    only_side: int | None = None  # of pictures that are opened already, in pixels; None: they become what is wanted
    # which files are ignored, which pictures cannot be read or are tiny, and how many use little of their range: a line
    # for each kind
    left_out: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of the pictures of `sizes`; empty: they are opened already, and know no files
    labels: NDArray[np.int64] | None = None  # number of the class of each picture of `sizes`; None: nobody knows

    @property
    def pictures(self) -> int:
        """Number of pictures."""
        return len(self.sizes)

    @property
    def oblong(self) -> float:
        """Share of the pictures whose long side is more than a tenth longer than the short one."""
        return float((self.sizes.max(axis=1) > 1.1 * self.sizes.min(axis=1)).mean())

    def sides(self, *, whole: bool) -> NDArray[np.int64]:
        """Pixels [N] of the side of the square that each becomes.

        Args:
            whole: pictures are padded and not cropped, so the long side counts.
        """
        sides: NDArray[np.int64] = self.sizes.max(axis=1) if whole else self.sizes.min(axis=1)
        return sides

    @property
    def _colours(self) -> str:
        looked_at = len(self.looked_at)
        if not self.grey:
            return "in colour"
        return "all grey" if looked_at == self.pictures else f"grey (the {looked_at:,} looked at)"

    def smaller_than(self, side: int, *, whole: bool) -> int:
        """Return how many pictures would have to be enlarged to squares of `side` pixels; `whole` as for `sides`."""
        return int((self.sides(whole=whole) < side).sum())

    def few_smaller_than(self, side: int) -> bool:
        """Return whether so few are smaller than `side` that they can be left out, and some of each class stay."""
        small = self.sides(whole=False) < side
        if self.labels is not None and len(np.unique(self.labels)) > len(np.unique(self.labels[~small])):
            return False
        return few_small(int(small.sum()), self.pictures)

    def smallest(self, fitting: Fitting) -> str:
        """Return the names of the smallest that are smaller than a resolution; empty: nobody knows names."""
        return smallest_names(fitting, self.sizes, self.names) if self.names else ""

    def __str__(self) -> str:
        """Describe the facts in one line; pixels are those of short sides."""
        sides = self.sides(whole=False)
        few, middle, many = (f"{value:,}" for value in (sides.min(), int(np.median(sides)), sides.max()))
        counts, looked_at = self.class_counts, len(self.looked_at)
        parts = [
            f"{self.pictures:,} of {_from_to(few, many)} pixels{'' if few == many else f' (median {middle})'}",
            f"{len(counts)} classes of {_from_to(f'{min(counts):,}', f'{max(counts):,}')}" if counts else "no classes",
            self._colours,
        ]
        if self.transparent:
            parts.append(f"{self.transparent / looked_at:.0%} transparent in places")
        if self.duplicates:
            twice = count(len(self.duplicates), "duplicate")
            parts.append(f"{twice} among {looked_at:,} looked at, which stay in the set")
        return ", ".join(parts)

    @property
    def duplicate_lines(self) -> tuple[str, ...]:
        """Which pictures are there twice, and a warning of those that are in two classes; empty: none were seen."""
        within, across = ([str(twice) for twice in self.duplicates if twice.across is way] for way in (False, True))
        lines = [f"duplicates: {first_names(within)}"] if within else []
        if across:
            lines.append(
                f"warning: the same picture in two classes: {first_names(across)}; the network is told that it is "
                "both: leave it in one of them"
            )
        return tuple(lines)


def _from_to(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def look_at(
    data: str | Path | PictureSet,
    progress: Progress | None = None,
    background: Background | None = None,
    range: float | None = None,
) -> PictureFacts:
    """Read the headers of all pictures, and decode some.

    Args:
        data: anything that `prepare` takes, or an opened set.
        progress: gets (headers read, N).
        background: colour to put behind transparent pictures; None: white, or black if most are seen on that alone.
        range: as in `Reading`.

    Raises:
        BadInput: no pictures are there, too few, or more than 1 % cannot be read.
    """
    if isinstance(data, PictureSet):
        return _of_set(data)
    path, laid_on = Path(data), background or WHITE
    with open_source(path, Reading(laid_on, range)) as source:
        surveyed = survey(source, _looking(laid_on), workers=WORKERS, progress=progress)
        facts = _of_source(source, surveyed, laid_on)
    if background is None and facts.vanished > len(facts.looked_at) / 2:
        with open_source(path, Reading(BLACK, range)) as source:
            on_black = _of_source(source, surveyed, BLACK)
        return min(facts, on_black, key=lambda fact: fact.vanished)  # thin dark lines are seen on neither
    return facts


def _looking(on: Background) -> Fitting:
    return Fitting(LOOKED_AT_PIXELS, allow_upscale=True, background=on, fit="pad")


def _of_source(source: Source, surveyed: Survey, on: Background) -> PictureFacts:
    fitting, sizes = _looking(on), surveyed.sizes  # [N, 2]
    readable = np.flatnonzero(sizes.min(axis=1) > 0)
    _refuse_few(shown(str(source.path)), len(readable), *source.lines)
    some, bad = _some(readable), dict[int, str]()

    def look(at: int) -> tuple[int, NDArray[np.uint8], bool, bytes, int | None] | None:
        index = int(some[at])
        try:
            picture = source.picture(index)
        except Unreadable as error:
            bad[index] = str(error)
            return None  # told of when the set is prepared
        info = picture.info
        return index, fitting(picture), bool(info.get(TRANSPARENT)), _digest(np.asarray(picture)), info.get(LARGEST)

    with closing(in_order(look, len(some), WORKERS)) as results:
        seen = [result for result in results if result is not None]
    bad.update(surveyed.bad)
    refuse_bad(source, bad)
    _refuse_few(shown(str(source.path)), len(seen), *source.lines)
    readable = np.setdiff1d(readable, list(bad))
    classes = source.classes
    counts = np.bincount(classes.labels[readable], minlength=len(classes.names))
    looked_at = np.stack([picture for _, picture, *_ in seen])
    clear = np.array([result for _, _, result, *_ in seen])  # [n]
    labelled = classes.labelled and len(counts) > 1
    pixels = {index: digest for index, _, _, digest, _ in seen}
    twice = _duplicates(pixels, source.names, classes.labels if labelled else None)
    facts = _facts(sizes[readable], counts if labelled else None, looked_at, clear, twice)
    dark = range_lines([largest for *_, largest in seen if largest is not None])
    lines = (*source.lines, *left_out_lines(source, fitting, surveyed, bad), *dark)
    return replace(
        facts,
        background=on,
        left_out=lines,
        names=tuple(source.names[index] for index in readable.tolist()),
        labels=classes.labels[readable] if labelled else None,
    )


def _of_set(pictures: PictureSet) -> PictureFacts:
    _refuse_few("the set", len(pictures))
    fitting, labels = Fitting(LOOKED_AT_PIXELS, allow_upscale=True), pictures.labels
    members = _some(np.arange(len(pictures)))  # [n]
    some = pictures.in_colour(members)  # [n, 3, R, R]
    looked_at = np.stack(
        [fitting(Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))) for picture in some]
    )
    sizes = np.full((len(pictures), 2), pictures.resolution, np.int64)
    counts = np.bincount(labels, minlength=len(pictures.class_names))
    labelled, clear = pictures.labelled and len(counts) > 1, np.zeros(len(some), bool)
    pixels = {int(index): _digest(picture) for index, picture in zip(members, some, strict=True)}
    names = [f"picture {index}" for index in range(len(pictures))]  # a set knows no files
    twice = _duplicates(pixels, names, labels if labelled else None)
    facts = _facts(sizes, counts if labelled else None, looked_at, clear, twice)
    return replace(facts, grey=facts.grey or pictures.channels == 1, only_side=pictures.resolution)


def _digest(pixels: NDArray[np.uint8]) -> bytes:
    """Return a digest of a picture at its own size: made small, different pictures may be equal."""
    return sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()


def _duplicates(
    pixels: Mapping[int, bytes], names: Sequence[str], labels: NDArray[np.int64] | None
) -> tuple[Duplicate, ...]:
    """Return the duplicates among some pictures, index -> digest; without labels none is in another class."""
    first: dict[bytes, int] = {}
    return tuple(
        Duplicate(
            shown(names[index]), shown(names[before]), labels is not None and bool(labels[index] != labels[before])
        )
        for index, digest in pixels.items()
        if (before := first.setdefault(digest, index)) != index
    )


def _some(members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pick indices evenly from all: similar files often follow each other."""
    return members[np.linspace(0, len(members) - 1, min(LOOKED_AT, len(members))).astype(np.int64)]


def _refuse_few(where: str, pictures: int, *besides: str) -> None:
    if pictures < FEWEST:
        few = (
            f"{where}: {count(pictures, 'picture')} that can be read; expected at least {FEWEST}, better some "
            "hundreds: so few a network learns by heart"
        )
        raise BadInput("; ".join((few, *besides)))


def _facts(
    sizes: NDArray[np.int64],
    class_counts: NDArray[np.int64] | None,
    looked_at: NDArray[np.uint8],
    clear: NDArray[np.bool_],
    duplicates: tuple[Duplicate, ...],
) -> PictureFacts:
    """Facts; `clear` [n] says which of those looked at are transparent in places."""
    contrast = np.ptp(looked_at, axis=(1, 2, 3))  # [n]
    return PictureFacts(
        sizes,
        () if class_counts is None else tuple(map(int, class_counts)),
        looked_at,
        is_grey(looked_at),
        int(clear.sum()),
        duplicates,
        vanished=int((clear & (contrast < FAINT)).sum()),
    )
