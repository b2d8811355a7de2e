"""Resampling of reflected pictures by any affine map, between twofold upsampling and downsampling.

Source: Karras et al. 2020 (arXiv 2006.06676), appendix B. The same orthogonal filter up and down gives back a picture
that was not moved. (One that was mirrored or turned it gives back to a few hundredths only: it is not symmetric.)

A picture that goes on by reflection beyond its border repeats with the period 2·(side - 1), before the filter and so
after it. One period, upsampled, is therefore all that is ever sampled, with coordinates modulo the period: the memory
is known beforehand, and no picture of a batch matters to another. The reference program extends all pictures of a
batch by the largest margin that one of them needs, at most by side - 1, with zeros beyond: there alone it differs.

Both filters are band matrices, which hold the reflection too: a product is several times as fast as a convolution of
one channel up to 128 pixels, as fast at 256, exact in fp32 whatever cuDNN may round, and has every derivative.
"""

import torch
from torch import Tensor

from frugan.augment.sampling import sample

SYM6 = (
    0.015404109327027373,
    0.0034907120842174702,
    -0.11799011114819057,
    -0.048311742585633,
    0.4910559419267466,
    0.787641141030194,
    0.3379294217276218,
    -0.07263752278646252,
    -0.021060292512300564,
    0.04472490177066578,
    0.0017677118642428036,
    -0.007800708325034148,
)
"""Scaling filter of the wavelet sym6 (Daubechies 1992, table 8.3): its squares sum to 1."""
TAPS = len(SYM6)
MARGIN = TAPS - 2
"""Values by which the canvas is longer than a picture upsampled."""
BEFORE = TAPS // 2 - 1
"""Canvas values before the picture's first one."""


def resample(pictures: Tensor, inverse: Tensor) -> Tensor:
    """Move pictures.

    Args:
        pictures: [N, C, H, W] in fp32 or more, sides of at least 2 pixels.
        inverse: where pixels are taken from, from the centre [N, 3, 3]; takes no gradient.

    Returns:
        [N, C, H, W], differentiable in the pictures any number of times.
    """
    height, width = pictures.shape[2:]
    period = _upsampling(height, pictures) @ pictures @ _upsampling(width, pictures).T  # [N, C, 4·H - 2, 4·W - 2]
    canvas = sample(period, _grid(inverse.to(pictures.dtype), height, width))  # [N, C, 2·H + 10, 2·W + 10]
    return _downsampling(height, canvas) @ canvas @ _downsampling(width, canvas).T


def _upsampling(side: int, like: Tensor) -> Tensor:
    """Pixels -> one period of the reflected picture upsampled, and a value more on either end. [4·side - 2, side]."""
    period = 2 * (side - 1)
    pixels = torch.arange(-(TAPS // 4), period + TAPS // 4, device=like.device)  # all that the period looks at
    values = torch.arange(-1, 2 * period + 1, device=like.device)
    extended = _taps(values[:, None] - 2 * pixels + BEFORE, like)
    back = pixels.remainder(period)
    reflected = torch.minimum(back, period - back)
    return extended @ (reflected[:, None] == torch.arange(side, device=like.device)).to(like.dtype)


def _downsampling(side: int, like: Tensor) -> Tensor:
    """Canvas -> pixels, by the flipped filter. [side, 2·side + 10]."""
    values, pixels = (torch.arange(count, device=like.device) for count in (2 * side + MARGIN, side))
    return _taps(values - 2 * pixels[:, None], like)


def _taps(index: Tensor, like: Tensor) -> Tensor:
    """The filter's taps by their index, 0 where there is none."""
    taps = torch.tensor(SYM6, dtype=like.dtype).to(like.device, non_blocking=True)  # without waiting for the device
    return torch.where((index >= 0) & (index < TAPS), taps[index.clamp(0, TAPS - 1)], 0.0)


def _grid(inverse: Tensor, height: int, width: int) -> Tensor:
    """Where the canvas is taken from in the upsampled period, in `grid_sample`'s units [N, 2·H + 10, 2·W + 10, 2].

    Pixel i of a picture is value 2·i of the upsampled one: its centre is value side - 1 there, at half a pixel each.
    """
    rows, columns = (
        (torch.arange(2 * side + MARGIN, device=inverse.device, dtype=inverse.dtype) - BEFORE - (side - 1)) / 2
        for side in (height, width)
    )
    rows, columns = rows[:, None], columns[None, :]
    places = []
    for row, side in ((inverse[:, 0], width), (inverse[:, 1], height)):
        of_x, of_y, moved = row[:, :, None, None].unbind(1)
        from_centre = of_x * columns + (of_y * rows + moved)  # [N, 2·H + 10, 2·W + 10]
        period = 4 * (side - 1)  # of upsampled values; the frame holds one before it and one after
        place = (2 * from_centre + (side - 1)).remainder(period) + 1
        places.append(place * (2 / (period + 1)) - 1)
    return torch.stack(places, 3)
