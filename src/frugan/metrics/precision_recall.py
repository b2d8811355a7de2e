"""Precision and recall of generated features among real ones, by balls around each point."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NEIGHBOURS = 3
BLOCK_ROWS = 2000
"""Rows whose distances to another block are held at once: 32 MB."""


def precision_recall(
    generated: NDArray[np.float32], real: NDArray[np.float32], neighbours: int = NEIGHBOURS
) -> tuple[float, float]:
    """Share of generated points inside any real ball, and of real points inside any generated one.

    A ball reaches to its centre's k-th nearest neighbour in its own set.

    Args:
        generated, real: [N, D] and [M, D]; may lie in files: they are read in blocks.
        neighbours: k.

    Raises:
        ValueError: no more rows than neighbours.

    Source: Kynkäänniemi et al. 2019 (arXiv 1904.06991).
    """
    if min(len(generated), len(real)) <= neighbours:
        raise ValueError(f"{len(generated)} and {len(real)} rows: expected more than the {neighbours} neighbours")
    precision = _inside(generated, real, _radii(real, neighbours))
    return precision, _inside(real, generated, _radii(generated, neighbours))


def _radii(points: NDArray[np.float32], neighbours: int) -> Tensor:
    """Squared distance of each point to its k-th nearest other one [N]."""
    found = []
    for first in range(0, len(points), BLOCK_ROWS):
        centers = _rows(points, first)
        nearest = torch.empty(len(centers), 0, dtype=torch.float64)
        for start in range(0, len(points), BLOCK_ROWS):
            distances = torch.cat([nearest, _squared_distances(centers, _rows(points, start))], 1)
            nearest = distances.topk(min(neighbours + 1, distances.shape[1]), largest=False).values
        found.append(nearest[:, -1])  # the nearest is the point itself
    return torch.cat(found)


def _inside(points: NDArray[np.float32], centers: NDArray[np.float32], radii: Tensor) -> float:
    """Share of points inside any ball."""
    inside = 0
    for first in range(0, len(points), BLOCK_ROWS):
        rows = _rows(points, first)
        found = torch.zeros(len(rows), dtype=torch.bool)
        for start in range(0, len(centers), BLOCK_ROWS):
            distances = _squared_distances(rows, _rows(centers, start))
            found |= (distances <= radii[start : start + BLOCK_ROWS]).any(1)
        inside += int(found.sum())
    return inside / len(points)


def _rows(points: NDArray[np.float32], first: int) -> Tensor:
    return torch.from_numpy(np.asarray(points[first : first + BLOCK_ROWS], dtype=np.float64))


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """[N, D], [M, D] -> [N, M]."""
    products = a @ b.T
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * products).clamp(min=0)
