"""Pictures that stay in their files and are decoded when they are read: for sets whose pixels fit on no disk."""

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from frugan.data.fitting import Fitting
from frugan.data.formats import open_source
from frugan.data.picture_set import PictureSet
from frugan.data.preparation_report import fitting_lines, source_lines
from frugan.data.set_file import is_prepared
from frugan.data.source import Source, Unreadable, closed_on_failure
from frugan.data.survey import Progress, survey
from frugan.data.wording import shown
from frugan.errors import BadInput

Say = Callable[[str], None]


class EncodedPictures:
    """N pictures of a source as an array uint8 [N, 3, R, R] of which only what is asked for exists.

    Args:
        source: stays open as long as this lives.
        members: indices in the source of the pictures that could be read.
        fitting: how they become squares.
        workers: threads that decode (Pillow's decoders let others run meanwhile).
    """

    def __init__(self, source: Source, members: NDArray[np.int64], fitting: Fitting, workers: int) -> None:
        self._source, self._members, self._fitting = source, members, fitting
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="frugan-decode")
        weakref.finalize(self, _close, self._pool, source)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[N, 3, R, R]."""
        return len(self), 3, self._fitting.resolution, self._fitting.resolution

    def __getitem__(self, indices: int | slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        """Decode pictures.

        Raises:
            BadInput: one of them can no longer be read.
        """
        wanted = np.arange(len(self))[indices]
        if wanted.ndim == 0:
            return self._picture(int(wanted))
        found = list(self._pool.map(self._picture, wanted.tolist()))
        return np.stack(found) if found else np.empty((0, *self.shape[1:]), np.uint8)

    def _picture(self, index: int) -> NDArray[np.uint8]:
        member = int(self._members[index])
        try:
            return self._fitting(self._source.picture(member))  # [3, R, R]
        except Unreadable as error:
            raise BadInput(f"{shown(self._source.names[member])} can no longer be read ({error}).") from error


def _close(pool: ThreadPoolExecutor, source: Source) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    source.close()


def open_encoded(
    path: Path, fitting: Fitting, key: str, *, workers: int, say: Say, progress: Progress | None = None
) -> PictureSet:
    """Open pictures without preparing them.

    Args:
        path: anything that `prepare` takes, but a prepared set.
        key: `fingerprint` of path and fitting; stands for the pixels in the set's digest.
        workers: threads that decode.
        say: is told what was found.
        progress: gets (pictures done, pictures in all) while headers are read.

    Raises:
        BadInput: as `prepare`, or a prepared set, whose pixels are there already.
    """
    if is_prepared(path):
        raise BadInput(f"{shown(str(path))} is a prepared set: its pixels are there. Leave data.stored=encoded out.")
    source = open_source(path, fitting.background)
    with closed_on_failure(source.close):
        found = survey(source, fitting, workers=workers, progress=progress)
    members = np.array([index for index in range(len(source)) if index not in found.bad], np.int64)
    for line in (*source_lines(source), *fitting_lines(source, fitting, found, found.bad)):
        say(f"data: {line}")
    say(f"data: {len(members):,} pictures stay encoded and are decoded as they are read, by {workers} threads")
    pictures = EncodedPictures(source, members, fitting, workers)
    return PictureSet(
        cast("NDArray[np.uint8]", pictures),  # what a set asks of its array, this has: length, shape, indices
        source.classes.labels[members],
        source.classes.names,
        source.classes.labelled,
        sha256(f"encoded {key}".encode()).hexdigest(),
    )
