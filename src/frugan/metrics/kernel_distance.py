"""Kernel distance between two sets of features (KID)."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    found = []
    for _ in range(subsets):
        chosen = [rows[draw.choice(len(rows), subset_size, replace=False)] for rows in (one, other)]
        a, b = (torch.from_numpy(np.asarray(rows, dtype=np.float64)) for rows in chosen)
        found.append(_discrepancy(a, b))
    return float(np.mean(found)), float(np.std(found))


def _discrepancy(a: Tensor, b: Tensor) -> float:
    """Of two sets of m rows [m, D]: mean kernel within each, without a row with itself, less twice that between."""
    m = len(a)
    within = sum((kernel.sum() - kernel.diagonal().sum()) / (m * (m - 1)) for kernel in (_kernel(a, a), _kernel(b, b)))
    return float(within - 2 * _kernel(a, b).mean())


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b.T / a.shape[1] + 1) ** 3
