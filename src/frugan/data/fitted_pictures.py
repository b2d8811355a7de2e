"""The pictures of a source as squares of one size, in order."""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from frugan.data.decoding import TRANSPARENT
from frugan.data.fitting import Fitting
from frugan.data.ordered import in_order
from frugan.data.preparation_report import fitting_lines, source_lines, transparency_lines
from frugan.data.source import Source, Unreadable
from frugan.data.survey import Progress, refuse_bad, survey

T = TypeVar("T")


@dataclass(frozen=True)
class _Bad:
    """A picture that could not be read, and why."""

    reason: str


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

    def read(self, progress: Progress | None) -> Generator[tuple[T, int], None, None]:
        """Encoded pictures with their class numbers, in order; `progress` gets (pictures done, N).

        Raises:
            BadInput: more than 1 % cannot be read.
        """
        source = self.source
        with closing(in_order(self._read, len(source), self._workers)) as results:
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
        if index in self._survey.bad:
            return _Bad(self._survey.bad[index])
        try:
            picture = self.source.picture(index)
        except Unreadable as error:
            return _Bad(str(error))
        if picture.info.get(TRANSPARENT):
            self.transparent.append(index)  # by several threads at once: appending is one operation
        return self._encoded(self.fitting(picture))

    @property
    def upscaled(self) -> int:
        """How many were enlarged."""
        return self._survey.smaller_than(self.fitting.resolution, but=self.bad).size

    def lines(self) -> tuple[str, ...]:
        """What people are told of them, once all are read."""
        return (
            *source_lines(self.source),
            *fitting_lines(self.source, self.fitting, self._survey, self.bad),
            *transparency_lines(len(self.transparent), self.fitting.background),
        )
