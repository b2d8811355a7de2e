"""Pictures of a source, from headers to squares: what fits, how they are cropped and read, and what people are told."""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frugan.contract.settings import AllowUpscale
from frugan.data.formats.decoding import LARGEST, TRANSPARENT, WHITE, Background, Reading
from frugan.data.formats.set_file import SetFile
from frugan.data.formats.source import Classes, Source, Unreadable
from frugan.data.pixel_lines import colour_name, other_colour, range_lines, transparency_lines
from frugan.errors import BadInput
from frugan.wording import count, first_names, shown

T = TypeVar("T")

WAITING_PER_WORKER = 8


def in_order(function: Callable[[int], T], count: int, workers: int) -> Generator[T, None, None]:
    """Yield function(0), …, function(count - 1) in this order, computed by `workers` threads.

    At most `WAITING_PER_WORKER` results per worker are held. Closing the iterator, an exception and Ctrl-C cancel what
    has not begun and wait for what has.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="frugan-pictures")
    indices = iter(range(count))
    try:
        waiting: deque[Future[T]] = deque(
            pool.submit(function, index) for index in islice(indices, WAITING_PER_WORKER * workers)
        )
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(function, index) for index in islice(indices, 1))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


Resample = Literal["bilinear", "lanczos"]
Fit = Literal["crop", "pad"]

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "lanczos": Image.Resampling.LANCZOS}
MOST_RESOLUTION = 8192
LEAST_SIDE = 8
"""Fewest pixels of a side of a picture that is trained on: fewer show nothing, and are mostly counters or icons."""


@dataclass(frozen=True)
class Fitting:
    """Centre-crop to the short side, then resize: the rule of BigGAN-PyTorch's preparation, whose filter is bilinear.

    Or pad: resize the long side, then put background beside the short one; and all around a picture that is smaller
    than the result, unless it may be enlarged.

    Both filters widen with the reduction (Pillow), so nothing aliases.

    Raises:
        BadInput: a resolution, a filter or a way to fit that does not exist.
    """

    resolution: int  # side of the result in pixels
    resample: Resample = "bilinear"  # "bilinear" | "lanczos"
    allow_upscale: AllowUpscale = False  # what becomes of pictures smaller than `resolution`
    background: Background = WHITE  # what transparent pictures are laid on, before all else, and pads are made of
    fit: Fit = "crop"  # "crop" | "pad"
    range: float | None = None  # as in `Reading`

    def __post_init__(self) -> None:
        if not 1 <= self.resolution <= MOST_RESOLUTION:
            raise BadInput(f"resolution {self.resolution}: expected 1 to {MOST_RESOLUTION} pixels; try 128")
        if self.resample not in FILTERS:
            raise BadInput(f"resample {self.resample!r}: expected one of {', '.join(get_args(Resample))}")
        if self.fit not in get_args(Fit):
            raise BadInput(f"fit {self.fit!r}: expected one of {', '.join(get_args(Fit))}")
        if self.range is not None and not 0 < self.range < np.inf:
            raise BadInput(f"range {self.range}: expected the value that is white, such as 4095")

    @property
    def reading(self) -> Reading:
        """Choices for the decoder."""
        return Reading(self.background, self.range)

    @property
    def leaves_out_small(self) -> bool:
        """Whether pictures smaller than `resolution` are left out, be it only where they are few."""
        return self.allow_upscale == "leave-out" or (not self.allow_upscale and self.fit == "crop")

    @property
    def least_side(self) -> int:
        """Side in pixels below which a picture is left out."""
        return self.resolution if self.leaves_out_small else min(LEAST_SIDE, self.resolution)

    def __call__(self, picture: Image.Image) -> NDArray[np.uint8]:
        """Return uint8 [3, resolution, resolution] of an RGB picture; pixels are untouched where the size fits."""
        if self.fit == "pad":
            picture = self._padded(picture)
        width, height = picture.size
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        if width != height:
            picture = picture.crop((left, top, left + side, top + side))
        if side != self.resolution:
            picture = picture.resize((self.resolution, self.resolution), FILTERS[self.resample])
        return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))  # [3, R, R]

    def _padded(self, picture: Image.Image) -> Image.Image:
        width, height = picture.size
        scale = self.resolution / max(width, height)
        if scale < 1 or (scale > 1 and self.allow_upscale is True):
            width, height = (max(1, round(side * scale)) for side in picture.size)
            picture = picture.resize((width, height), FILTERS[self.resample])
        if (width, height) == (self.resolution, self.resolution):
            return picture
        square = Image.new("RGB", (self.resolution, self.resolution), self.background)
        square.paste(picture, ((self.resolution - width) // 2, (self.resolution - height) // 2))
        return square

    def fitted_sides(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, from sizes [N, 2], the side that is scaled to the resolution [N]; of crops the short one."""
        sides: NDArray[np.int64] = sizes.min(axis=1) if self.fit == "crop" else sizes.max(axis=1)
        return sides


