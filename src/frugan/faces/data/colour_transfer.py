"""Give a picture the colours of another: five ways.

All take and return float32 BGR within [0, 1]. Source: DeepFaceLab's behaviour
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from frugan.faces.data.geometry import opencv

Picture = NDArray[np.float32]
Method = Literal["rct", "lct", "mkl", "idt", "sot"]

_SPREAD_FLOOR = 1e-2  # rct, in Lab units: a picture of one colour has none
_LCT_FLOOR = 1e-5  # added to variances
_EIGENVALUE_FLOOR = 1e-8  # mkl: a spread of a fortieth of a grey level
_IDT_STEPS = 20
_IDT_BINS = 256
_SOT_STEPS = 10
_SOT_DIRECTIONS = 5  # per step
_SOT_SMOOTHING_PIXELS = 16.0


def transfer_colour(method: Method, picture: Picture, reference: Picture, random: np.random.RandomState) -> Picture:
    """Return the picture in the reference's colours.

    Args:
        method: rct, lct, mkl, idt or sot, as the functions here are called.
        picture: float32 BGR [H, W, 3].
        reference: float32 BGR [h, w, 3]; sot needs [H, W, 3].
        random: drawn from by idt and sot.

    Returns:
        float32 BGR [H, W, 3].

    Raises:
        BadInput: OpenCV is not installed.
    """
    if method == "idt":
        return idt(picture, reference, random)
    if method == "sot":
        return sot(picture, reference, random)
    plain: dict[str, Callable[[Picture, Picture], Picture]] = {"rct": rct, "lct": lct, "mkl": mkl}
    return plain[method](picture, reference)


def rct(picture: Picture, reference: Picture) -> Picture:
    """Match mean and spread of each Lab channel (Reinhard et al., "Color transfer between images", 2001)."""
    cv2 = opencv()
    lab = cv2.cvtColor(picture, cv2.COLOR_BGR2LAB)
    mean, spread = cv2.meanStdDev(lab)  # [3, 1], summed in float64: float32 sums cost 5e-5 of the result
    wanted_mean, wanted_spread = cv2.meanStdDev(cv2.cvtColor(reference, cv2.COLOR_BGR2LAB))
    gain = wanted_spread / np.maximum(spread, _SPREAD_FLOOR)
    lab = cv2.transform(lab, np.hstack([np.diag(gain[:, 0]), wanted_mean - gain * mean]))
    for channel, (least, most) in enumerate(((0, 100), (-127, 127), (-127, 127))):
        lab[..., channel].clip(least, most, out=lab[..., channel])
    return _clipped(cv2.cvtColor(lab, cv2.COLOR_LAB2BGR))


def lct(picture: Picture, reference: Picture) -> Picture:
    """Match mean and covariance by whitening and colouring along the principal axes."""
    floor = _LCT_FLOOR * np.eye(3)
    mean, covariance = _moments(picture)
    wanted_mean, wanted_covariance = _moments(reference)
    matrix = _matrix_power(wanted_covariance + floor, 0.5) @ _matrix_power(covariance + floor, -0.5)
    return _recoloured(picture, matrix, mean, wanted_mean)


def mkl(picture: Picture, reference: Picture) -> Picture:
    """Match mean and covariance by the linear map that moves the colours least.

    Source: Pitié and Kokaram, "The linear Monge-Kantorovitch linear colour mapping for example-based colour transfer",
    2007.
    """
    mean, covariance = _moments(picture)
    wanted_mean, wanted_covariance = _moments(reference)
    root, inverse_root = _matrix_power(covariance, 0.5), _matrix_power(covariance, -0.5)
    matrix = inverse_root @ _matrix_power(root @ wanted_covariance @ root, 0.5) @ inverse_root
    return _recoloured(picture, matrix, mean, wanted_mean)


def idt(picture: Picture, reference: Picture, random: np.random.RandomState) -> Picture:
    """Match the whole distribution, along three random axes at a time, each time a twentieth of the way.

    Source: Pitié, Kokaram and Dahyot, "N-dimensional probability density function transfer and its application to
    colour transfer", 2005. The twentieth, one over the number of steps, was found from a picture that the original
    made: after all 20 steps the colours have gone 64 % of the way.
    """
    colours = picture.reshape(-1, 3).astype(np.float64)  # [n, 3]
    wanted = reference.reshape(-1, 3).astype(np.float64)
    for _ in range(_IDT_STEPS):
        axes, _ = np.linalg.qr(random.standard_normal((3, 3)))
        along, wanted_along = axes.T @ colours.T, axes.T @ wanted.T  # [3, n]
        change = np.stack([_histogram_change(*pair) for pair in zip(along, wanted_along, strict=True)])
        colours += (axes @ change).T / _IDT_STEPS
    return _clipped(colours.astype(np.float32)).reshape(picture.shape)


def sot(picture: Picture, reference: Picture, random: np.random.RandomState) -> Picture:
    """Match the whole distribution by optimal transport along random directions, then smooth the change.

    Source: Rabin, Peyré, Delon and Bernot, "Wasserstein barycenter and its application to texture mixing", 2011;
    pictures of equally many pixels, so that the n-th smallest value goes to the n-th smallest.
    """
    cv2 = opencv()
    colours = picture.reshape(-1, 3).copy()  # [n, 3]
    wanted = reference.reshape(-1, 3)
    change = np.empty(len(colours), np.float32)
    for _ in range(_SOT_STEPS):
        step = np.zeros_like(colours)
        for _ in range(_SOT_DIRECTIONS):
            direction = random.normal(size=3).astype(np.float32)
            direction /= np.linalg.norm(direction)
            along = colours @ direction  # [n]
            order = np.argsort(along)
            change[order] = np.sort(wanted @ direction) - along[order]
            step += np.outer(change, direction)
        colours += step / _SOT_DIRECTIONS
    moved = colours.reshape(picture.shape) - picture
    # The original's filter is a bilateral one whose width in colour, 5, is beyond all differences that there are.
    # Without that width the result moves by less than 1e-4, and 256 x 256 pixels take 5 ms instead of 170.
    return _clipped(picture + cv2.filter2D(moved, -1, _gaussian_disc(_SOT_SMOOTHING_PIXELS)))


def _gaussian_disc(sigma_pixels: float) -> NDArray[np.float32]:
    """Return the weights of place of OpenCV's bilateral filter: a Gaussian cut off at 1.5 sigma."""
    radius = round(1.5 * sigma_pixels)
    x = np.arange(-radius, radius + 1)
    square = x[:, None] ** 2 + x**2
    weights = np.where(square <= radius**2, np.exp(-square / (2 * sigma_pixels**2)), 0)
    return np.asarray(weights / weights.sum(), np.float32)


