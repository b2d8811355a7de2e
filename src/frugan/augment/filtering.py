"""Image-space filtering: each of four frequency bands stronger or weaker.

Source: Karras et al. 2020 (arXiv 2006.06676), appendix B: the bands, how far each goes, and what balances them.
"""

import torch
from torch import Tensor

from frugan.augment.affine import where_active

BANDS = 4
UNIFORMS = BANDS
NORMALS = BANDS
GAIN = 1.0
"""Standard deviation of a gain's binary logarithm."""
POWER = (10 / 13, 1 / 13, 1 / 13, 1 / 13)
"""Of natural pictures in each band, the lowest first: their spectrum falls as 1/f."""
HALF_BAND = (-1, 0, 9, 16, 9, 0, -1)
"""Low pass of the wavelet sym2, autocorrelated, in units of 1/32; its high pass is a unit pulse less this."""


def _band_taps() -> tuple[tuple[float, ...], ...]:
    """Symmetric taps of the bands, 43 each, the lowest band first: together they are a unit pulse.

    Octave by octave: what is there is spread to twice its length and low-passed, and the new half of the spectrum is
    what that leaves out.
    """
    low = [value / 32 for value in HALF_BAND]
    high = [(place == len(low) // 2) - value for place, value in enumerate(low)]
    bank = [[1.0], *([0.0] for _ in range(1, BANDS))]
    for octave in range(1, BANDS):
        bank = [_convolved(_spread(band), low) for band in bank]
        before = (len(bank[0]) - len(high)) // 2
        for place, value in enumerate(high):
            bank[octave][before + place] += value
    return tuple(tuple(band) for band in bank)


def _spread(taps: list[float]) -> list[float]:
    """A zero between each two."""
    return [value for tap in taps for value in (tap, 0.0)][:-1]


def _convolved(taps: list[float], other: list[float]) -> list[float]:
    found = [0.0] * (len(taps) + len(other) - 1)
    for i, tap in enumerate(taps):
        for j, value in enumerate(other):
            found[i + j] += tap * value
    return found


BAND_TAPS = _band_taps()


def filter_bands(pictures: Tensor, uniforms: Tensor, normals: Tensor, probability: Tensor) -> Tensor:
    """Filter pictures, which go on by reflection beyond their border.

    As products with a matrix for each picture and direction, which hold the reflection: exact in fp32, with every
    derivative, and for sides below the filter's 43 taps too.

    Args:
        pictures: [N, C, H, W].
        uniforms: in [0, 1) [N, 4].
        normals: [N, 4].
    """
    gains = _gains(uniforms, normals, probability).to(pictures.dtype)  # [N, 4]
    rows, columns = ((gains @ _bank(side, pictures).flatten(1)).view(-1, 1, side, side) for side in pictures.shape[2:])
    return rows @ pictures @ columns.mT


def _gains(uniforms: Tensor, normals: Tensor, probability: Tensor) -> Tensor:
    """Of each band [N, 4]: every band's own, each of which leaves the expected power as it was."""
    total = torch.ones_like(normals)
    for band, power in enumerate(POWER):
        own = torch.exp2(where_active(uniforms[:, band], probability, GAIN * normals[:, band], 0))  # [N]
        others = (1 + power * (own.square() - 1)).rsqrt()
        total = total * others[:, None] * torch.where(_at(band, normals), own[:, None], 1.0)
    return total


def _at(band: int, like: Tensor) -> Tensor:
    return torch.arange(BANDS, device=like.device) == band


def _bank(side: int, like: Tensor) -> Tensor:
    """Pixels -> pixels, for each band [4, side, side].

    Taps are whole multiples of 2^-15: sums of them are exact, in whatever order a card adds them.
    """
    taps = torch.tensor(BAND_TAPS, dtype=like.dtype).to(like.device, non_blocking=True)  # [4, 43]
    margin = taps.shape[1] // 2
    pixels = torch.arange(-margin, side + margin, device=like.device)
    tap = pixels - torch.arange(side, device=like.device)[:, None] + margin  # [side, side + 42]
    inside = (tap >= 0) & (tap < taps.shape[1])
    extended = torch.where(inside, taps[:, tap.clamp(0, taps.shape[1] - 1)], 0.0)
    period = 2 * (side - 1)
    back = pixels.remainder(period)
    reflected = torch.minimum(back, period - back)
    return extended.new_zeros(BANDS, side, side).index_add(2, reflected, extended)
