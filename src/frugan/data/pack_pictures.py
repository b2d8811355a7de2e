"""Pictures, cropped and resized to squares, into a file (or a folder of files) that other programs read."""

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frugan.data.classes import Classes
from frugan.data.fitted_pictures import FittedPictures
from frugan.data.fitting import Fitting
from frugan.data.formats import open_source
from frugan.data.survey import Progress
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
        fitted = FittedPictures(opened, fitting, packing.encoded, workers=workers, survey_progress=survey_progress)
        try:
            with _appears(out) as beside, closing(fitted.read(progress)) as pictures:
                packing.write(beside, pictures, opened.classes, fitting.resolution)
        except OSError as error:  # reading errors are Unreadable: this is the writing side
            raise BadInput(
                f"cannot write {shown(str(out))}: {error.strerror or error}. Nothing was left there. Free some room, "
                "or choose another OUT."
            ) from error
        lines = (*fitted.lines(), *packing.lines(opened.classes, fitting.resolution))
    return len(fitted.good), lines


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
