"""Scores of generated pictures by their features."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.metrics.provenance import ALIKE, AS_REAL, Provenance, counts_of
from frugan.wording import TOLD_APART, judge_in_words

FOLD_ROWS = 1024
"""Rows that are gathered before they are folded in: a product of few rows moves the whole matrix for little work."""


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of features."""

    count: int  # rows
    mean: Tensor  # float64 [D]
    scatter: Tensor  # sum of outer products of deviations from the mean, float64 [D, D]

    @property
    def covariance(self) -> Tensor:
        """Unbiased, float64 [D, D].

        Raises:
            ValueError: fewer than two rows.
        """
        if self.count < 2:
            raise ValueError(f"a covariance of {self.count} rows: expected at least 2")
        return self.scatter / (self.count - 1)

    @classmethod
    def of(cls, features: Tensor) -> Self:
        """Return the moments of features [N, D]."""
        gathered = StreamingMoments(features.shape[1])
        gathered.update(features)
        moments = gathered.finish()
        return cls(moments.count, moments.mean, moments.scatter)

    def merged(self, other: "Moments") -> "Moments":
        """Return the moments of both sets of rows together (Chan et al. 1979), for shares of several processes."""
        if not self.count or not other.count:
            return other if not self.count else self
        count = self.count + other.count
        apart = other.mean - self.mean
        scatter = self.scatter + other.scatter + torch.outer(apart, apart) * (self.count * other.count / count)
        return Moments(count, self.mean + apart * (other.count / count), scatter)


@dataclass(frozen=True)
class Normal:
    """Mean and covariance that somebody else gathered, of how many features does not matter."""

    mean: Tensor  # float64 [D]
    covariance: Tensor  # float64 [D, D], symmetric


class StreamingMoments:
    """Gathers moments.

    Deviations are counted from the mean of the first rows, so that the sum of squares loses no digits.

    Args:
        dimensions: D of the features.
    """

    def __init__(self, dimensions: int) -> None:
        self.count = 0
        self._origin: Tensor | None = None
        self._sum = torch.zeros(dimensions, dtype=torch.float64)
        self._squares = torch.zeros(dimensions, dimensions, dtype=torch.float64)
        self._waiting: list[Tensor] = []
        self._waiting_rows = 0

    def update(self, features: Tensor) -> None:
        """Take rows [N, D] of any floating dtype.

        Raises:
            ValueError: another shape.
        """
        if features.ndim != 2 or features.shape[1] != len(self._sum):
            raise ValueError(f"features {list(features.shape)}: expected [N, {len(self._sum)}]")
        for part in features.detach().cpu().split(FOLD_ROWS):
            self._waiting.append(part)
            self._waiting_rows += len(part)
            if self._waiting_rows >= FOLD_ROWS:
                self._fold()

    def finish(self) -> Moments:
        """Return the moments of all rows added so far."""
        self._fold()
        if self._origin is None:
            return Moments(0, self._sum.clone(), self._squares.clone())
        away = self._sum / self.count
        scatter = self._squares - torch.outer(away, away) * self.count
        return Moments(self.count, self._origin + away, (scatter + scatter.T) / 2)

    def _fold(self) -> None:
        if not self._waiting_rows:
            return
        rows = torch.cat(self._waiting).double()  # [N, D]
        self._waiting.clear()
        self._waiting_rows = 0
        if self._origin is None:
            self._origin = rows.mean(0)
        rows -= self._origin
        self.count += len(rows)
        self._sum += rows.sum(0)
        self._squares.addmm_(rows.T, rows)