MOST_BAD = 0.01  # share of pictures that may be left out because they cannot be read
MOST_SMALL = 0.1  # share that may be left out because they are too small where nobody has asked for it


def few_small(small: int, pictures: int) -> bool:
    """Return whether so few pictures are too small that they are left out by themselves."""
    return small < pictures and small <= max(1, MOST_SMALL * pictures)


Progress = Callable[[int, int], None]


class SmallPictures(BadInput):
    """Pictures that would have to be enlarged; what to do is said in the words of whoever asked for them.

    Attributes:
        reason: which they are.
        least: short side of the smallest, in pixels.
    """

    def __init__(self, reason: str, least: int) -> None:
        super().__init__(
            f"{reason}. Leave them out (allow_upscale='leave-out'), enlarge them (allow_upscale=True), or pad them "
            "(fit='pad')."
        )
        self.reason = reason
        self.least = least


@dataclass(frozen=True, eq=False)
class Survey:
    """Sizes and formats of N pictures by their headers."""

    # width and height in pixels, int64 [N, 2]; zeros where the header cannot be read, and of pictures left out
    sizes: NDArray[np.int64]
    bad: dict[int, str]  # index to reason of the pictures that cannot be read
    left_out: tuple[int, ...] = ()  # indices of the pictures that are left out because they are too small

    @property
    def members(self) -> NDArray[np.int64]:
        """Return the indices of the pictures that are not left out; some of them may be in `bad`."""
        return np.setdiff1d(np.arange(len(self.sizes)), self.left_out)

    def smaller_than(self, fitting: Fitting, but: Collection[int] = ()) -> NDArray[np.int64]:
        """Return the indices of readable pictures that are too small for a resolution, without those in `but`."""
        sides = fitting.fitted_sides(self.sizes)
        return np.setdiff1d(np.flatnonzero((sides > 0) & (sides < fitting.resolution)), list(but))


def survey(source: Source, fitting: Fitting, *, workers: int, progress: Progress | None = None) -> Survey:
    """Read the header of every picture of a source with `workers` threads; `progress` gets (done, N).

    Raises:
        BadInput: too many cannot be read, or are smaller than `fitting` allows; or none of a class is large enough.
    """
    sizes = np.zeros((len(source), 2), np.int64)
    bad: dict[int, str] = {}

    def size(index: int) -> tuple[int, int] | str:
        try:
            return source.size(index)
        except Unreadable as error:
            return str(error)

    with closing(in_order(size, len(source), workers)) as results:
        for index, result in enumerate(results):
            if isinstance(result, str):
                bad[index] = result
            else:
                sizes[index] = result
            if progress is not None:
                progress(index + 1, len(source))
    refuse_bad(source, bad)
    return _without_small(source, Survey(sizes, bad), fitting)


def _without_small(source: Source, surveyed: Survey, fitting: Fitting) -> Survey:
    """Leave out what is too small to show anything, and what is smaller than the resolution as `fitting` says.

    Raises:
        BadInput: this would leave nothing, or nothing of a class, which a network would be asked for and never shown.
        SmallPictures: more than a few would have to be left out, and nobody has asked for it.
    """
    short_sides, classes = surveyed.sizes.min(axis=1), source.classes
    left_out = tiny = np.flatnonzero((short_sides > 0) & (short_sides < min(LEAST_SIDE, fitting.resolution)))
    if fitting.leaves_out_small:
        small = surveyed.smaller_than(fitting, but=tiny)
        if fitting.allow_upscale != "leave-out":
            _refuse_many(source, surveyed, small, len(source) - len(surveyed.bad) - tiny.size, fitting.resolution)
        left_out = np.union1d(tiny, small)
    if not left_out.size:
        return surveyed
    can_enlarge, where = left_out.size > tiny.size, shown(str(source.path))
    side = fitting.resolution if can_enlarge else min(LEAST_SIDE, fitting.resolution)
    enlarge = "enlarge them: data.allow_upscale=true (--allow-upscale of prepare)"
    if left_out.size + len(surveyed.bad) == len(source):
        cure = f"Choose a smaller resolution, or {enlarge}" if can_enlarge else "Give larger ones"
        raise BadInput(f"every picture in {where} is smaller than {side} x {side}: none is left. {cure}.")
    there, left = (
        np.bincount(classes.labels[members], minlength=len(classes.names))
        for members in (np.arange(len(source)), np.setdiff1d(np.arange(len(source)), [*left_out, *surveyed.bad]))
    )
    if classes.labelled and (gone := np.flatnonzero((there > 0) & (left == 0))).size:
        cure = enlarge if can_enlarge else "give it larger ones"
        raise BadInput(
            f"class {classes.names[gone[0]]!r} in {where}: all its pictures are smaller than {side} x {side}, and none "
            f"is left. Remove the class, or {cure}."
        )
    sizes = surveyed.sizes.copy()
    sizes[left_out] = 0
    return Survey(sizes, surveyed.bad, tuple(left_out.tolist()))


