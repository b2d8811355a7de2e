"""ADA: many operations that act on each picture with one probability, which training may steer.

Source: Karras et al. 2020 (arXiv 2006.06676), section 2 and appendix B, for the operations and their strengths.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from frugan.augment.resampling import resample

# Random values of blits, geometry and colour, all three at once: one after the other, their many small operations would
# take longer on a card than the pictures.


@dataclass(frozen=True)
class _Value:
    """A value that an operation draws for each picture; 0 where the operation does not act."""

    drawn: int  # column of the number that it is computed from, among uniforms and normals side by side
    acts: int  # column of the uniform that decides whether the operation acts
    factor: float = 1.0  # multiplies the number
    summand: float = 0.0  # is added to it
    then: float = 1.0  # multiplies the result after rounding


BLIT_UNIFORMS = 7
BLIT_SHIFT = 0.125
"""Largest shift, as a share of the side."""
GEOMETRY_UNIFORMS = 7
GEOMETRY_NORMALS = 4
SCALE = 0.2
"""Standard deviation of the binary logarithm of the size, and of the proportions."""
GEOMETRY_SHIFT = 0.125
"""Standard deviation of a shift, as a share of the side."""
COLOUR_UNIFORMS = 7
COLOUR_NORMALS = 3
BRIGHTNESS = 0.2
"""Standard deviation of the number that is added to all values, which lie in [-1, 1]."""
CONTRAST = 0.5
"""Standard deviation of the binary logarithm of the contrast's factor."""
SATURATION = 1.0
"""Standard deviation of the binary logarithm of the saturation's factor."""
FILTER_UNIFORMS = FILTER_NORMALS = BANDS = 4
NOISE_UNIFORMS = NOISE_NORMALS = 1
CUTOUT_UNIFORMS = 3

UNIFORMS = (BLIT_UNIFORMS, GEOMETRY_UNIFORMS, COLOUR_UNIFORMS, FILTER_UNIFORMS, NOISE_UNIFORMS, CUTOUT_UNIFORMS)
NORMALS = (GEOMETRY_NORMALS, COLOUR_NORMALS, FILTER_NORMALS, NOISE_NORMALS)


def _values(height: int, width: int) -> tuple[_Value, ...]:
    """Values in the order of the columns of `Drawn.values`."""
    blit, geometry, colour = 0, BLIT_UNIFORMS, BLIT_UNIFORMS + GEOMETRY_UNIFORMS
    normal = sum(UNIFORMS)
    coloured = normal + GEOMETRY_NORMALS
    angle = {"factor": 2.0, "summand": -1.0, "then": math.pi}
    return (
        # angles: before and after the change of proportions, of the hue, of quarter turns
        _Value(geometry, geometry + 3, **angle),
        _Value(geometry + 1, geometry + 5, **angle),
        _Value(colour + 1, colour + 5, **angle),
        _Value(blit + 2, blit + 3, factor=4, then=math.pi / 2),
        # signs: of x, of the luma
        _Value(blit, blit + 1, factor=2, then=-2),
        _Value(colour, colour + 4, factor=2, then=-2),
        # shifts by whole pixels
        _Value(blit + 4, blit + 6, factor=2 * BLIT_SHIFT * width, summand=-BLIT_SHIFT * width, then=-1),
        _Value(blit + 5, blit + 6, factor=2 * BLIT_SHIFT * height, summand=-BLIT_SHIFT * height, then=-1),
        # binary logarithms: of size, proportions, contrast, saturation
        _Value(normal, geometry + 2, factor=-SCALE),
        _Value(normal + 1, geometry + 4, factor=-SCALE),
        _Value(coloured + 1, colour + 3, factor=CONTRAST),
        _Value(coloured + 2, colour + 6, factor=SATURATION),
        # shifts, brightness
        _Value(normal + 2, geometry + 6, factor=-GEOMETRY_SHIFT * width),
        _Value(normal + 3, geometry + 6, factor=-GEOMETRY_SHIFT * height),
        _Value(coloured, colour + 2, factor=BRIGHTNESS),
    )


TURN_BEFORE, TURN_AFTER, HUE, QUARTERS, MIRROR, INVERT, RIGHT_PIXELS, DOWN_PIXELS = range(8)
SIZE, STRETCH, CONTRASTED, SATURATED, RIGHT, DOWN, BRIGHT = range(8, 15)
TURNS, SIGNS = slice(TURN_BEFORE, MIRROR), slice(MIRROR, RIGHT_PIXELS)
FLOORED, ROUNDED, LOGARITHMS = slice(QUARTERS, RIGHT_PIXELS), slice(RIGHT_PIXELS, SIZE), slice(SIZE, RIGHT)
TURNS_OF_GEOMETRY = 2
"""Number of angles, the first ones, of which one or both act with the probability of a single operation."""