def frechet_distance(a: Moments | Normal, b: Moments | Normal) -> float:
    """Squared Fréchet distance between the normal distributions of two sets' moments.

    The trace of the root of the product of covariances comes from two symmetric eigenvalue problems: exact also where
    covariances are singular, which iterations for a matrix root are not (they give NaN or infinity there).

    Raises:
        ValueError: other dimensions, fewer than two rows, or moments that are not finite.

    Source: Heusel et al. 2017 (arXiv 1706.08500), equation 6.
    """
    if a.mean.shape != b.mean.shape:
        raise ValueError(f"features of {len(a.mean)} and {len(b.mean)} dimensions: expected the same")
    one, other = a.covariance, b.covariance
    for mean, covariance in ((a.mean, one), (b.mean, other)):
        if not bool(torch.isfinite(covariance).all() & torch.isfinite(mean).all()):
            raise ValueError("moments hold values that are not finite: did the generator diverge?")
    away = a.mean - b.mean
    return float(away @ away + one.trace() + other.trace() - 2 * _trace_of_root(one, other))


def _trace_of_root(one: Tensor, other: Tensor) -> Tensor:
    """Trace of the root of the product of two positive semi-definite matrices."""
    values, vectors = torch.linalg.eigh(one)
    root = vectors * _without_noise(values).sqrt()  # [D, D]; root @ root.T is `one`
    inner = root.T @ other @ root
    return _without_noise(torch.linalg.eigvalsh((inner + inner.T) / 2)).sqrt().sum()


def _without_noise(values: Tensor) -> Tensor:
    """Eigenvalues, those that rounding alone may have made as zeros: roots would make much of them."""
    least = values.abs().max() * len(values) * torch.finfo(values.dtype).eps
    return torch.where(values > least, values, 0.0)


class StreamingInceptionScore:
    """Gathers the score of a known number of pictures, in splits of consecutive rows.

    Args:
        total: rows that will come.
        classes: K of the class scores.
        splits: each gives a score of its own.
        first: number of the first row that comes here, where several processes gather a part each.

    Raises:
        ValueError: fewer rows than splits.

    Source: Salimans et al. 2016 (arXiv 1606.03498), section 4.
    """

    def __init__(self, total: int, classes: int, splits: int = 10, first: int = 0) -> None:
        if total < splits:
            raise ValueError(f"{total} pictures in {splits} splits: expected at least one in each")
        self._bounds = [i * total // splits for i in range(splits + 1)]
        self._probabilities = torch.zeros(splits, classes, dtype=torch.float64)
        self._entropies = torch.zeros(splits, dtype=torch.float64)
        self._seen = first

    def update(self, logits: Tensor) -> None:
        """Take class scores [N, K] without bias, in order.

        Raises:
            ValueError: more rows than were announced.
        """
        if self._seen + len(logits) > self._bounds[-1]:
            raise ValueError(f"more than the {self._bounds[-1]} rows that were announced")
        log_probabilities = torch.log_softmax(logits.detach().cpu().double(), 1)  # [N, K]
        for split, (first, after) in enumerate(zip(self._bounds, self._bounds[1:], strict=False)):
            rows = log_probabilities[max(0, first - self._seen) : max(0, after - self._seen)]
            probabilities = rows.exp()
            self._probabilities[split] += probabilities.sum(0)
            self._entropies[split] += (probabilities * rows).sum()
        self._seen += len(logits)

    def merge(self, next_part: "StreamingInceptionScore") -> None:
        """Take over what another process gathered of the rows that follow those gathered here."""
        self._probabilities += next_part._probabilities
        self._entropies += next_part._entropies
        self._seen = next_part._seen

    def finish(self) -> tuple[float, float]:
        """Mean and population standard deviation over the splits.

        Raises:
            ValueError: rows are missing.
        """
        if self._seen != self._bounds[-1]:
            raise ValueError(f"{self._seen} rows of {self._bounds[-1]} that were announced")
        sizes = torch.tensor(self._bounds, dtype=torch.float64).diff()
        mean = self._probabilities / sizes[:, None]  # [splits, K]
        divergence = self._entropies / sizes - torch.special.xlogy(mean, mean).sum(1)
        scores = [math.exp(value) for value in divergence.tolist()]
        center = sum(scores) / len(scores)
        return center, math.sqrt(sum((score - center) ** 2 for score in scores) / len(scores))


SUBSETS = 100
SUBSET_SIZE = 1000
SEED = 2020


def kernel_distance(
    one: NDArray[np.float32],
    other: NDArray[np.float32],
    *,
    subsets: int = SUBSETS,
    subset_size: int = SUBSET_SIZE,
    seed: int = SEED,
) -> tuple[float, float]:
    """Unbiased estimate of the squared maximum mean discrepancy under a cubic kernel, over random subsets.

    Args:
        one, other: [N, D] and [M, D]; may lie in files (`RowStore`): only subsets are read.

    Returns:
        Mean and population standard deviation over subsets; the mean may be slightly below zero.

    Raises:
        ValueError: fewer rows than a subset has.

    Source: Binkowski et al. 2018 (arXiv 1801.01401), section 4.
    """
    if min(len(one), len(other)) < subset_size:
        raise ValueError(
            f"subsets of {subset_size} from {len(one)} and {len(other)} rows: expected at least as many rows"
        )
    draw = np.random.RandomState(seed)
    distances = []
    for _ in range(subsets):
        chosen = [rows[draw.choice(len(rows), subset_size, replace=False)] for rows in (one, other)]
        a, b = (torch.from_numpy(np.asarray(rows, dtype=np.float64)) for rows in chosen)
        distances.append(_discrepancy(a, b))
    return float(np.mean(distances)), float(np.std(distances))


def _discrepancy(a: Tensor, b: Tensor) -> float:
    """Return the squared MMD of two sets of rows [m, D]: mean kernel within each, except of a row with itself, less
    twice that between."""
    m = len(a)
    within = sum((kernel.sum() - kernel.diagonal().sum()) / (m * (m - 1)) for kernel in (_kernel(a, a), _kernel(b, b)))
    return float(within - 2 * _kernel(a, b).mean())


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b.T / a.shape[1] + 1) ** 3