def _refuse_many(source: Source, surveyed: Survey, small: NDArray[np.int64], pictures: int, resolution: int) -> None:
    """Refuse to leave out a good part of the pictures.

    Args:
        small: indices of those that are too small for the resolution.
        pictures: how many there are, with those.

    Raises:
        SmallPictures: they are more than a few.
    """
    if not small.size or few_small(small.size, pictures):
        return
    width, height = surveyed.sizes[small[0]]
    raise SmallPictures(
        f"{count(small.size, 'picture')} of {pictures:,} in {shown(str(source.path))} "
        f"{'is' if small.size == 1 else 'are'} smaller than {resolution} x {resolution}: "
        f"{first_names([source.names[index] for index in small])} (the first has {width} x {height})",
        int(surveyed.sizes[small].min()),
    )


def refuse_bad(source: Source, bad: Mapping[int, str]) -> None:
    """Refuse a source of which too much cannot be read.

    Raises:
        BadInput: more than one and more than `MOST_BAD` of the pictures are in `bad` (index to reason), or all of a
            class, which a network would then be asked for and never shown.
    """
    classes = source.classes
    if bad and classes.labelled:
        there, lost = (
            np.bincount(labels, minlength=len(classes.names))
            for labels in (classes.labels, classes.labels[sorted(bad)])
        )
        if (gone := np.flatnonzero((there > 0) & (lost == there))).size:
            of_it = {index: reason for index, reason in bad.items() if classes.labels[index] == gone[0]}
            raise BadInput(
                f"class {classes.names[gone[0]]!r} in {shown(str(source.path))}: none of its pictures can be read: "
                f"{bad_names(source, of_it)}. Replace them, or remove the class."
            )
    if len(bad) > max(1, MOST_BAD * len(source)) or len(bad) == len(source):
        raise BadInput(
            f"at least {count(len(bad), 'picture')} of {len(source):,} in {shown(str(source.path))} cannot be read, "
            f"more than {MOST_BAD:.0%}: {bad_names(source, bad)}. Replace or remove them."
        )


def bad_names(source: Source, bad: Mapping[int, str]) -> str:
    """Return the first names in `bad` with their reasons."""
    return first_names([f"{source.names[index]} ({reason})" for index, reason in sorted(bad.items())])


# What people are told of a preparation.

FEW_PICTURES = 20
"""Fewest pictures of a class without a warning."""


@dataclass(frozen=True)
class PreparationReport:
    """Counts and warnings of a preparation."""

    path: Path  # the prepared set
    kind: str  # format of the source, in words
    pictures: int  # how many the set holds
    class_names: tuple[str, ...]  # name of each class
    labelled: bool  # whether the classes mean anything
    bad: tuple[tuple[str, str], ...]  # name and reason of each picture that was left out
    upscaled: int  # how many pictures were enlarged
    transparent: int | None  # how many were transparent in places; None: they were not counted, by an earlier version
    digest: str  # of pixels and labels, as in PictureSet
    grey: int | None  # how many pictures are grey; None: they were not counted, by an earlier version
    lines: tuple[str, ...]  # everything that was decided automatically, one line each, for the user to read


def report_of(path: Path, about: SetFile, lines: tuple[str, ...]) -> PreparationReport:
    """Return the report on a prepared set from its `set.json`."""
    return PreparationReport(
        path,
        about.origin.kind,
        about.pictures,
        tuple(about.class_names),
        about.labelled,
        tuple(about.origin.bad),
        about.origin.upscaled,
        about.origin.transparent,
        about.digest,
        about.grey,
        lines,
    )


