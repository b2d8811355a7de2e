"""Real pictures that a small network is shown beside generated ones, and beside other real ones."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.data.batches import random_order
from frugan.data.formats.picture_set import PictureSet
from frugan.errors import BadInput
from frugan.evaluation.reference import FEATURES_AT_ONCE
from frugan.metrics.two_sample import FEWEST_PICTURES, MOST_PICTURES, Judge, TwoSample, seen_by_judge, two_sample
from frugan.sampling.requests import DrawRequest


@dataclass(frozen=True)
class TwoSampleTest:
    """Real pictures in two halves: generated ones are judged against the first, and so is the second.

    Both comparisons have as many pictures on either side, so that their results compare.
    """

    pictures: PictureSet  # real pictures
    samples: int  # largest number of pictures on each side
    judge: Judge

    @staticmethod
    def lacking(pictures: int, samples: int) -> str | None:
        """Return the warning about too few pictures; None: there are enough."""
        if pictures >= 2 * FEWEST_PICTURES and samples >= FEWEST_PICTURES:
            return None
        return (
            f"two-sample: {pictures:,} real pictures and {samples:,} samples; expected at least {2 * FEWEST_PICTURES} "
            f"real ones and {FEWEST_PICTURES} samples: generated ones are judged against a half of the real ones"
        )

    @property
    def count(self) -> int:
        """Pictures on either side.

        Raises:
            BadInput: too few.
        """
        if (lacking := self.lacking(len(self.pictures), self.samples)) is not None:
            raise BadInput(lacking)
        return min(len(self.pictures) // 2, self.samples, MOST_PICTURES) // 2 * 2

    @property
    def described(self) -> str:
        """Judge and number of pictures, for the provenance."""
        return f"{self.count:,} pictures on either side; {self.judge}"

    @cached_property
    def real(self) -> TwoSample:
        """Compare the two halves of the real pictures, which only chance tells apart."""
        return two_sample(self._seen(self._halves[0]), self._seen(self._halves[1]), self.judge)

    def scores(self, generated: Tensor) -> dict[str, float]:
        """Scores by name.

        Args:
            generated: uint8 [count, C, S, S].
        """
        judged = two_sample(self._seen(self._halves[0]), generated, self.judge)
        return {**_known_to(judged), "two_sample_real": self.real.mean}

    def of_real(self) -> dict[str, float]:
        """Scores by name, of the second half of the real pictures in place of generated ones."""
        return _known_to(self.real)

    def with_classes(self, draw: DrawRequest, classes: int) -> tuple[int, ...] | None:
        """Classes to draw from, each as often as the real pictures have it: uneven classes would give samples away.

        Args:
            draw: what was asked for; classes that it names stay.
            classes: that the generator knows; 1: none.
        """
        labels = self.pictures.labels[self._halves[0]]
        if draw.classes is not None or classes == 1 or labels.max() >= classes:
            return None if draw.classes is None else tuple(draw.classes)
        return tuple(map(int, labels))

    @cached_property
    def _halves(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of the pictures on either side [count]."""
        order = random_order(f"two-sample/{self.pictures.digest}", len(self.pictures))
        return order[: self.count], order[self.count : 2 * self.count]

    def _seen(self, at: NDArray[np.int64]) -> Tensor:
        parts = (at[first : first + FEATURES_AT_ONCE] for first in range(0, len(at), FEATURES_AT_ONCE))
        return torch.cat([seen_by_judge(torch.from_numpy(np.array(self.pictures[part]))) for part in parts])


def _known_to(judged: TwoSample) -> dict[str, float]:
    """The score, and half of its interval where networks could disagree: what one of them sees another may not."""
    width = {"two_sample_half_width": judged.half_width} if len(judged.accuracies) > 1 else {}
    return {"two_sample": judged.mean, **width}
