"""ADA: many operations, each of which acts on a picture with the same probability, which training may steer.

Source: Karras et al. 2020 (arXiv 2006.06676), section 2 and appendix B: the operations and how far each goes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from frugan.augment.resampling import resample

# What is drawn for blits, geometry and colour, of all three at once: on a card the many small operations of one after
# the other would take longer than the pictures.


@dataclass(frozen=True)
class _Value:
    """Something that an operation draws for a picture; 0 where it does not act."""

    drawn: int  # column of what it is made of, among uniforms and normals side by side
    acts: int  # column of the uniform that says whether it acts
    factor: float = 1.0
    summand: float = 0.0
    then: float = 1.0  # a factor for what has been rounded


BLIT_UNIFORMS = 7
BLIT_SHIFT = 0.125
"""Largest shift, as a share of the side."""
GEOMETRY_UNIFORMS = 7
GEOMETRY_NORMALS = 4
SCALE = 0.2
"""Standard deviation of a factor's binary logarithm, of the size and of the proportions."""
GEOMETRY_SHIFT = 0.125
"""Standard deviation of a shift, as a share of the side."""
COLOUR_UNIFORMS = 7
COLOUR_NORMALS = 3
BRIGHTNESS = 0.2
"""Standard deviation of what is added to all values, which lie in [-1, 1]."""
CONTRAST = 0.5
SATURATION = 1.0
"""Standard deviations of a factor's binary logarithm."""
FILTER_UNIFORMS = FILTER_NORMALS = BANDS = 4
NOISE_UNIFORMS = NOISE_NORMALS = 1
CUTOUT_UNIFORMS = 3

UNIFORMS = (BLIT_UNIFORMS, GEOMETRY_UNIFORMS, COLOUR_UNIFORMS, FILTER_UNIFORMS, NOISE_UNIFORMS, CUTOUT_UNIFORMS)
NORMALS = (GEOMETRY_NORMALS, COLOUR_NORMALS, FILTER_NORMALS, NOISE_NORMALS)


def _values(height: int, width: int) -> tuple[_Value, ...]:
    """In the order that `Drawn` takes them in."""
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
        # what turns a sign: of x, of the luma
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
"""The first ones: one or both act with the probability of one operation."""


@dataclass(frozen=True)
class Drawn:
    """What blits, geometry and colour do to each of N pictures."""

    values: Tensor  # as `_values` has them, but signs as such: 1 or -1 [N, 15]
    powers: Tensor  # 2 to the power of the logarithms [N, 4]
    cos: Tensor  # of the angles [N, 4]
    sin: Tensor  # [N, 4]

    @classmethod
    def of(
        cls, uniforms: Tensor, normals: Tensor, probability: Tensor, shares: Sequence[float], height: int, width: int
    ) -> "Drawn":
        """From random numbers.

        Args:
            uniforms: in [0, 1) [N, 29].
            normals: [N, 12].
            probability: of an operation, a scalar.
            shares: factors of it, for blits, geometry and colour.
            height, width: of the pictures.
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
        made = drawn * factor + summand
        made[:, FLOORED].floor_()
        made[:, ROUNDED].round_()
        made = (made * then).masked_fill_(acts >= torch.cat([of_two, likely[TURNS_OF_GEOMETRY:]]), 0)
        made[:, SIGNS].add_(1)
        return cls(made, torch.exp2(made[:, LOGARITHMS]), made[:, TURNS].cos(), made[:, TURNS].sin())

    def inverse(self) -> Tensor:
        """Where pixels are taken from [N, 3, 3], in pixels from the picture's centre: x to the right, y down.

        Mirrored, turned by quarters, shifted by whole pixels; then scaled, turned, its proportions changed, turned
        and shifted.
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
        places = _on(self.values.device, [place for each in maps for place in each], torch.int64)
        return compose(torch.cat(parts, 1).index_select(1, places).view(-1, len(maps), 3, 3))


def compose(maps: Tensor) -> Tensor:
    """Product of as many matrices as a power of 2, the last of which acts first: [N, K, 3, 3] -> [N, 3, 3].

    By sums of products: a GPU's matrix units might round to 10 bits, which is a pixel in 1000.
    """
    while maps.shape[1] > 1:
        maps = (maps[:, ::2, :, :, None] * maps[:, 1::2, None, :, :]).sum(3)
    return maps[:, 0]


def _on(device: torch.device, numbers: Sequence[object], dtype: torch.dtype) -> Tensor:
    """Constants on a device, which is not waited for."""
    return torch.tensor(numbers, dtype=dtype, device="cpu").to(device, non_blocking=True)


def where_active(draw: Tensor, probability: Tensor, value: Tensor, otherwise: float) -> Tensor:
    """An operation's value [N] where it acts; draw: uniform in [0, 1) [N]."""
    return torch.where(draw < probability, value, otherwise)


# Colour: brightness, contrast, inverted luma, rotated hue and saturation.