def source_lines(source: Source) -> tuple[str, ...]:
    """Return what was taken for pictures and classes."""
    classes = source.classes
    return (f"{shown(str(source.path))}: {source.kind}", *classes.lines, *few_lines(classes), *source.lines)


def few_lines(classes: Classes) -> tuple[str, ...]:
    """Return which classes, or that all, have so few pictures that a network learns them by heart."""
    if not classes.labelled:
        only = len(classes.labels)
        line = f"only {count(only, 'picture')}: so few are learned by heart; add some, better some hundreds"
        return (line,) if only < FEW_PICTURES else ()
    counts = np.bincount(classes.labels, minlength=len(classes.names))
    few = [number for number in np.argsort(counts, kind="stable") if 0 < counts[number] < FEW_PICTURES]
    if not few:
        return ()
    named = first_names([f"{classes.names[number]} ({counts[number]})" for number in few])
    has = "has" if len(few) == 1 else "have"
    return (
        f"{count(len(few), 'class')} {has} fewer than {FEW_PICTURES} pictures: {named}; so few are learned by heart: "
        "add some, or leave the class out",
    )


def fitting_lines(source: Source, fitting: Fitting, surveyed: Survey, bad: Mapping[int, str]) -> tuple[str, ...]:
    """Return what was done to the pictures: cropped or padded, resized, enlarged, left out."""
    side, padded = fitting.resolution, fitting.fit == "pad"
    used = np.setdiff1d(surveyed.members, list(bad))
    sizes = surveyed.sizes[used]  # [n, 2]
    small = surveyed.smaller_than(fitting, but=bad).size
    smallest = smallest_names(fitting, sizes, [source.names[index] for index in used])
    kept_small = small if padded and not fitting.allow_upscale else 0
    left_out = surveyed.left_out
    upscaled = small - kept_small
    resized = int((fitting.fitted_sides(sizes) != side).sum()) - kept_small
    oblong = int((sizes[:, 0] != sizes[:, 1]).sum())
    other = "lanczos" if fitting.resample == "bilinear" else "bilinear"
    lines = []
    colour, another = colour_name(fitting.background), other_colour(fitting.background)
    if oblong and padded:
        lines.append(
            f"{count(oblong, 'picture')} of {len(used):,} padded to squares with {colour} (another colour: "
            f"data.background={another}; --background of prepare)"
        )
    elif oblong:
        lines.append(
            f"{count(oblong, 'picture')} of {len(used):,} cropped to the square in the middle (or padded: "
            "data.fit=pad; --fit pad of prepare)"
        )
    if resized:
        lines.append(
            f"{count(resized, 'picture')} resized to {side} x {side} ({fitting.resample}; or resample={other})"
        )
    if kept_small:
        lines.append(
            f"{count(kept_small, 'picture')} smaller than {side} x {side}, with {colour} all around (allow_upscale "
            "enlarges them)"
        )
    lines += _small_lines([source.names[index] for index in left_out], upscaled, fitting)
    if smallest:
        lines.append(f"the smallest that are used: {smallest}")
    return (*lines, *_bad_lines(source, bad))


def smallest_names(fitting: Fitting, sizes: NDArray[np.int64], names: Sequence[str]) -> str:
    """Return the names of pictures smaller than a resolution, the smallest first, with their sizes [N, 2]."""
    sides = fitting.fitted_sides(sizes)
    small = [index for index in np.argsort(sides, kind="stable") if sides[index] < fitting.resolution]
    return first_names([f"{names[index]} ({sizes[index, 0]:,} x {sizes[index, 1]:,})" for index in small])


def _small_lines(left_out: Sequence[str], upscaled: int, fitting: Fitting) -> Iterator[str]:
    """Return what became of pictures that are too small: names of those left out, and how many were enlarged."""
    if left_out:
        smaller = f"smaller than {fitting.least_side} x {fitting.least_side}"
        unasked = fitting.leaves_out_small and fitting.allow_upscale != "leave-out"
        instead = (
            f" (data.allow_upscale=true enlarges those of {LEAST_SIDE} pixels and more; --allow-upscale of prepare)"
            if unasked
            else ""
        )
        yield f"{count(len(left_out), 'picture')} left out, {smaller}: {first_names(left_out)}{instead}"
    if upscaled:
        yield f"{count(upscaled, 'picture')} enlarged, as allow_upscale permits: expect them to be soft"


