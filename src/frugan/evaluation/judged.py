"""Real pictures that a small network is shown beside generated ones, and beside other real ones."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Self

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
from frugan.metrics.control import MOST_LOOKS, Control, control_of
from frugan.metrics.feature_network import PixelFeatures
from frugan.metrics.leave_one_out import FEWEST, leave_one_out
from frugan.metrics.provenance import NONE
from frugan.metrics.scores import ball_radii, neighbour_scores, precision_recall, proportion_half_width
from frugan.metrics.two_sample import MOST_PICTURES, Judge, TwoSample, seen_by_judge, two_sample
from frugan.progress import Progress, Say, quiet
from frugan.wording import BY_NEIGHBOURS, LEFT_OUT, neighbours_in_words

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
    stage: Say = quiet  # is told what begins
    progress: Progress | None = None  # of the judge

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
        by = LEAVING_OUT if self.by_fixed_features else str(self.judge)
        return f"{self.count:,} pictures on either side; {by}"

    @property
    def by_fixed_features(self) -> bool:
        """Whether there are too few pictures for networks to learn from."""
        return self.count < FEWEST_FOR_NETWORKS

    @cached_property
    def real(self) -> TwoSample:
        """Compare the two halves of the real pictures, which only chance tells apart."""
        self.stage("two-sample: judging real pictures, for comparison")
        return self._judged(self._seen(self._halves[1]))

    @cached_property
    def control(self) -> Control:
        """Damages of the second half that are told from the first; remembered, as it depends on real pictures alone."""

        looks = itertools.count(1)

        def sees(damaged: Tensor) -> bool:
            self.stage(f"two-sample: control, {next(looks)} of at most {MOST_LOOKS}")
            return self._judged(damaged).tells_apart

        return remembered(self._about_control, lambda: control_of(sees, self._seen(self._halves[1])))

    @property
    def has_kept_control(self) -> bool:
        """Whether the control was found before."""
        return _kept(_control_file(self._about_control)) is not None

    @property
    def _about_control(self) -> str:
        return f"{self.pictures.digest}/{self.described}"

    @property
    def blind(self) -> str | None:
        """Say that nothing can be seen with so few pictures; None: something can."""
        if not self.control.blind:
            return None
        return (
            f"two-sample: blind at {self.count:,} pictures on either side: the judge {self.control}; so it is "
            f"{LEFT_OUT}. More pictures, or more --samples, let it see"
        )

    def _judged(self, others: Tensor) -> TwoSample:
        if self.by_fixed_features:
            return leave_one_out(self._first, others)
        return two_sample(self._first, others, self.judge, self.progress)

    @cached_property
    def _first(self) -> Tensor:
        return self._seen(self._halves[0])

    def scores(self, generated: Tensor) -> dict[str, float]:
        """Scores by name.

        Args:
            generated: uint8 [count, C, S, S].
        """
        self.stage("two-sample: judging the samples")
        return {**_known_to(self._judged(generated)), "two_sample_real": self.real.mean}

    @property
    def of_real(self) -> dict[str, float]:
        """Scores by name, of the second half of the real pictures in place of generated ones."""
        return _known_to(self.real)

    def of_others(self, others: PictureSet) -> dict[str, float]:
        """Scores by name, of other real pictures, the first `count` of them, in place of generated ones."""
        return self.scores(_seen(others, np.arange(self.count)))

    @property
    def compared_with(self) -> PictureSet:
        """The pictures that generated ones are judged against."""
        return self.pictures.only(self._halves[0])

    @cached_property
    def _halves(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of the pictures on either side [count]."""
        order = random_order(f"two-sample/{self.pictures.digest}", len(self.pictures))
        return order[: self.count], order[self.count : 2 * self.count]

    def _seen(self, at: NDArray[np.int64]) -> Tensor:
        return _seen(self.pictures, at)


