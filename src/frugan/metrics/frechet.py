"""Fréchet distance between two sets of features, of which FID is the best known."""

import torch
from torch import Tensor

from frugan.metrics.moments import Moments, Normal


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
