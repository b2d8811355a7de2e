"""ADA: many operations, each of which acts on a picture with the same probability, which training may steer.

Source: Karras et al. 2020 (arXiv 2006.06676), section 2 and appendix B: the operations and how far each goes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from frugan.augment.resampling import resample

# Affine maps of the plane as matrices [N, 3, 3], one for each picture, and the random choice whether one acts.
#
# They map what is wanted to where it is taken from, in pixels from the picture's centre: x to the right, y down.


def scaling(x: Tensor, y: Tensor) -> Tensor:
    """Multiply x and y [N]."""
    return torch.diag_embed(torch.stack([x, y, torch.ones_like(x)], 1))


def translation(x: Tensor, y: Tensor) -> Tensor:
    """Add to x and y [N]."""
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    return torch.stack([one, zero, x, zero, one, y, zero, zero, one], 1).view(-1, 3, 3)


def rotation(angle: Tensor) -> Tensor:
    """Turn x towards y by radians [N]."""
    cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    return torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], 1).view(-1, 3, 3)


def compose(*maps: Tensor) -> Tensor:
    """Product of matrices [N, 3, 3], the last of which acts first.

    By sums of products: a GPU's matrix units might round to 10 bits, which is a pixel in 1000.
    """
    product = maps[0]
    for matrix in maps[1:]:
        product = (product[:, :, :, None] * matrix[:, None, :, :]).sum(2)
    return product


def where_active(draw: Tensor, probability: Tensor, value: Tensor, otherwise: float) -> Tensor:
    """An operation's value [N] where it acts; draw: uniform in [0, 1) [N]."""
    return torch.where(draw < probability, value, otherwise)


# Pixel blits: mirror, quarter turns and shifts by whole pixels.

BLIT_UNIFORMS = 7
BLIT_SHIFT = 0.125
"""Largest shift, as a share of the side."""


def inverse_blits(uniforms: Tensor, probability: Tensor, height: int, width: int) -> Tensor:
    """Where pixels are taken from [N, 3, 3], of uniforms in [0, 1) [N, 7] and pictures of these sides."""
    mirror, mirrors, turn, turns, right, down, shifts = uniforms.unbind(1)  # [N] each
    mirrored = where_active(mirrors, probability, (mirror * 2).floor(), 0)
    quarters = where_active(turns, probability, (turn * 4).floor(), 0)
    to_right, to_bottom = (
        where_active(shifts, probability, ((share * 2 - 1) * BLIT_SHIFT * side).round(), 0)
        for share, side in ((right, width), (down, height))
    )
    return compose(
        scaling(1 - 2 * mirrored, torch.ones_like(mirrored)),
        rotation(quarters * (math.pi / 2)),
        translation(-to_right, -to_bottom),
    )


# Geometry: scale, rotation, change of proportions, and shifts by fractions of a pixel.

GEOMETRY_UNIFORMS = 7
GEOMETRY_NORMALS = 4
SCALE = 0.2
"""Standard deviation of a factor's binary logarithm, of the size and of the proportions."""
GEOMETRY_SHIFT = 0.125
"""Standard deviation of a shift, as a share of the side."""


def inverse_geometry(uniforms: Tensor, normals: Tensor, probability: Tensor, height: int, width: int) -> Tensor:
    """Where pixels are taken from [N, 3, 3], of uniforms in [0, 1) [N, 7] and normals [N, 4]."""
    before, after, scales, turns_before, stretches, turns_after, shifts = uniforms.unbind(1)  # [N] each
    scale, stretch, right, down = normals.unbind(1)
    # Two rotations, about the stretch: one or both act with the probability of one operation.
    of_one = 1 - (1 - probability).clamp_min(0).sqrt()
    inverse_scale = torch.exp2(where_active(scales, probability, -SCALE * scale, 0))
    inverse_stretch = torch.exp2(where_active(stretches, probability, -SCALE * stretch, 0))
    return compose(
        scaling(inverse_scale, inverse_scale),
        rotation(where_active(turns_before, of_one, (before * 2 - 1) * math.pi, 0)),
        scaling(inverse_stretch, inverse_stretch.reciprocal()),
        rotation(where_active(turns_after, of_one, (after * 2 - 1) * math.pi, 0)),
        translation(
            where_active(shifts, probability, -GEOMETRY_SHIFT * width * right, 0),
            where_active(shifts, probability, -GEOMETRY_SHIFT * height * down, 0),
        ),
    )


# Colour: brightness, contrast, inverted luma, rotated hue and saturation.

COLOUR_UNIFORMS = 7
COLOUR_NORMALS = 3
BRIGHTNESS = 0.2
"""Standard deviation of what is added to all values, which lie in [-1, 1]."""
CONTRAST = 0.5
SATURATION = 1.0
"""Standard deviations of a factor's binary logarithm."""