def _seen(pictures: PictureSet, at: NDArray[np.int64]) -> Tensor:
    """The pictures at these indices as the judge sees them."""
    parts = (at[first : first + FEATURES_AT_ONCE] for first in range(0, len(at), FEATURES_AT_ONCE))
    return torch.cat([seen_by_judge(torch.from_numpy(np.array(pictures[part]))) for part in parts])


def _known_to(judged: TwoSample) -> dict[str, float]:
    """The score and half of its interval."""
    return {"two_sample": judged.mean, "two_sample_half_width": judged.half_width}


MOST_FOR_PIXELS = 1000
"""Most pictures on either side for this control: all distances are taken for each damage."""


@dataclass(frozen=True)
class PixelTest:
    """Real pictures in two halves for scores by neighbours in pixels: generated ones are scored against the first.

    So is the second, with as many pictures on either side: these scores depend on counts.
    """

    pictures: PictureSet  # real pictures
    count: int  # pictures on either side
    metrics: tuple[str, ...]  # of `BY_NEIGHBOURS`

    @classmethod
    def of(cls, pictures: PictureSet, samples: int, metrics: Sequence[str]) -> Self | None:
        """Divide pictures into halves, of at most so many; None: too few for halves with neighbours."""
        count = min(len(pictures) // 2, samples, MOST_FOR_PIXELS)
        return None if count < FEWEST else cls(pictures, count, tuple(metrics))

    @staticmethod
    def among(metrics: Sequence[str], network: str) -> tuple[str, ...]:
        """Those of some metrics that compare neighbours by pixels.

        Args:
            network: name of the feature network.
        """
        return tuple(metric for metric in BY_NEIGHBOURS if network == PixelFeatures.name and metric in metrics)

    @staticmethod
    def lacking(pictures: int, metrics: Sequence[str]) -> str:
        """The warning about too few real pictures, or samples."""
        return (
            f"{neighbours_in_words(metrics)} by pixels: {LEFT_OUT}, as {pictures:,} real pictures are too few to tell "
            f"what they mean; expected at least {2 * FEWEST}, and {FEWEST} samples"
        )

    @property
    def blind(self) -> str | None:
        """Say that nothing can be seen with so few pictures; None: something can."""
        if not self.control.blind:
            return None
        return (
            f"{neighbours_in_words(self.metrics)} by pixels: blind at this number of pictures: of real ones their "
            f"control {self.control}; so they are {LEFT_OUT}"
        )

    @cached_property
    def control(self) -> Control:
        """Damages of the second half that lower precision or recall against the first.

        Density and coverage are taken from the same distances, and go by the same control.
        """

        def sees(damaged: Tensor) -> bool:
            return any(
                before - after > proportion_half_width(before, self.count) + proportion_half_width(after, self.count)
                for before, after in zip(self._usual, self._scored(damaged), strict=True)
            )

        return remembered(
            f"{self.pictures.digest}/pixels {self._pixels.digest}/{self.count}",
            lambda: control_of(sees, self._half(1)),
        )

    def scores(self, rows: NDArray[np.float32]) -> dict[str, float]:
        """Scores by name, with those of real pictures beside them.

        Args:
            rows: features of generated pictures [N, D], of which the first `count` are compared.
        """
        names = [name for metric in self.metrics for name in BY_NEIGHBOURS[metric]]
        return {**self._of_rows(rows[: self.count]), **{f"{name}_real": self.of_real[name] for name in names}}

    @cached_property
    def of_real(self) -> dict[str, float]:
        """Scores by name, of the second half in place of generated pictures."""
        return self._of_rows(self._pixels(self._half(1)).pooled.numpy())

    def of_others(self, others: PictureSet) -> dict[str, float]:
        """Scores by name, of other real pictures, the first `count` of them, in place of generated ones."""
        return self.scores(self._pixels(torch.from_numpy(np.array(others[np.arange(self.count)]))).pooled.numpy())

    def _of_rows(self, rows: NDArray[np.float32]) -> dict[str, float]:
        known, radii = self._known
        found = [neighbour_scores(metric, rows, known, real_radii=radii) for metric in self.metrics]
        return {name: value for scores in found for name, value in scores.items()}

    def flatters(self, scores: Mapping[str, float]) -> str | None:
        """Return a warning about a precision that real pictures do not have; None: theirs is as high.

        Args:
            scores: by name, as `scores` gives them.
        """
        if "precision" not in scores:
            return None
        precision, real = scores["precision"], self._usual[0]
        width = proportion_half_width(precision, self.count) + proportion_half_width(real, self.count)
        if precision - real <= width:
            return None
        return (
            "precision by pixels is above what real pictures have from each other: samples that lack details, or are "
            "alike, lie near many real ones; it is no sign of quality"
        )

    @cached_property
    def _pixels(self) -> PixelFeatures:
        return PixelFeatures()

    @cached_property
    def _usual(self) -> tuple[float, float]:
        return self._scored(self._half(1))

    @cached_property
    def _known(self) -> tuple[NDArray[np.float32], Tensor]:
        """Features of the first half, and the radii of their balls."""
        rows = self._pixels(self._half(0)).pooled.numpy()
        return rows, ball_radii(rows)

    def _half(self, number: int) -> Tensor:
        order = random_order(f"pixels/{self.pictures.digest}", len(self.pictures))
        return torch.from_numpy(np.array(self.pictures[order[number * self.count : (number + 1) * self.count]]))

    def _scored(self, others: Tensor) -> tuple[float, float]:
        """Precision and recall of some pictures against the first half."""
        rows, radii = self._known
        return precision_recall(self._pixels(others).pooled.numpy(), rows, real_radii=radii)


@dataclass(frozen=True)
class ControlledTests:
    """The tests of an evaluation whose scores are left out where their control sees nothing."""

    pictures: int  # real pictures
    two_sample: TwoSampleTest | None  # None: it is not measured
    by_pixels: tuple[str, ...]  # metrics by neighbours in pixels, for which one control decides
    pixels: PixelTest | None  # None: these are not measured, or there are too few pictures

    @cached_property
    def blind(self) -> dict[str, str]:
        """Metrics whose scores would say nothing, and in words why."""
        lines: dict[str, str] = {}
        if self.two_sample is not None and self.two_sample.blind is not None:
            lines["two-sample"] = self.two_sample.blind
        if not self.by_pixels:
            return lines
        left_out = PixelTest.lacking(self.pictures, self.by_pixels) if self.pixels is None else self.pixels.blind
        return lines if left_out is None else lines | dict.fromkeys(self.by_pixels, left_out)

    @property
    def judge(self) -> str:
        """The judge of two-sample, for the provenance."""
        return NONE if self.two_sample is None else self.two_sample.described

    @property
    def neighbours(self) -> int:
        """Pictures on either side of scores by pixels, for the provenance."""
        return 0 if self.pixels is None else self.pixels.count

    @property
    def control(self) -> str:
        """Each control behind the metrics that it decides about, in one line for the provenance."""
        controls = {} if self.two_sample is None else {"two-sample": self.two_sample.control}
        controls |= {} if self.pixels is None else {",".join(self.by_pixels): self.pixels.control}
        return "; ".join(f"{names} {control}" for names, control in controls.items()) or NONE


FORMAT = 1


def remembered(about: str, find: Callable[[], Control]) -> Control:
    """Read a control from the folder of reference moments, or find it and keep it there.

    Args:
        about: all that it depends on.
    """
    file = _control_file(about)
    if (known := _kept(file)) is not None:
        return known
    found = find()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"format": FORMAT, "about": about, "seen": dict(found.seen)})
    return found


def _control_file(about: str) -> Path:
    return Folders.from_environment().moments / f"control-{sha256(about.encode()).hexdigest()[:24]}.json"


def _kept(file: Path) -> Control | None:
    """Read a control that was found before; None: none was, or by another version."""
    kept = read_json(file)
    return Control.read(kept.get("seen")) if kept.get("format") == FORMAT else None