@dataclass(frozen=True)
class Drawn:
    """Changes of each of N pictures by blits, geometry and colour."""

    values: Tensor  # in the order of `_values`, signs as 1 or -1 [N, 15]
    powers: Tensor  # 2 to the power of the logarithms [N, 4]
    cos: Tensor  # cosines of the angles [N, 4]
    sin: Tensor  # sines of the angles [N, 4]

    @classmethod
    def of(
        cls, uniforms: Tensor, normals: Tensor, probability: Tensor, shares: Sequence[float], height: int, width: int
    ) -> "Drawn":
        """Compute the changes from random numbers.

        Args:
            uniforms: in [0, 1) [N, 29].
            normals: [N, 12].
            probability: probability of an operation, a scalar.
            shares: factors of the probability, for blits, geometry and colour.
            height: of the pictures.
            width: of the pictures.
        """
        values = _values(height, width)
        device, dtype = uniforms.device, normals.dtype
        bounds = (BLIT_UNIFORMS, BLIT_UNIFORMS + GEOMETRY_UNIFORMS)
        rows = [
            [value.factor for value in values],
            [value.summand for value in values],
            [value.then for value in values],
            [shares[sum(value.acts >= bound for bound in bounds)] for value in values],
        ]
        factor, summand, then, share = _on(device, rows, dtype).unbind()
        columns = [value.drawn for value in values] + [value.acts for value in values]
        taken = torch.cat([uniforms, normals], 1).index_select(1, _on(device, columns, torch.int64))  # [N, 30]
        drawn, acts = taken.chunk(2, 1)
        likely = probability * share  # [15]
        of_two = 1 - (1 - likely[:TURNS_OF_GEOMETRY]).clamp_min(0).sqrt()
        result = drawn * factor + summand
        result[:, FLOORED].floor_()
        result[:, ROUNDED].round_()
        result = (result * then).masked_fill_(acts >= torch.cat([of_two, likely[TURNS_OF_GEOMETRY:]]), 0)
        result[:, SIGNS].add_(1)
        return cls(result, torch.exp2(result[:, LOGARITHMS]), result[:, TURNS].cos(), result[:, TURNS].sin())

    def inverse(self) -> Tensor:
        """Maps from the places of pixels to the places that they are taken from [N, 3, 3].

        Coordinates are pixels from the picture's centre, x to the right, y down. Pictures are mirrored, turned by
        quarters and shifted by whole pixels; then scaled, turned, stretched, turned back or on, and shifted.
        """
        powers = self.powers[:, : CONTRASTED - SIZE]
        fixed = _on(self.values.device, [[0.0, 1.0]], self.values.dtype).expand(len(powers), 2)
        parts = [self.values, powers, powers.reciprocal(), self.cos, self.sin, -self.sin, fixed]
        size, inverse, cos, sin, minus, zero, _ = accumulate(part.shape[1] for part in parts)
        stretch, across, one = size + 1, inverse + 1, zero + 1

        def scaling(x: int, y: int) -> list[int]:
            return [x, zero, zero, zero, y, zero, zero, zero, one]

        def turn(angle: int) -> list[int]:
            rows = [cos + angle, minus + angle, zero, sin + angle, cos + angle, zero]
            return [*rows, zero, zero, one]

        def shift(x: int, y: int) -> list[int]:
            return [one, zero, x, zero, one, y, zero, zero, one]

        maps = [
            *(scaling(MIRROR, one), turn(QUARTERS), shift(RIGHT_PIXELS, DOWN_PIXELS), scaling(size, size)),
            *(turn(TURN_BEFORE), scaling(stretch, across), turn(TURN_AFTER), shift(RIGHT, DOWN)),
        ]
        places = _on(self.values.device, [place for entries in maps for place in entries], torch.int64)
        return compose(torch.cat(parts, 1).index_select(1, places).view(-1, len(maps), 3, 3))


def compose(maps: Tensor) -> Tensor:
    """Product of matrices, of which the last acts first: [N, K, 3, 3] -> [N, 3, 3], where K is a power of 2.

    By sums of products, as a GPU's matrix units might round to 10 bits, which is a pixel in 1000.
    """
    while maps.shape[1] > 1:
        maps = (maps[:, ::2, :, :, None] * maps[:, 1::2, None, :, :]).sum(3)
    return maps[:, 0]


def _on(device: torch.device, numbers: Sequence[object], dtype: torch.dtype) -> Tensor:
    """Copy constants to a device without waiting for it."""
    return torch.tensor(numbers, dtype=dtype, device="cpu").to(device, non_blocking=True)


