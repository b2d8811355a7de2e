"""Write pictures as NVlabs' programs read them: a zip of PNGs and a `dataset.json`.

Source: the data sets of StyleGAN2-ADA and StyleGAN3: squares of one size, neither packed nor compressed, so that they
are read at once.
"""

import io
import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frugan.data.decoding import TRANSPARENT
from frugan.data.fitting import Fitting
from frugan.data.formats import open_source
from frugan.data.nvlabs_zip import LISTING
from frugan.data.ordered import in_order
from frugan.data.preparation_report import fitting_lines, source_lines, transparency_lines
from frugan.data.source import Source, Unreadable
from frugan.data.survey import Progress, refuse_bad, refuse_small, survey
from frugan.data.wording import first_names, shown
from frugan.errors import BadInput

PER_FOLDER = 1000
MADE = (1980, 1, 1, 0, 0, 0)
"""Time of every file in the zip: the same pictures give the same bytes."""


def write_nvlabs_zip(
    source: Path,
    out: Path,
    fitting: Fitting,
    *,
    workers: int = 2,
    progress: Progress | None = None,
    survey_progress: Progress | None = None,
) -> tuple[int, tuple[str, ...]]:
    """Write the pictures of a source, cropped and resized to squares, with their classes as numbers.

    The zip appears when it is complete. NVlabs' programs want a side that is a power of two.

    Args:
        source: as `prepare` takes it.
        out: file to make.
        fitting: how pictures become squares.
        workers: threads that decode.
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
        try:
            with _appears(out) as file:
                good, bad, transparent = _write_pictures(opened, file, fitting, found.bad, workers, progress)
        except OSError as error:  # reading errors are Unreadable: this is the writing side
            raise BadInput(
                f"cannot write {shown(str(out))}: {error.strerror or error}. Nothing was left there. Free some room, "
                "or choose another OUT."
            ) from error
        upscaled = int(np.isin(found.smaller_than(fitting.resolution), good).sum())
        lines = [*source_lines(opened), *fitting_lines(opened, fitting, found, bad, upscaled)]
        lines += transparency_lines(transparent, fitting.background)
        names = opened.classes.names
        if opened.classes.labelled and names != tuple(map(str, range(len(names)))):
            named = first_names([f"{number} {name}" for number, name in enumerate(names)])
            lines.append(f"{LISTING} holds classes as numbers; their names have no place in it: {named}")
        side = fitting.resolution
        if side & (side - 1):
            lines.append(f"{side} is no power of two: NVlabs' programs refuse such pictures")
    return len(good), tuple(lines)


def _write_pictures(
    source: Source,
    file: IO[bytes],
    fitting: Fitting,
    unreadable: dict[int, str],
    workers: int,
    progress: Progress | None,
) -> tuple[list[int], dict[int, str], int]:
    """Write all pictures that can be read, then their labels.

    Returns:
        Their indices; the others with reasons; and how many were transparent in places.
    """
    good: list[int] = []
    transparent: list[int] = []
    labels: list[tuple[str, int]] = []
    bad = dict(unreadable)

    def encoded(index: int) -> bytes | str:
        if index in unreadable:
            return unreadable[index]
        try:
            picture = source.picture(index)
        except Unreadable as error:
            return str(error)
        if picture.info.get(TRANSPARENT):
            transparent.append(index)  # by several threads at once: appending is one operation
        return _png(fitting(picture))

    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
        closing(in_order(encoded, len(source), workers)) as results,
    ):
        for index, result in enumerate(results):
            if isinstance(result, str):
                bad[index] = result
                refuse_bad(source, bad)
            else:
                name = f"{len(good) // PER_FOLDER:05d}/img{len(good):08d}.png"
                archive.writestr(zipfile.ZipInfo(name, MADE), result)
                labels.append((name, int(source.classes.labels[index])))
                good.append(index)
            if progress is not None:
                progress(index + 1, len(source))
        listing = json.dumps({"labels": labels if source.classes.labelled else None})
        archive.writestr(zipfile.ZipInfo(LISTING, MADE), listing)
    return good, bad, len(transparent)


def _png(picture: NDArray[np.uint8]) -> bytes:
    """[3, R, R] as an RGB PNG without compression."""
    encoded = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0))).save(encoded, "PNG", compress_level=0)
    return encoded.getvalue()


@contextmanager
def _appears(out: Path) -> Iterator[IO[bytes]]:
    """Open a file beside `out`; rename it when the block ends well, delete it when an exception leaves."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.rename(out)
    finally:
        beside.unlink(missing_ok=True)