def change_colours(pictures: Tensor, uniforms: Tensor, normals: Tensor, probability: Tensor) -> Tensor:
    """Change colours.

    Every operation acts on a pixel's mean over the channels, its luma, or on what is left without it, or on both alike;
    so all of them together are one factor for the luma and a scaled rotation about the grey axis for the rest.

    Args:
        pictures: [N, 1 or 3, H, W] in [-1, 1]; a grey one has nothing but luma.
        uniforms: in [0, 1) [N, 7].
        normals: [N, 3].
    """
    invert, hue, brightens, contrasts, inverts, turns, saturates = uniforms.unbind(1)  # [N] each
    brightness, contrast, saturation = normals.unbind(1)
    offset = where_active(brightens, probability, BRIGHTNESS * brightness, 0)
    gain = torch.exp2(where_active(contrasts, probability, CONTRAST * contrast, 0))
    luma = gain * where_active(inverts, probability, 1 - 2 * (invert * 2).floor(), 1)
    if pictures.shape[1] == 1:
        return (pictures + _broadcast(offset, pictures)) * _broadcast(luma, pictures)
    chroma = gain * torch.exp2(where_active(saturates, probability, SATURATION * saturation, 0))
    angle = where_active(turns, probability, (hue * 2 - 1) * math.pi, 0)
    matrix = _about_grey(luma, chroma, angle).to(pictures.dtype)
    added = (luma * offset).to(pictures.dtype)[:, None, None]
    return torch.baddbmm(added, matrix, pictures.flatten(2)).view_as(pictures)


def _about_grey(luma: Tensor, chroma: Tensor, angle: Tensor) -> Tensor:
    """Multiply what lies along the grey axis and what lies across it, and turn the latter about it [N, 3, 3].

    A matrix that commutes with turns about (1, 1, 1) has three different entries, each a third of the rows' cycle.
    """
    along, cos, sin = luma / 3, chroma * angle.cos() / 3, chroma * angle.sin() / math.sqrt(3)
    same, before, after = along + 2 * cos, along - cos - sin, along - cos + sin  # [N] each
    return torch.stack([same, before, after, after, same, before, before, after, same], 1).view(-1, 3, 3)


def _broadcast(values: Tensor, pictures: Tensor) -> Tensor:
    """[N] -> [N, 1, 1, 1]."""
    return values.to(pictures.dtype)[:, None, None, None]


# Image-space filtering: each of four frequency bands stronger or weaker.
# Appendix B has the bands, how far each goes, and what balances them.

BANDS = 4
FILTER_UNIFORMS = BANDS
FILTER_NORMALS = BANDS
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

NOISE_UNIFORMS = 1
NOISE_NORMALS = 1
NOISE = 0.1
"""Standard deviation of the noise's own standard deviation, of which the absolute value counts; pictures lie in
[-1, 1]."""
CUTOUT_UNIFORMS = 3
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
    half = where_active(acts, probability, torch.full_like(acts, CUTOUT / 2), 0)
    down, right = (
        (_places(side, pictures) - centre[:, None]).abs() >= half[:, None]  # [N, side]
        for centre, side in ((row, pictures.shape[2]), (column, pictures.shape[3]))
    )
    return pictures * (down[:, None, :, None] | right[:, None, None, :])


def _places(side: int, like: Tensor) -> Tensor:
    """Centres of the pixels, as shares of the side [side]."""
    return (torch.arange(side, device=like.device) + 0.5) / side


UNIFORMS = (
    BLIT_UNIFORMS,
    GEOMETRY_UNIFORMS,
    COLOUR_UNIFORMS,
    FILTER_UNIFORMS,
    NOISE_UNIFORMS,
    CUTOUT_UNIFORMS,
)
NORMALS = (GEOMETRY_NORMALS, COLOUR_NORMALS, FILTER_NORMALS, NOISE_NORMALS)


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
        blit, geometric, coloured, filtered, noised, cut = uniforms.split(UNIFORMS, 1)
        of_geometry, of_colour, of_filter, of_noise = normals.split(NORMALS, 1)
        maps = []
        if "blit" in self.operations:
            maps.append(inverse_blits(blit, probability, *sides))
        if "geometry" in self.operations:
            maps.append(inverse_geometry(geometric, of_geometry, probability, *sides))
        if maps:
            pictures = resample(pictures, compose(*maps))
        if "colour" in self.operations:
            pictures = change_colours(pictures, coloured, of_colour, probability * self.colour_share)
        if "filter" in self.operations:
            pictures = filter_bands(pictures, filtered, of_filter, probability)
        if self.noisy:
            assert noise is not None
            pictures = add_noise(pictures, noised, of_noise, noise, probability)
        if "cutout" in self.operations:
            pictures = cut_out(pictures, cut, probability)
        return pictures
