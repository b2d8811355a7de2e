"""Variety of the samples of a class beside that of real pictures, and the training pictures nearest to samples."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# How much the samples of one class differ from each other, generated ones beside real ones.
#
# A generator that draws every class in one way has good pictures and a good class accuracy all the same: variety within
# the classes is what it lost.

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
    return WithinClass({label: _ranked(features) for label, features in rows_of.items() if len(features) >= 2})


def _ranked(rows: Tensor) -> Tensor:
    """[N, D] -> mean distance to the nearest other, to the second nearest ... [N - 1]."""
    total = torch.zeros(len(rows) - 1, dtype=torch.float64)
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[first : first + _ROWS_AT_ONCE]
        distances = torch.cdist(part, rows)  # [n, N]
        diagonal = torch.arange(len(part))
        distances[diagonal, first + diagonal] = torch.inf  # sorted to the end, and left out there
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


CHUNK_BYTES = 32 * 2**20
"""Pictures compared at once, as bytes: four times as much as fp32, twice over when mirrored."""
COMPARED_REAL = 256
"""Real pictures whose own nearest ones say what distance is usual."""


class Pictures(Protocol):
    """Pictures to look through: an array uint8 [M, C, R, R], or what reads like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Any, /) -> Any:
        """Return pictures by index, slice or indices, as uint8."""


BACKGROUND_LEVELS = 4.0
"""Root mean square that is added to what two pictures show, of 255: what is nearly empty resembles nothing."""


@dataclass(frozen=True)
class Nearest:
    """Nearest real pictures of each query."""

    indices: Tensor  # indices of the nearest pictures of the set, nearest first [N, K]
    # difference to them as a share of what both show beside the background: 0 equal, about 1 unrelated [N, K]
    distances: Tensor
    usual: float  # median distance to its nearest one of a picture of the set, or of unseen ones, if those were given

    @property
    def ratios(self) -> Tensor:
        """Distance of each to its nearest, as a share of what is usual between real ones [N]; near 0: a copy."""
        return self.distances[:, 0] / max(self.usual, 1e-9)


def nearest_pictures(
    pictures: Tensor,
    real: Pictures,
    count: int,
    progress: Callable[[int, int], None] | None = None,
    unseen: Pictures | None = None,
) -> Nearest:
    """Find the pictures of a set that are nearest to given ones, and mirrored ones of it.

    The background of each is taken away first, the median colour of its edge: on white paper any two pictures agree
    nearly everywhere, and a few specks would be near to whatever is small.

    Args:
        pictures: uint8 [N, C, R, R].
        real: the set, [M, C, R, R]; may be mapped from disk: it is read once.
        count: K, at most M.
        unseen: real pictures that are not in the set, whose distances to it say what is usual; None: those of its own.
    """
    others = real if unseen is None else unseen
    spaced = np.unique(np.linspace(0, len(others) - 1, min(COMPARED_REAL, len(others))).astype(np.int64))
    queries = torch.cat([_shown(pictures), _shown(torch.from_numpy(np.array(others[spaced])))])  # [N + compared, D]
    shown = queries.square().sum(1)
    distances = torch.empty(len(queries), 0)
    indices = torch.empty(len(queries), 0, dtype=torch.int64)
    chunk = max(1, CHUNK_BYTES // real[0].nbytes)
    for first in range(0, len(real), chunk):
        rows = torch.from_numpy(np.array(real[first : first + chunk]))  # a copy out of the map
        shares = torch.minimum(*(_apart(queries, shown, _shown(way)) for way in (rows, rows.flip(-1))))
        places = torch.arange(first, first + len(rows))
        if unseen is None:
            shares[len(pictures) :][torch.from_numpy(spaced)[:, None] == places] = torch.inf  # itself
        every = torch.cat([distances, shares], 1)
        which = torch.cat([indices, places.expand(len(queries), -1)], 1)
        distances, order = every.topk(min(count, every.shape[1]), largest=False)
        indices = which.gather(1, order)
        if progress is not None:
            progress(min(first + chunk, len(real)), len(real))
    usual = distances[len(pictures) :, 0]
    finite = usual[torch.isfinite(usual)]
    return Nearest(indices[: len(pictures)], distances[: len(pictures)], float(finite.median()) if len(finite) else 0.0)


def _apart(queries: Tensor, shown: Tensor, rows: Tensor) -> Tensor:
    """Distances [N, M] of pictures [N, D] and [M, D] without their background, as shares of what both show.

    Args:
        shown: sum of squares of each query [N].
    """
    both = shown[:, None] + rows.square().sum(1) + BACKGROUND_LEVELS**2 * queries.shape[1]
    return torch.cdist(queries, rows) / both.sqrt()


def _shown(pictures: Tensor) -> Tensor:
    """[N, C, R, R] -> what is not background, in levels [N, C * SIDE * SIDE]."""
    values = pictures.float()
    if values.shape[-1] > SIDE:
        values = F.adaptive_avg_pool2d(values, SIDE)
    edge = torch.cat([values[:, :, (0, -1)].flatten(2), values[:, :, 1:-1, (0, -1)].flatten(2)], 2)
    return (values - edge.median(2).values[:, :, None, None]).flatten(1)
