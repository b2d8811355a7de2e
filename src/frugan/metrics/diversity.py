"""How much the samples of one class differ from each other, generated ones beside real ones.

A generator that draws every class in one way has good pictures and a good class accuracy all the same: variety within
the classes is what it lost.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 32
"""Pictures are compared at this size at most: what an eye takes in at a glance, whatever their own."""

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class WithinClass:
    """Distances between samples of the same class: root mean square differences of their features."""

    # class -> distance of a sample to its nearest other of the class, to the second nearest, ..., to the farthest, as a
    # mean over the samples: float64 [N - 1]. Classes with less than two samples are left out.
    ranked: Mapping[int, Tensor]

    @property
    def mean(self) -> dict[int, float]:
        """Class -> mean distance between two of its samples."""
        return {label: float(ranked.mean()) for label, ranked in self.ranked.items()}

    @property
    def nearest(self) -> dict[int, float]:
        """Class -> mean distance of a sample to its nearest neighbour; falls with their number. See `ratios`."""
        return {label: float(ranked[0]) for label, ranked in self.ranked.items()}

    def nearest_among(self, label: int, samples: int) -> float:
        """Mean distance to the nearest neighbour that is expected among so many samples of a class.

        All ways to choose them count alike, so nothing is drawn: the k-th nearest of M others is the nearest among
        m chosen ones in C(M - k, m - 1) of C(M, m) cases.

        Args:
            samples: 2 to the number of samples of the class.
        """
        ranked = self.ranked[label]
        others, chosen = len(ranked), samples - 1
        if not 1 <= chosen <= others:
            raise ValueError(f"nearest among {samples} of {others + 1} samples: expected 2 to {others + 1}")
        rank = torch.arange(1, others, dtype=torch.float64)
        passed = ((others - rank - chosen + 1) / (others - rank)).clamp(min=0)  # share of cases that go on to the next
        weights = torch.cat([torch.ones(1, dtype=torch.float64), passed.cumprod(0)]) * chosen / others  # [M]
        return float(ranked @ weights)


@dataclass(frozen=True)
class DiversityRatios:
    """Distances within the classes, generated over real: 1 where samples vary as real ones, 0 where they are alike."""

    mean: dict[int, float]  # class -> ratio of the mean distances between two samples
    # class -> ratio of the mean distances to the nearest neighbour, among equally many samples
    nearest: dict[int, float]

    @property
    def mean_overall(self) -> float:
        """Mean over the classes. Raises: ValueError: there is none."""
        return fmean(self.mean.values())

    @property
    def nearest_overall(self) -> float:
        """Mean over the classes. Raises: ValueError: there is none."""
        return fmean(self.nearest.values())


def within_class(features: Tensor, labels: Tensor) -> WithinClass:
    """Measure distances between the samples of each class.

    Args:
        features: of any kind, floating-point [N, D]; of pictures themselves: `pixel_rows`.
        labels: integers [N].

    Raises:
        ValueError: other shapes, or features that are not finite.
    """
    if features.ndim != 2 or not features.is_floating_point() or not features.shape[1]:
        raise ValueError(f"features {features.dtype} {list(features.shape)}: expected floating-point [N, D]")
    if labels.shape != features.shape[:1] or labels.is_floating_point():
        raise ValueError(f"labels {labels.dtype} {list(labels.shape)}: expected integers [{len(features)}]")
    if not bool(torch.isfinite(features).all()):
        raise ValueError("features hold values that are not finite; did the training diverge?")
    rows, labels = features.detach().cpu().double(), labels.cpu()
    rows_of = {int(label): rows[labels == label] for label in labels.unique()}
    return WithinClass({label: _ranked(each) for label, each in rows_of.items() if len(each) >= 2})


def _ranked(rows: Tensor) -> Tensor:
    """[N, D] -> mean distance to the nearest other, to the second nearest ... [N - 1]."""
    total = torch.zeros(len(rows) - 1, dtype=torch.float64)
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[first : first + _ROWS_AT_ONCE]
        distances = torch.cdist(part, rows)  # [n, N]
        own = torch.arange(len(part))
        distances[own, first + own] = torch.inf  # sorted to the end, and left out there
        total += distances.sort(1).values[:, :-1].sum(0)
    return total / (len(rows) * math.sqrt(rows.shape[1]))


def ratios(generated: WithinClass, real: WithinClass, *, real_share: float = 1.0) -> DiversityRatios:
    """Compare generated samples with real ones, class by class.

    Nearest neighbours are compared among as many samples as both sides have of a class. Left out are classes that one
    of the sides has less than two samples of, and those whose real samples do not differ.

    Args:
        real_share: compare them among no more than this share of a class's real samples (two, at least). Who draws 20
            times from 20 pictures has many of them twice, and whoever draws 5 times, few.
    """
    mean, nearest = {}, {}
    for label in sorted(generated.ranked.keys() & real.ranked.keys()):
        ours, theirs = generated.ranked[label], real.ranked[label]
        samples = min(len(ours) + 1, max(2, int(real_share * (len(theirs) + 1))))
        if (usual := real.nearest_among(label, samples)) > 0:
            mean[label] = float(ours.mean() / theirs.mean())
            nearest[label] = generated.nearest_among(label, samples) / usual
    return DiversityRatios(mean, nearest)


def pixel_rows(pictures: Tensor) -> Tensor:
    """Pictures as rows of features: their pixels, reduced by area averaging to at most `SIDE` a side.

    Args:
        pictures: [N, C, H, W], uint8 or floating-point in [-1, 1].

    Returns:
        fp32 [N, D] in [-1, 1].
    """
    if pictures.ndim != 4:
        raise ValueError(f"pictures {list(pictures.shape)}: expected [N, C, H, W]")
    values = pictures.detach().cpu().float()
    if not pictures.is_floating_point():
        values = values / 127.5 - 1
    height, width = values.shape[2:]
    if max(height, width) > SIDE:
        values = F.adaptive_avg_pool2d(values, (min(height, SIDE), min(width, SIDE)))
    return values.flatten(1)