def where_active(draw: Tensor, probability: Tensor, value: Tensor, otherwise: float) -> Tensor:
    """Value [N] of an operation where it acts, else `otherwise`; `draw` holds uniform numbers in [0, 1) [N]."""
    return torch.where(draw < probability, value, otherwise)


# Colour: brightness, contrast, inverted luma, rotated hue and saturation.


def change_colours(pictures: Tensor, drawn: Drawn) -> Tensor:
    """Change colours.

    Every operation acts on a pixel's luma (its mean over the channels), on its chroma (the rest), or on both alike; so
    all of them together are one factor for the luma, and a scaled rotation about the grey axis for the chroma.

    Args:
        pictures: [N, 1 or 3, H, W] in [-1, 1]; a grey picture has only luma.
        drawn: changes of each picture.
    """
    *_, gain, saturation = drawn.powers.unbind(1)  # [N] each
    offset, luma = drawn.values[:, BRIGHT], gain * drawn.values[:, INVERT]
    if pictures.shape[1] == 1:
        return (pictures + _broadcast(offset, pictures)) * _broadcast(luma, pictures)
    matrix = _about_grey(luma, gain * saturation, drawn.cos[:, HUE], drawn.sin[:, HUE]).to(pictures.dtype)
    added = (luma * offset).to(pictures.dtype)[:, None, None]
    return torch.baddbmm(added, matrix, pictures.flatten(2)).view_as(pictures)


