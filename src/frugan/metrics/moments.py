"""Mean and covariance of features, gathered in float64 while they come, in memory that does not grow."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

FOLD_ROWS = 1024
"""Rows that are gathered before they are folded in: a product of few rows moves the whole matrix for little work."""


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of features.

    Attributes:
        count: rows.
        mean: float64 [D].
        scatter: sum of outer products of deviations from the mean, float64 [D, D].
    """

    count: int
    mean: Tensor
    scatter: Tensor

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
        """Of all features at once [N, D]."""
        gathered = StreamingMoments(features.shape[1])
        gathered.update(features)
        found = gathered.finish()
        return cls(found.count, found.mean, found.scatter)

    def merged(self, other: "Moments") -> "Moments":
        """Of both sets of rows together (Chan et al. 1979), for shares of several processes."""
        if not self.count or not other.count:
            return other if not self.count else self
        count = self.count + other.count
        apart = other.mean - self.mean
        scatter = self.scatter + other.scatter + torch.outer(apart, apart) * (self.count * other.count / count)
        return Moments(count, self.mean + apart * (other.count / count), scatter)


@dataclass(frozen=True)
class Normal:
    """Mean and covariance that somebody else gathered, of how many features does not matter.

    Attributes:
        mean: float64 [D].
        covariance: float64 [D, D], symmetric.
    """

    mean: Tensor
    covariance: Tensor


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
        """What was gathered so far."""
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
