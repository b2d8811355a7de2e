"""Makes the samples of one source of faces, each from the numbers that stand for it in the stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from frugan.data.faces.faceset import Faceset
from frugan.data.faces.sample import SampleSettings, make_sample
from frugan.errors import BadInput

MOST_TRIES = 8
"""Faces in a row that cannot be read: then it is the disk, and not a picture."""
Lost = Mapping[str, str]
"""Where a face was that cannot be read any more -> why."""
Arrays = Mapping[str, NDArray[np.float32]]
"""The parts of n samples by name, each [n, C, R, R]."""


class Wanted(NamedTuple):
    """One sample of the stream: which face, the seed of its random numbers, and which reference lends its colours."""

    face: int
    seed: int
    reference: int


@dataclass(frozen=True, eq=False)
class SampleMaker:
    """What is the same for all samples of a source; pickled, it goes to other processes.

    Attributes:
        faceset: the faces.
        settings: how samples are made.
        references: faces that lend their colours, if the settings transfer them.
    """

    faceset: Faceset
    settings: SampleSettings
    references: Faceset | None

    def channels(self) -> dict[str, int]:
        """Return the parts of a sample by name and how many channels each has."""
        return {"warped": 3, "target": 3, "mask": 1} | ({"eyes_mouth": 1} if self.settings.eyes_mouth else {})

    def shapes(self, count: int) -> dict[str, tuple[int, int, int, int]]:
        """Return the shapes of the parts of `count` samples, [count, C, R, R]."""
        side = self.settings.resolution
        return {name: (count, channels, side, side) for name, channels in self.channels().items()}

    def make(self, wanted: Wanted, into: Arrays, place: int) -> Lost:
        """Make one sample; a face that cannot be read any more gives way to the next that can.

        Args:
            wanted: which one.
            into: the parts of n samples, [n, C, R, R].
            place: 0 to n - 1.

        Returns:
            The faces that gave way.

        Raises:
            BadInput: MOST_TRIES files in a row cannot be read or used any more.
        """
        lost: dict[str, str] = {}
        face, picture = _readable(self.faceset, wanted.face, lost)
        reference = None if self.references is None else _readable(self.references, wanted.reference, lost)[1]
        sample = make_sample(self.faceset.faces[face], picture, self.settings, wanted.seed, reference)
        for name, array in into.items():
            array[place] = getattr(sample, name).transpose(2, 0, 1)  # [R, R, C] to [C, R, R]
        return lost


def _readable(faceset: Faceset, first: int, lost: dict[str, str]) -> tuple[int, NDArray[np.uint8]]:
    """The first face from `first` on that can be read, and its picture."""
    for index in range(first, first + min(MOST_TRIES, len(faceset)) - 1):
        at = index % len(faceset)
        try:
            return at, faceset.picture(at)
        except BadInput as error:
            lost[faceset.places[at][0] + ": " + faceset.faces[at].name] = str(error)
    last = (first + min(MOST_TRIES, len(faceset)) - 1) % len(faceset)
    return last, faceset.picture(last)