def _about_grey(luma: Tensor, chroma: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Matrices that multiply colours along the grey axis by `luma`, and across it by `chroma`, and rotate the latter.

    Matrices [N, 3, 3] that commute with rotations about (1, 1, 1) are circulant: they have three different entries.
    """
    along, cos, sin = luma / 3, chroma * cos / 3, chroma * sin / math.sqrt(3)
    rest = along - cos
    same, before, after = torch.add(along, cos, alpha=2), rest - sin, rest + sin  # [N] each
    return torch.stack([same, before, after, after, same, before, before, after, same], 1).view(-1, 3, 3)


def _broadcast(values: Tensor, pictures: Tensor) -> Tensor:
    """[N] -> [N, 1, 1, 1]."""
    return values.to(pictures.dtype)[:, None, None, None]


# Image-space filtering: each of four frequency bands becomes stronger or weaker.
# Bands, strengths, and the balance between them are those of appendix B.

GAIN = 1.0
"""Standard deviation of a gain's binary logarithm."""
POWER = (10 / 13, 1 / 13, 1 / 13, 1 / 13)
"""Power of natural pictures in each band, the lowest first: their spectrum falls as 1/f."""
HALF_BAND = (-1, 0, 9, 16, 9, 0, -1)
"""Autocorrelated low pass of the wavelet sym2, in units of 1/32; the high pass is a unit pulse minus it."""


def _band_taps() -> tuple[tuple[float, ...], ...]:
    """Symmetric taps of the bands, 43 each, the lowest band first; their sum is a unit pulse.

    Octave by octave, the bands so far are upsampled and low-passed, and the high pass becomes the next band.
    """
    low = [value / 32 for value in HALF_BAND]
    high = [(place == len(low) // 2) - value for place, value in enumerate(low)]
    bank = [[1.0], *([0.0] for _ in range(1, BANDS))]
    for octave in range(1, BANDS):
        bank = [_convolved(_upsampled(band), low) for band in bank]
        before = (len(bank[0]) - len(high)) // 2
        for place, value in enumerate(high):
            bank[octave][before + place] += value
    return tuple(tuple(band) for band in bank)


def _upsampled(taps: list[float]) -> list[float]:
    """Put a zero between every two taps."""
    return [value for tap in taps for value in (tap, 0.0)][:-1]


def _convolved(taps: list[float], other: list[float]) -> list[float]:
    product = [0.0] * (len(taps) + len(other) - 1)
    for i, tap in enumerate(taps):
        for j, value in enumerate(other):
            product[i + j] += tap * value
    return product


BAND_TAPS = _band_taps()


def filter_bands(pictures: Tensor, uniforms: Tensor, normals: Tensor, probability: Tensor) -> Tensor:
    """Filter pictures, which continue by reflection beyond their border.

    Each picture is multiplied by a matrix in each direction, which contains the reflection: exact in fp32, with every
    derivative, and also for sides below the filter's 43 taps.

    Args:
        pictures: [N, C, H, W].
        uniforms: in [0, 1) [N, 4].
        normals: [N, 4].
    """
    gains = _gains(uniforms, normals, probability).to(pictures.dtype)  # [N, 4]
    rows, columns = ((gains @ _bank(side, pictures).flatten(1)).view(-1, 1, side, side) for side in pictures.shape[2:])
    return rows @ pictures @ columns.mT


def _gains(uniforms: Tensor, normals: Tensor, probability: Tensor) -> Tensor:
    """Gain of each band [N, 4]; where one band is changed, all are scaled to keep the expected power."""
    total = torch.ones_like(normals)
    for band, power in enumerate(POWER):
        gain = torch.exp2(where_active(uniforms[:, band], probability, GAIN * normals[:, band], 0))  # [N]
        balance = (1 + power * (gain.square() - 1)).rsqrt()
        total = total * balance[:, None] * torch.where(_is_band(band, normals), gain[:, None], 1.0)
    return total


def _is_band(band: int, like: Tensor) -> Tensor:
    return torch.arange(BANDS, device=like.device) == band


def _bank(side: int, like: Tensor) -> Tensor:
    """Matrices that filter a row of pixels by each band [4, side, side].

    Taps are integer multiples of 2^-15, so that their sums are exact in whatever order a card adds them.
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


# Corruptions: noise on every pixel, and a square that is cut out.

NOISE = 0.1
"""Standard deviation of the normal number whose absolute value is the noise's strength; pictures lie in [-1, 1]."""
CUTOUT = 0.5
"""Side of the square, as a share of the picture's side."""


def add_noise(pictures: Tensor, uniforms: Tensor, normals: Tensor, noise: Tensor, probability: Tensor) -> Tensor:
    """Add white noise.

    Args:
        pictures: [N, C, H, W].
        uniforms: in [0, 1) [N, 1].
        normals: [N, 1]; their absolute values are strengths.
        noise: normal numbers [N, C, H, W].
    """
    strength = where_active(uniforms[:, 0], probability, NOISE * normals[:, 0].abs(), 0)  # [N]
    return pictures + noise.to(pictures.dtype) * strength.to(pictures.dtype)[:, None, None, None]


def cut_out(pictures: Tensor, uniforms: Tensor, probability: Tensor) -> Tensor:
    """Set a square to 0, whose centre may lie anywhere in the picture.

    Args:
        pictures: [N, C, H, W].
        uniforms: in [0, 1) [N, 3]: column and row of the centre, and whether the operation acts.
    """
    column, row, acts = uniforms.unbind(1)  # [N] each
    half = (acts < probability) * (CUTOUT / 2)
    down, right = (
        (_places(side, pictures) - centre[:, None]).abs() >= half[:, None]  # [N, side]
        for centre, side in ((row, pictures.shape[2]), (column, pictures.shape[3]))
    )
    return pictures * (down[:, None, :, None] | right[:, None, None, :])


def _places(side: int, like: Tensor) -> Tensor:
    """Centres of the pixels, as shares of the side [side]."""
    return (torch.arange(side, device=like.device) + 0.5) / side


@dataclass(frozen=True)
class Ada:
    """ADA's pipeline of operations.

    Each operation has its own columns among the random numbers, whichever operations are chosen.
    """

    operations: Sequence[str]  # some of "blit", "geometry", "colour", "filter", "noise" and "cutout"
    colour_share: float = 1.0  # factor on the probability of colour operations
    uniforms: ClassVar[int] = sum(UNIFORMS)  # uniform numbers for each picture
    normals: ClassVar[int] = sum(NORMALS)  # normal numbers for each picture

    @property
    def noisy(self) -> bool:
        """Whether a normal number is needed for every value of a picture."""
        return "noise" in self.operations

    def __call__(
        self, pictures: Tensor, uniforms: Tensor, normals: Tensor, probability: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Change pictures.

        Args:
            pictures: [N, C, H, W] in [-1, 1], fp32; 1 or 3 channels, sides of at least 8 pixels.
            uniforms: in [0, 1), [N, 29].
            normals: [N, 12].
            probability: probability of each operation, a scalar; from 1 on all of them always act.
            noise: normal numbers [N, C, H, W], needed if `noisy`.
        """
        sides = pictures.shape[2:]
        *_, filtered, noised, cut = uniforms.split(UNIFORMS, 1)
        *_, of_filter, of_noise = normals.split(NORMALS, 1)
        blits, geometry, colour = (float(name in self.operations) for name in ("blit", "geometry", "colour"))
        if blits or geometry or colour:
            shares = (blits, geometry, colour * self.colour_share)
            drawn = Drawn.of(uniforms, normals, probability, shares, *sides)
            if blits or geometry:
                pictures = resample(pictures, drawn.inverse())
            if colour:
                pictures = change_colours(pictures, drawn)
        if "filter" in self.operations:
            pictures = filter_bands(pictures, filtered, of_filter, probability)
        if self.noisy:
            assert noise is not None
            pictures = add_noise(pictures, noised, of_noise, noise, probability)
        if "cutout" in self.operations:
            pictures = cut_out(pictures, cut, probability)
        return pictures
