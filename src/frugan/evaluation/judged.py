"""Real pictures that a small network is shown beside generated ones, and beside other real ones."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.data.batches import random_order
from frugan.data.formats.picture_set import PictureSet
from frugan.engine.run.tensor_files import write_json
from frugan.errors import BadInput
from frugan.evaluation.reference import FEATURES_AT_ONCE
from frugan.files import Folders, read_json
from frugan.metrics.control import Control, control_of
from frugan.metrics.feature_network import PixelFeatures
from frugan.metrics.leave_one_out import FEWEST, leave_one_out
from frugan.metrics.scores import ball_radii, precision_recall, proportion_half_width
from frugan.metrics.two_sample import MOST_PICTURES, Judge, TwoSample, seen_by_judge, two_sample
from frugan.sampling.requests import DrawRequest

FEWEST_FOR_NETWORKS = 250
"""Pictures on either side below which networks learn too little from their half, and fixed features judge."""
LEAVING_OUT = "fixed features, leaving out each picture that is judged"


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
        if pictures >= 2 * FEWEST and samples >= FEWEST:
            return None
        return (
            f"two-sample: {pictures:,} real pictures and {samples:,} samples; expected at least {2 * FEWEST} "
            f"real ones and {FEWEST} samples: generated ones are judged against a half of the real ones"
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
        by = LEAVING_OUT if self.count < FEWEST_FOR_NETWORKS else str(self.judge)
        return f"{self.count:,} pictures on either side; {by}"

    @cached_property
    def real(self) -> TwoSample:
        """Compare the two halves of the real pictures, which only chance tells apart."""
        return self._judged(self._seen(self._halves[1]))

    @cached_property
    def control(self) -> Control:
        """Damages of the second half that are told from the first; remembered, as it depends on real pictures alone."""

        def sees(damaged: Tensor) -> bool:
            return self._judged(damaged).tells_apart

        return remembered(
            f"{self.pictures.digest}/{self.described}", lambda: control_of(sees, self._seen(self._halves[1]))
        )

    @property
    def blind(self) -> str | None:
        """Say that nothing can be seen with so few pictures; None: something can."""
        if not self.control.blind:
            return None
        return (
            f"two-sample: blind at {self.count:,} pictures on either side: the judge {self.control}; so it is left out "
            "and chooses no checkpoint. More pictures, or more --samples, let it see"
        )

    def _judged(self, others: Tensor) -> TwoSample:
        if self.count < FEWEST_FOR_NETWORKS:
            return leave_one_out(self._first, others)
        return two_sample(self._first, others, self.judge)

    @cached_property
    def _first(self) -> Tensor:
        return self._seen(self._halves[0])

    def scores(self, generated: Tensor) -> dict[str, float]:
        """Scores by name.

        Args:
            generated: uint8 [count, C, S, S].
        """
        return {**_known_to(self._judged(generated)), "two_sample_real": self.real.mean}

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
    """The score and half of its interval."""
    return {"two_sample": judged.mean, "two_sample_half_width": judged.half_width}


MOST_FOR_PIXELS = 1000
"""Most pictures on either side for the control of precision and recall: all distances are taken for each damage."""


def pixel_control(pictures: PictureSet, samples: int) -> Control | None:
    """Damages that lower precision or recall by pixels, of one half of real pictures against the other.

    Returns:
        None: there are too few pictures for halves with neighbours.
    """
    count = min(len(pictures) // 2, samples, MOST_FOR_PIXELS)
    if count < FEWEST:
        return None
    order = random_order(f"pixels/{pictures.digest}", len(pictures))
    pixels = PixelFeatures()

    def control() -> Control:
        halves = [torch.from_numpy(np.array(pictures[order[at : at + count]])) for at in (0, count)]
        real = pixels(halves[0]).pooled.numpy()
        radii = ball_radii(real)
        usual = precision_recall(pixels(halves[1]).pooled.numpy(), real, real_radii=radii)

        def sees(damaged: Tensor) -> bool:
            found = precision_recall(pixels(damaged).pooled.numpy(), real, real_radii=radii)
            return any(
                before - after > proportion_half_width(before, count) + proportion_half_width(after, count)
                for before, after in zip(usual, found, strict=True)
            )

        return control_of(sees, halves[1])

    return remembered(f"{pictures.digest}/pixels {pixels.digest}/{count}", control)


FORMAT = 1


def remembered(about: str, find: Callable[[], Control]) -> Control:
    """Read a control from the folder of reference moments, or find it and keep it there.

    Args:
        about: all that it depends on.
    """
    file: Path = Folders.from_environment().moments / f"control-{sha256(about.encode()).hexdigest()[:24]}.json"
    kept = read_json(file)
    if kept.get("format") == FORMAT and (known := Control.read(kept.get("seen"))) is not None:
        return known
    found = find()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"format": FORMAT, "about": about, "seen": dict(found.seen)})
    return found
