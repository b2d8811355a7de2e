"""Resampling of reflected pictures by any affine map, between twofold upsampling and downsampling.

Source: Karras et al. 2020 (arXiv 2006.06676), appendix B. The same orthogonal filter up and down gives back a picture
that was not moved.

A picture that goes on by reflection beyond its border repeats with the period 2·(side - 1), before the filter and so
after it. One period, upsampled, is therefore all that is ever sampled, with coordinates modulo the period: the memory
is known beforehand, and no picture of a batch matters to another. The reference program extends all pictures of a
batch by the largest margin that one of them needs, at most by side - 1, with zeros beyond: there alone it differs.
"""

import torch
import torch.nn.functional as F
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
REACH = TAPS // 4
"""Pixels on either side that an upsampled value looks at."""
MARGIN = TAPS - 2
"""Values by which the canvas is longer than a picture upsampled."""
BEFORE = TAPS // 2 - 1
"""Canvas values before the picture's first one."""


def resample(pictures: Tensor, inverse: Tensor) -> Tensor:
    """Move pictures.

    Args:
        pictures: [N, C, H, W] in fp32 or more, sides of at least 4 pixels.
        inverse: where pixels are taken from, from the centre [N, 3, 3]; takes no gradient.

    Returns:
        [N, C, H, W], differentiable in the pictures any number of times.
    """
    grid = _grid(inverse.to(pictures.dtype), *pictures.shape[2:])
    canvas = sample(_upsampled_period(pictures), grid)  # [N, C, 2·H + 10, 2·W + 10]
    return _downsampled(canvas)


def _filter(like: Tensor) -> Tensor:
    """The filter, on the device without waiting for it; its squares sum to 1. [12]."""
    return torch.tensor(SYM6, dtype=like.dtype).to(like.device, non_blocking=True)


def _upsampled_period(pictures: Tensor) -> Tensor:
    """One period of the reflected pictures, upsampled; one value more before it and one after.

    Returns:
        [N, C, 4·H - 2, 4·W - 2].
    """
    count, channels = pictures.shape[:2]
    taps = _filter(pictures)
    x = pictures.flatten(0, 1)[:, None]  # [N·C, 1, H, W]
    cut = TAPS - 2  # what a transposed convolution gives beyond the values whose inputs are all known
    x = F.conv_transpose2d(_period(x, 2), taps.view(1, 1, TAPS, 1), stride=(2, 1), padding=(cut, 0))
    x = F.conv_transpose2d(_period(x, 3), taps.view(1, 1, 1, TAPS), stride=(1, 2), padding=(0, cut))
    return x.view(count, channels, *x.shape[2:])


def _period(x: Tensor, dimension: int) -> Tensor:
    """Go on by reflection from `REACH` pixels before the first to as many beyond the period: side 2·(side - 1) + 6."""
    side = x.shape[dimension]
    before, back = x.narrow(dimension, 1, REACH), x.narrow(dimension, 1, side - 2)
    return torch.cat([before.flip(dimension), x, back.flip(dimension), x.narrow(dimension, 0, REACH)], dimension)


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


def _downsampled(canvas: Tensor) -> Tensor:
    """[N, C, 2·H + 10, 2·W + 10] -> [N, C, H, W], by the flipped filter."""
    taps = _filter(canvas)
    x = canvas.flatten(0, 1)[:, None]
    x = F.conv2d(x, taps.view(1, 1, TAPS, 1), stride=(2, 1))
    x = F.conv2d(x, taps.view(1, 1, 1, TAPS), stride=(1, 2))
    return x.view(*canvas.shape[:2], *x.shape[2:])