def change_colours(pictures: Tensor, drawn: Drawn) -> Tensor:
    """Change colours.

    Every operation acts on a pixel's mean over the channels, its luma, or on what is left without it, or on both alike;
    so all of them together are one factor for the luma and a scaled rotation about the grey axis for the rest.

    Args:
        pictures: [N, 1 or 3, H, W] in [-1, 1]; a grey one has nothing but luma.
        drawn: what to do.
    """
    *_, gain, saturation = drawn.powers.unbind(1)  # [N] each
    offset, luma = drawn.values[:, BRIGHT], gain * drawn.values[:, INVERT]
    if pictures.shape[1] == 1:
        return (pictures + _broadcast(offset, pictures)) * _broadcast(luma, pictures)
    matrix = _about_grey(luma, gain * saturation, drawn.cos[:, HUE], drawn.sin[:, HUE]).to(pictures.dtype)
    added = (luma * offset).to(pictures.dtype)[:, None, None]
    return torch.baddbmm(added, matrix, pictures.flatten(2)).view_as(pictures)


def _about_grey(luma: Tensor, chroma: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Multiply what lies along the grey axis and what lies across it, and turn the latter about it [N, 3, 3].

    A matrix that commutes with turns about (1, 1, 1) has three different entries, each a third of the rows' cycle.
    """
    along, cos, sin = luma / 3, chroma * cos / 3, chroma * sin / math.sqrt(3)
    rest = along - cos
    same, before, after = torch.add(along, cos, alpha=2), rest - sin, rest + sin  # [N] each
    return torch.stack([same, before, after, after, same, before, before, after, same], 1).view(-1, 3, 3)


def _broadcast(values: Tensor, pictures: Tensor) -> Tensor:
    """[N] -> [N, 1, 1, 1]."""
    return values.to(pictures.dtype)[:, None, None, None]


# Image-space filtering: each of four frequency bands stronger or weaker.
# Appendix B has the bands, how far each goes, and what balances them.

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
        bank = [_convolved(_upsampled(band), low) for band in bank]
        before = (len(bank[0]) - len(high)) // 2
        for place, value in enumerate(high):
            bank[octave][before + place] += value
    return tuple(tuple(band) for band in bank)


def _upsampled(taps: list[float]) -> list[float]:
    """A zero between each two."""
    return [value for tap in taps for value in (tap, 0.0)][:-1]


def _convolved(taps: list[float], other: list[float]) -> list[float]:
    product = [0.0] * (len(taps) + len(other) - 1)
    for i, tap in enumerate(taps):
        for j, value in enumerate(other):
            product[i + j] += tap * value
    return product


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


# Corruptions: noise on every pixel, and a square that is cut out.

NOISE = 0.1
"""Standard deviation of the noise's own standard deviation, of which the absolute value counts; pictures lie in
[-1, 1]."""
CUTOUT = 0.5
"""Side of the square, as a share of the picture's."""


def add_noise(pictures: Tensor, uniforms: Tensor, normals: Tensor, noise: Tensor, probability: Tensor) -> Tensor:
    """Add white noise.

    Args:
        pictures: [N, C, H, W].
        uniforms: in [0, 1) [N, 1].
        normals: how strong [N, 1].
        noise: normal numbers [N, C, H, W].
    """
    strength = where_active(uniforms[:, 0], probability, NOISE * normals[:, 0].abs(), 0)  # [N]
    return pictures + noise.to(pictures.dtype) * strength.to(pictures.dtype)[:, None, None, None]


def cut_out(pictures: Tensor, uniforms: Tensor, probability: Tensor) -> Tensor:
    """Set a square to 0, whose centre may lie anywhere.

    Args:
        pictures: [N, C, H, W].
        uniforms: in [0, 1) [N, 3]: column and row of the centre, and whether it acts.
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
    """The pipeline.

    Each operation has columns of its own among the random numbers, whichever operations are chosen.
    """

    operations: Sequence[str]  # which of "blit", "geometry", "colour", "filter", "noise" and "cutout"
    colour_share: float = 1.0  # of the probability with which each of the others acts
    # uniforms, normals: how many such numbers it takes for each picture
    uniforms: ClassVar[int] = sum(UNIFORMS)
    normals: ClassVar[int] = sum(NORMALS)

    @property
    def noisy(self) -> bool:
        """Whether it takes a normal number for every value of a picture."""
        return "noise" in self.operations

    def __call__(
        self, pictures: Tensor, uniforms: Tensor, normals: Tensor, probability: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Change pictures.

        Args:
            pictures: [N, C, H, W] in [-1, 1], fp32; 1 or 3 channels, sides of at least 8 pixels.
            uniforms: in [0, 1), [N, 29].
            normals: [N, 12].
            probability: of each operation, a scalar; from 1 on all of them act.
            noise: normal numbers [N, C, H, W], where it is `noisy`.
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
