"""Inception score, gathered while class scores come."""

import math

import torch
from torch import Tensor


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
        scores = [math.exp(each) for each in divergence.tolist()]
        center = sum(scores) / len(scores)
        return center, math.sqrt(sum((score - center) ** 2 for score in scores) / len(scores))
