"""Moved pictures beside pictures of moved coordinates: the error of one against the other, in decibels.

Source: Karras et al. 2021 (arXiv 2106.12423), equation 3 and appendix E. Pictures are [C, R, R]; offsets are in pixels,
to the right and down; angles are in degrees, to the left, about the middle of the picture.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

LOBES = 3
"""Half-width of Lanczos's filter, in pixels."""
FINE = 4
"""Samples in the width of a pixel, where a picture is turned and filtered."""
RANGE = 2.0
"""Width of the range of values, from -1 to 1."""
LEAST_ERROR = 1e-14
"""Mean squared error below which fp32 tells nothing."""


def decibels(errors: Sequence[float]) -> tuple[float, float]:
    """Ratio of the squared range of values to the mean of squared errors, and half of its 95 % interval."""
    found = torch.tensor(errors, dtype=torch.float64)
    mean = max(float(found.mean()), LEAST_ERROR)
    deviation = float(found.std()) / math.sqrt(len(found)) if len(found) > 1 else math.inf
    return 10 * math.log10(RANGE**2 / mean), 1.96 * 10 / math.log(10) * deviation / mean


def translation_error(still: Tensor, moved: Tensor, right: float, down: float) -> float:
    """Mean squared error of a picture against a still one translated, where the latter says what it has to be."""
    expected, columns = _shifted(still, right, 2)
    expected, rows = _shifted(expected, down, 1)
    return float((moved[:, rows, columns] - expected).square().mean())


def _shifted(picture: Tensor, offset: float, dim: int) -> tuple[Tensor, slice]:
    """Picture translated along an axis, cut to what is known of it, and its place there.

    A whole number of pixels needs no filter.
    """
    places = range(math.ceil(offset - LOBES), math.floor(offset + LOBES) + 1)
    taps = _lanczos(torch.tensor([place - offset for place in places], dtype=torch.float64))
    kept = [(place, float(tap / taps.sum())) for place, tap in zip(places, taps, strict=True) if abs(tap) > 1e-9]
    first, last = max(0, kept[-1][0]), picture.shape[dim] + min(0, kept[0][0])
    parts = [tap * picture.narrow(dim, first - place, last - first) for place, tap in kept]
    return torch.stack(parts).sum(0), slice(first, last)


def rotation_error(still: Tensor, moved: Tensor, degrees: float) -> float | None:
    """Mean squared error of a picture against a still one turned; None: nothing of it is known, it is too small.

    What a turned grid of pixels holds is a turned square of frequencies. So each of both pictures is filtered by the
    other's square, and what both can hold is compared.
    """
    expected, known = _turned(still, degrees)
    found, known_too = _filtered(moved, degrees)
    both = known & known_too
    if not bool(both.any()):
        return None
    return float((found - expected)[:, both].square().mean())


def _turned(picture: Tensor, degrees: float) -> tuple[Tensor, Tensor]:
    """Picture turned and filtered for the grid of pixels, and which pixels [R, R] of it are known."""
    side = picture.shape[1]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    at = (torch.arange(side * FINE, device=picture.device) + 0.5) / FINE - side / 2
    x, y = at[None, :], at[:, None]
    (columns, across), (rows, down) = (
        _taps(source + side / 2 - 0.5) for source in (cosine * x - sine * y, sine * x + cosine * y)
    )
    turned = picture.new_zeros(len(picture), side * FINE, side * FINE)
    known = torch.ones(side * FINE, side * FINE, dtype=torch.bool, device=picture.device)
    for i in range(2 * LOBES):
        row = rows + i
        known &= (row >= 0) & (row < side)
        for j in range(2 * LOBES):
            column = columns + j
            known &= (column >= 0) & (column < side)
            turned += picture[:, row.clamp(0, side - 1), column.clamp(0, side - 1)] * (down[i] * across[j])
    offsets = (torch.arange(2 * LOBES * FINE, device=picture.device) + 0.5) / FINE - LOBES
    taps = _lanczos(offsets)
    return _thinned(turned, known, torch.outer(taps, taps))


def _filtered(picture: Tensor, degrees: float) -> tuple[Tensor, Tensor]:
    """Picture filtered by a turned grid of pixels, and which pixels [R, R] of it are known."""
    side = picture.shape[1]
    firsts, weights = _taps((torch.arange(side * FINE, device=picture.device) + 0.5) / FINE - 0.5)
    finer = picture.new_zeros(side * FINE, side + 2 * LOBES)  # with a margin for what is not known
    for i in range(2 * LOBES):
        finer.scatter_(1, (firsts + i + LOBES)[:, None], weights[i, :, None])
    finer = finer[:, LOBES:-LOBES]
    inside = (firsts >= 0) & (firsts + 2 * LOBES <= side)
    reach = math.ceil(LOBES * math.sqrt(2) * FINE)
    offsets = (torch.arange(2 * reach, device=picture.device) + 0.5 - reach) / FINE
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = offsets[None, :], offsets[:, None]
    taps = _lanczos(cosine * x - sine * y) * _lanczos(sine * x + cosine * y)
    return _thinned(finer @ picture @ finer.T, inside[None] & inside[:, None], taps)


def _thinned(fine: Tensor, known: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    """Fine samples [C, FINE·R, FINE·R] filtered at the middles of pixels, and which of these are known [R, R]."""
    margin = [len(taps) // 2 - FINE // 2] * 4
    kernel = (taps / taps.sum())[None, None]
    thinned = F.conv2d(F.pad(fine[:, None], margin), kernel.to(fine.dtype), stride=FINE)[:, 0]
    unknown = F.pad((~known).to(fine.dtype)[None], margin, value=1.0)
    return thinned, F.max_pool2d(unknown, len(taps), stride=FINE)[0] == 0


def _taps(places: Tensor) -> tuple[Tensor, Tensor]:
    """Number of the first pixel under the filter at each place [...], and its taps [2·LOBES, ...], whose sum is 1.

    Args:
        places: where whole numbers are the middles of pixels.
    """
    firsts = places.floor().long() - LOBES + 1
    beyond = torch.arange(2 * LOBES, device=places.device).view(-1, *[1] * places.ndim)
    taps = _lanczos(firsts + beyond - places)
    return firsts, taps / taps.sum(0)


def _lanczos(x: Tensor) -> Tensor:
    """Lanczos's filter, in pixels."""
    return torch.sinc(x) * torch.sinc(x / LOBES) * (x.abs() < LOBES)