def _histogram_change(values: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much to move values, [n], so that their histogram becomes that of `wanted`, [m]."""
    low, high = min(values.min(), wanted.min()), max(values.max(), wanted.max())
    if low == high:
        return np.zeros_like(values)
    per_bin = _IDT_BINS / (high - low)
    bins, after = _binned((values - low) * per_bin)
    wanted_bins, _ = _binned((wanted - low) * per_bin)
    edges = np.linspace(low, high, _IDT_BINS + 1)
    at_edges: NDArray[np.float64] = np.interp(_shares(bins), _shares(wanted_bins), edges) - edges
    return at_edges[bins] * (1 - after) + at_edges[bins + 1] * after


def _binned(places: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the bins in which places, counted in bins, lie, and how far into them, 0 to 1."""
    bins = np.minimum(places.astype(np.intp), _IDT_BINS - 1)
    return bins, places - bins


def _shares(bins: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return which part of the values lies below each edge of the bins, from 0 to 1."""
    return np.concatenate([[0.0], np.cumsum(np.bincount(bins, minlength=_IDT_BINS)) / len(bins)])


def _moments(picture: Picture) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean colour, [3], and the colours' covariance, [3, 3]."""
    colours = picture.reshape(-1, 3).astype(np.float64)
    mean = np.ones(len(colours)) @ colours / len(colours)  # many times faster than .mean over rows of 3
    covariance = (colours.T @ colours - len(colours) * np.outer(mean, mean)) / (len(colours) - 1)
    return mean, covariance


def _matrix_power(matrix: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Return a power of a symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)
    powers: NDArray[np.float64] = np.maximum(values, _EIGENVALUE_FLOOR) ** exponent
    return np.asarray((vectors * powers) @ vectors.T, np.float64)


def _recoloured(
    picture: Picture, matrix: NDArray[np.float64], mean: NDArray[np.float64], wanted_mean: NDArray[np.float64]
) -> Picture:
    """Return the picture with its colours' distances from the mean mapped by `matrix`, [3, 3], about another mean."""
    return _clipped(opencv().transform(picture, np.column_stack([matrix, wanted_mean - matrix @ mean])))


def _clipped(picture: Picture) -> Picture:
    return picture.clip(0, 1, out=picture)