CLIP_WIDTH = 10.0
CLIP_SCALE = 1000.0
"""Width of the kernel, and what the distance is multiplied by, so that published numbers are about 0 to 10."""


def clip_distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """CMMD: squared maximum mean discrepancy of features of unit length under a Gaussian kernel, times 1000.

    The estimate of least variance, as published: each row is compared with itself too, so it is never below zero.

    Args:
        one, other: [N, D] and [M, D]; may lie in files: they are read in blocks.

    Raises:
        ValueError: no rows.

    Source: Jayasumana et al. 2024 (arXiv 2401.09603), section 4.
    """
    if not len(one) or not len(other):
        raise ValueError(f"{len(one)} and {len(other)} rows: expected at least one of each")
    within = _mean_gaussian(one, one) + _mean_gaussian(other, other)
    return CLIP_SCALE * (within - 2 * _mean_gaussian(one, other))


def _mean_gaussian(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Mean over all pairs of rows, each brought to unit length."""
    total = 0.0
    for first in range(0, len(one), BLOCK_ROWS):
        rows = torch.nn.functional.normalize(_rows(one, first))
        for start in range(0, len(other), BLOCK_ROWS):
            apart = _squared_distances(rows, torch.nn.functional.normalize(_rows(other, start)))
            total += float((apart / (-2 * CLIP_WIDTH**2)).exp().sum())
    return total / (len(one) * len(other))


NEIGHBOURS = 3
DENSE_NEIGHBOURS = 5
"""k of density and coverage, as their authors have it."""
INCEPTION_SPLITS = 10
BLOCK_ROWS = 2000
"""Rows whose distances to another block are held at once: 32 MB."""


def precision_recall(
    generated: NDArray[np.float32],
    real: NDArray[np.float32],
    neighbours: int = NEIGHBOURS,
    *,
    real_radii: Tensor | None = None,
) -> tuple[float, float]:
    """Share of generated points inside any real ball, and of real points inside any generated one.

    A ball reaches to its centre's k-th nearest neighbour in its own set.

    Args:
        generated, real: [N, D] and [M, D]; may lie in files: they are read in blocks.
        neighbours: k.
        real_radii: what `ball_radii` gives of the real ones and k, for whoever compares with them again; None: not
            known, and found out, which takes M² distances.

    Raises:
        ValueError: no more rows than neighbours.

    Source: Kynkäänniemi et al. 2019 (arXiv 1904.06991).
    """
    if min(len(generated), len(real)) <= neighbours:
        raise ValueError(f"{len(generated)} and {len(real)} rows: expected more than the {neighbours} neighbours")
    if real_radii is None:
        real_radii = ball_radii(real, neighbours)
    precision = _inside(generated, real, real_radii)
    return precision, _inside(real, generated, ball_radii(generated, neighbours))


def ball_radii(points: NDArray[np.float32], neighbours: int = NEIGHBOURS) -> Tensor:
    """Squared distance of each point [N, D] to its k-th nearest other one, float64 [N]."""
    radii = []
    for first in range(0, len(points), BLOCK_ROWS):
        centers = _rows(points, first)
        nearest = torch.empty(len(centers), 0, dtype=torch.float64)
        for start in range(0, len(points), BLOCK_ROWS):
            distances = torch.cat([nearest, _squared_distances(centers, _rows(points, start))], 1)
            nearest = distances.topk(min(neighbours + 1, distances.shape[1]), largest=False).values
        radii.append(nearest[:, -1])  # the nearest is the point itself
    return torch.cat(radii)


def _inside(points: NDArray[np.float32], centers: NDArray[np.float32], radii: Tensor) -> float:
    """Share of points inside any ball."""
    inside = 0
    for first in range(0, len(points), BLOCK_ROWS):
        rows = _rows(points, first)
        is_inside = torch.zeros(len(rows), dtype=torch.bool)
        for start in range(0, len(centers), BLOCK_ROWS):
            distances = _squared_distances(rows, _rows(centers, start))
            is_inside |= (distances <= radii[start : start + BLOCK_ROWS]).any(1)
        inside += int(is_inside.sum())
    return inside / len(points)


def _rows(points: NDArray[np.float32], first: int) -> Tensor:
    return torch.from_numpy(np.asarray(points[first : first + BLOCK_ROWS], dtype=np.float64))


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """[N, D], [M, D] -> [N, M]."""
    products = a @ b.T
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * products).clamp(min=0)


def density_coverage(
    generated: NDArray[np.float32],
    real: NDArray[np.float32],
    neighbours: int = DENSE_NEIGHBOURS,
) -> tuple[float, float, float]:
    """Real balls that a generated point lies in, over k; and the share of real balls that hold a generated point.

    One real picture far from all others, whose ball is large, counts for precision with all that lies in it; here it
    counts once among many. Density may exceed 1.

    Args:
        generated, real: [N, D] and [M, D]; may lie in files: they are read in blocks.
        neighbours: k.

    Returns:
        Density, half of its 95 % interval by the spread over generated points, and coverage.

    Raises:
        ValueError: no more real rows than neighbours.

    Source: Naeem et al. 2020 (arXiv 2002.09797), equations 3 and 4.
    """
    if len(real) <= neighbours or not len(generated):
        raise ValueError(
            f"{len(generated)} and {len(real)} rows: expected some and more than the {neighbours} neighbours"
        )
    radii = ball_radii(real, neighbours)
    holding = torch.zeros(len(real), dtype=torch.bool)
    balls = torch.zeros(len(generated), dtype=torch.float64)  # that each generated point lies in
    for first in range(0, len(real), BLOCK_ROWS):
        centers = _rows(real, first)
        for start in range(0, len(generated), BLOCK_ROWS):
            distances = _squared_distances(centers, _rows(generated, start))
            inside = distances <= radii[first : first + BLOCK_ROWS, None]
            holding[first : first + BLOCK_ROWS] |= inside.any(1)
            balls[start : start + BLOCK_ROWS] += inside.sum(0)
    half = 1.96 * float(balls.std(correction=0)) / len(balls) ** 0.5
    return float(balls.mean()) / neighbours, half / neighbours, int(holding.sum()) / len(real)


def neighbour_scores(
    metric: str,
    generated: NDArray[np.float32],
    real: NDArray[np.float32],
    *,
    real_radii: Tensor | None = None,
) -> dict[str, float]:
    """Scores by name of one of the metrics by nearest neighbours.

    Args:
        metric: "pr" or "dc".
        generated, real: as for `precision_recall` and `density_coverage`.
        real_radii: as for `precision_recall`; density has others.

    Raises:
        ValueError: as these two.
    """
    if metric == "pr":
        precision, recall = precision_recall(generated, real, real_radii=real_radii)
        both = precision + recall
        return {"precision": precision, "recall": recall, "f_score": 2 * precision * recall / both if both else 0.0}
    density, half, coverage = density_coverage(generated, real)
    return {"density": density, "density_half_width": half, "coverage": coverage}


def proportion_half_width(share: float, count: int) -> float:
    """Half of a 95 % interval of a share of pictures, also of 0 and 1 (Agresti and Coull 1998)."""
    middle = (share * count + 2) / (count + 4)
    return 1.96 * math.sqrt(middle * (1 - middle) / (count + 4))


def half_width(name: str, scores: Mapping[str, float], measured: Mapping[str, Any]) -> float | None:
    """Half of a 95 % interval of a score, by the estimator's own error; None: it has none that is known.

    Args:
        name: of the score.
        scores: by name, with what they come with.
        measured: their provenance, as JSON: tells how many pictures were compared.
    """
    value = scores.get(name)
    if not isinstance(value, float):
        return None
    if f"{name}_half_width" in scores:
        return scores[f"{name}_half_width"]
    samples, rows = counts_of(name, measured)
    if name in ("precision", "recall", "coverage"):
        count = samples if name == "precision" else rows
        return proportion_half_width(value, count) if count else None
    if name == "is_mean" and "is_std" in scores:
        return 1.96 * scores["is_std"] / math.sqrt(INCEPTION_SPLITS)
    if name == "kid_mean" and "kid_std" in scores:
        apart = min(SUBSETS, max(1, min(samples, rows) // SUBSET_SIZE))  # subsets that have no picture in common
        return 1.96 * scores["kid_std"] / math.sqrt(apart)
    return None


FAR_BELOW = 0.5
"""Recall below this share of precision. Two random parts of a set of real pictures have about equal ones, whatever
their sizes: the share was at least 0.75 in 300 draws of 100 to 900 pictures, of digits and icons."""
LEAST_GAP = 0.2
"""And by at least so much, or both are too small to say anything but that the pictures are poor."""
LEAST_PICTURES = 100
"""On both sides; with fewer, either may be off by a tenth by chance."""


def low_recall(scores: Mapping[str, float], provenance: Provenance) -> str | None:
    """Return a warning about recall far below precision; None: there is nothing to tell, or they were not measured.

    Args:
        scores: by name; read are "precision" and "recall".
        provenance: what they were measured with. Scores of some classes alone say nothing: the others are not to be
            reached.
    """
    precision, recall = scores.get("precision"), scores.get("recall")
    if not isinstance(precision, float) or not isinstance(recall, float):
        return None  # not measured, or not finite
    counts = counts_of("recall", provenance.as_json())
    if min(counts) < LEAST_PICTURES or provenance.classes not in (ALIKE, AS_REAL):
        return None
    if recall >= FAR_BELOW * precision or precision - recall < LEAST_GAP:
        return None
    what = "the pictures show little of the variety of the real ones"
    if (told_apart := scores.get("two_sample")) is not None and told_apart < TOLD_APART:
        what = "the pictures are good but show little of the variety of the real ones"
    elif told_apart is not None:
        judge = judge_in_words(provenance.judge)
        what += f", and {judge} tells them from those {100 * told_apart:.0f} times in 100, as early in a training"
    line = (
        f"recall {recall:.2f} is far below precision {precision:.2f}: {what}. Look at many samples at once; "
        "docs/training-well.md says what helps"
    )
    if provenance.truncation < 1:
        line += f". Truncation {provenance.truncation:g} narrows variety by itself: score truncation 1 as well"
    return line
