"""Pictures, cropped and resized to squares, into a file (or a folder of files) that other programs read."""

import io
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frugan.data.classes import Classes
from frugan.data.decoding import TRANSPARENT
from frugan.data.fitting import Fitting
from frugan.data.formats import open_source
from frugan.data.ordered import in_order
from frugan.data.preparation_report import fitting_lines, source_lines, transparency_lines
from frugan.data.source import Source, Unreadable
from frugan.data.survey import Progress, refuse_bad, refuse_small, survey
from frugan.data.wording import shown
from frugan.errors import BadInput

T = TypeVar("T")


class Packing(Protocol[T]):
    """How pictures are laid down."""

    def encoded(self, pixels: NDArray[np.uint8]) -> T:
        """A picture [3, R, R] as it is stored; called by several threads."""

    def write(self, out: Path, pictures: Iterator[tuple[T, int]], classes: Classes, resolution: int) -> None:
        """Write pictures with their class numbers, in order, into `out`, which is not there yet."""

    def lines(self, classes: Classes, resolution: int) -> Iterator[str]:
        """What people are told of it."""


def pack_pictures(
    source: Path,
    out: Path,
    packing: Packing[T],
    fitting: Fitting,
    *,
    workers: int = 2,
    progress: Progress | None = None,
    survey_progress: Progress | None = None,
) -> tuple[int, tuple[str, ...]]:
    """Pack the pictures of a source; `out` appears when it is complete.

    Args:
        source: anything that can be trained on.
        out: file or folder to make.
        packing: the form that it has.
        fitting: how pictures become squares.
        workers: threads that decode and encode.
        progress: gets (pictures done, pictures in all) while pixels are written.
        survey_progress: the same while headers are read, before that.

    Returns:
        How many pictures there are, and lines for people.

    Raises:
        BadInput: `out` exists; or the source is missing, unknown or wrong; more than 1 % cannot be read; the disk is
            full.
    """
    if out.is_symlink() or out.exists():
        raise BadInput(f"{shown(str(out))} exists; it is not overwritten. Delete it, or choose another OUT.")
    with open_source(source, fitting.background) as opened:
        found = survey(opened, workers=workers, progress=survey_progress)
        refuse_bad(opened, found.bad)
        refuse_small(opened, found, fitting)
        reading = _Reading(opened, packing, fitting, dict(found.bad))
        try:
            with _appears(out) as beside, closing(reading.pictures(workers, progress)) as pictures:
                packing.write(beside, pictures, opened.classes, fitting.resolution)
        except OSError as error:  # reading errors are Unreadable: this is the writing side
            raise BadInput(
                f"cannot write {shown(str(out))}: {error.strerror or error}. Nothing was left there. Free some room, "
                "or choose another OUT."
            ) from error
        upscaled = int(np.isin(found.smaller_than(fitting.resolution), reading.good).sum())
        lines = (
            *source_lines(opened),
            *fitting_lines(opened, fitting, found, reading.bad, upscaled),
            *transparency_lines(len(reading.transparent), fitting.background),
            *packing.lines(opened.classes, fitting.resolution),
        )
    return len(reading.good), lines


@dataclass(frozen=True)
class _Bad:
    """A picture that could not be read, and why."""

    reason: str


class _Reading(Generic[T]):
    """Reads, fits and encodes the pictures of a source, and keeps count.

    Attributes:
        good: indices of those that could be read.
        bad: the others, with reasons.
        transparent: those that were transparent in places.
    """

    def __init__(self, source: Source, packing: Packing[T], fitting: Fitting, bad: dict[int, str]) -> None:
        self._source, self._packing, self._fitting = source, packing, fitting
        self._unreadable = dict(bad)
        self.bad = bad
        self.good: list[int] = []
        self.transparent: list[int] = []

    def pictures(self, workers: int, progress: Progress | None) -> Generator[tuple[T, int], None, None]:
        """Encoded pictures with their class numbers, in order."""
        source = self._source
        with closing(in_order(self._read, len(source), workers)) as results:
            for index, result in enumerate(results):
                if isinstance(result, _Bad):
                    self.bad[index] = result.reason
                    refuse_bad(source, self.bad)
                else:
                    self.good.append(index)
                    yield result, int(source.classes.labels[index])
                if progress is not None:
                    progress(index + 1, len(source))

    def _read(self, index: int) -> T | _Bad:
        if index in self._unreadable:
            return _Bad(self._unreadable[index])
        try:
            picture = self._source.picture(index)
        except Unreadable as error:
            return _Bad(str(error))
        if picture.info.get(TRANSPARENT):
            self.transparent.append(index)  # by several threads at once: appending is one operation
        return self._packing.encoded(self._fitting(picture))


def png(pixels: NDArray[np.uint8], compress_level: int) -> bytes:
    """[3, R, R] as an RGB PNG."""
    encoded = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    picture.save(encoded, "PNG", compress_level=compress_level)
    return encoded.getvalue()


@contextmanager
def _appears(out: Path) -> Iterator[Path]:
    """Give a place beside `out`; rename it when the block ends well, delete it when an exception leaves."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    try:
        yield beside
        for path in sorted(beside.rglob("*")) if beside.is_dir() else [beside]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        beside.rename(out)
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        beside.unlink(missing_ok=True)