def kept_lines(about: SetFile) -> tuple[str, ...]:
    """Return which pictures a set that was prepared before has not, and how many in it were enlarged."""
    origin, bad = about.origin, first_names([f"{name} ({reason})" for name, reason in about.origin.bad])
    fitting = Fitting(
        about.resolution, allow_upscale=origin.allow_upscale, fit="pad" if origin.fit == "pad" else "crop"
    )
    small = _small_lines(origin.left_out or (), origin.upscaled, fitting)
    return (*small, *((f"{count(len(origin.bad), 'picture')} left out, cannot be read: {bad}",) if origin.bad else ()))


def left_out_lines(source: Source, fitting: Fitting, surveyed: Survey, bad: Mapping[int, str]) -> tuple[str, ...]:
    """Return which pictures are left out because they are too small or cannot be read, if any are."""
    small = _small_lines([source.names[index] for index in surveyed.left_out], 0, fitting)
    return (*small, *_bad_lines(source, bad))


def _bad_lines(source: Source, bad: Mapping[int, str]) -> tuple[str, ...]:
    return (f"{count(len(bad), 'picture')} left out, cannot be read: {bad_names(source, bad)}",) if bad else ()


# The pictures themselves: read, fitted and encoded.


class FittedPictures(Generic[T]):
    """Reads, fits and encodes the pictures of a source, and keeps count.

    Args:
        source: N pictures, whose headers are read at once.
        fitting: how they become squares.
        encoded: a picture uint8 [3, R, R] as it is stored; called by several threads.
        workers: threads that decode and encode.
        survey_progress: gets (pictures done, N) while headers are read.

    Attributes:
        good: indices of those that could be read, in order.
        bad: the others, with reasons.
        transparent: indices of those that were transparent in places.
        largest: of each picture of 16 bits whose range nothing says, the largest value.

    Pictures that the survey leaves out are in neither `good` nor `bad`.

    Raises:
        BadInput: pictures are too small, or more than 1 % have a header that cannot be read.
    """

    def __init__(
        self,
        source: Source,
        fitting: Fitting,
        encoded: Callable[[NDArray[np.uint8]], T],
        *,
        workers: int,
        survey_progress: Progress | None,
    ) -> None:
        self.source, self.fitting = source, fitting
        self._encoded, self._workers = encoded, workers
        self._survey = survey(source, fitting, workers=workers, progress=survey_progress)
        self.bad = dict(self._survey.bad)
        self.good: list[int] = []
        self.transparent: list[int] = []
        self.largest: list[int] = []

    def read(self, progress: Progress | None) -> Generator[tuple[T, int], None, None]:
        """Encoded pictures with their class numbers, in order; `progress` gets (pictures done, those to be read).

        Raises:
            BadInput: more than 1 % cannot be read.
        """
        source, members = self.source, self._survey.members.tolist()
        with closing(in_order(lambda at: self._read(members[at]), len(members), self._workers)) as results:
            for done, (index, result) in enumerate(zip(members, results, strict=True), 1):
                if isinstance(result, Unreadable):
                    self.bad[index] = str(result)
                    refuse_bad(source, self.bad)
                else:
                    self.good.append(index)
                    yield result, int(source.classes.labels[index])
                if progress is not None:
                    progress(done, len(members))

    def _read(self, index: int) -> T | Unreadable:
        if index in self._survey.bad:
            return Unreadable(self._survey.bad[index])
        try:
            picture = self.source.picture(index)
        except Unreadable as error:
            return error
        if picture.info.get(TRANSPARENT):
            self.transparent.append(index)  # by several threads at once: appending is one operation
        if LARGEST in picture.info:
            self.largest.append(picture.info[LARGEST])
        return self._encoded(self.fitting(picture))

    @property
    def left_out(self) -> tuple[int, ...]:
        """Indices of the pictures that were left out because they are too small."""
        return self._survey.left_out

    @property
    def upscaled(self) -> int:
        """Number of pictures that were enlarged."""
        fitting = self.fitting
        padded = fitting.fit == "pad" and not fitting.allow_upscale
        return 0 if padded else self._survey.smaller_than(fitting, but=self.bad).size

    def lines(self) -> tuple[str, ...]:
        """Return what the survey found, in lines for people."""
        return (
            *source_lines(self.source),
            *fitting_lines(self.source, self.fitting, self._survey, self.bad),
            *transparency_lines(len(self.transparent), self.fitting.background),
            *range_lines(self.largest),
        )
