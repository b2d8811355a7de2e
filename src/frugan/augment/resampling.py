"""Resampling of reflected pictures by any affine map, between twofold upsampling and downsampling.

Source: Karras et al. 2020 (arXiv 2006.06676), appendix B. The filter is orthogonal and serves both ways, so a picture
that is not moved comes out unchanged. (It is not symmetric: mirrored or turned ones are exact to a few hundredths.)

A picture that continues by reflection beyond its border repeats with the period 2·(side - 1), before the filter and so
after it. Only one upsampled period is therefore ever sampled, with coordinates modulo the period: the memory is known
beforehand, and pictures of a batch do not depend on each other. The reference program extends all pictures of a batch
by the largest margin that any of them needs, at most by side - 1, with zeros beyond; only there it differs.

Moving a picture is linear in the picture, and nothing differentiates in the place that it is moved to. So the whole is
one operation and its adjoint, each the derivative of the other: R1 through an augmentation keeps nothing but the
matrices, and few pictures are upsampled at a time, however many there are.

The filters are band matrices, applied in blocks along the diagonal: on a processor such a product is several times as
fast as a convolution of one channel, and it is exact in fp32 whatever cuDNN may round, without a dense matrix's zeros.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

# Bilinear sampling and its adjoint, without autograd, which `_Resample` supplies.
#
# Torch 2.13 differentiates `grid_sample` twice on a CPU; whether older versions and CUDA do was not tried. Sampling is
# linear in the frame, so R1 through an augmentation needs only torch's forward and its first backward.


def sample(frame: Tensor, grid: Tensor) -> Tensor:
    """Interpolate values of a frame between its points, with zeros outside.

    Args:
        frame: [N, C, F, F'].
        grid: x and y of each sample, from -1 at the centre of the first value to 1 at that of the last [N, H, W, 2].

    Returns:
        [N, C, H, W].
    """
    return F.grid_sample(frame, grid, align_corners=True)


def spread(values: Tensor, grid: Tensor, sides: tuple[int, int]) -> Tensor:
    """Adjoint of `sample`: values at the grid [N, C, H, W] -> frame [N, C, F, F'] of these sides."""
    frame = values.new_zeros(()).expand(*values.shape[:2], *sides)  # only its shape counts
    bilinear = zeros_outside = 0
    gradients: tuple[Tensor, Tensor] = torch.ops.aten.grid_sampler_2d_backward(
        values, frame, grid, bilinear, zeros_outside, True, (True, False)
    )
    return gradients[0]


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
"""Scaling filter of the wavelet sym6 (Daubechies 1992, table 8.3), whose squares sum to 1."""
TAPS = len(SYM6)
MARGIN = TAPS - 2
"""Values by which the canvas is longer than an upsampled picture."""
BEFORE = TAPS // 2 - 1
"""Values of the canvas before the picture's first one."""


BLOCK = 32
"""Pixels in one block of a filter, as its outputs or inputs."""
MOST_AT_ONCE = 2**24
"""Largest number of upsampled values at a time, 64 MiB in fp32; one channel of a picture may have more."""


def resample(pictures: Tensor, inverse: Tensor) -> Tensor:
    """Move pictures.

    Args:
        pictures: [N, C, H, W] in fp32 or more, sides of at least 2 pixels.
        inverse: see `Drawn.inverse` of ADA [N, 3, 3]; it takes no gradient.

    Returns:
        [N, C, H, W], differentiable in the pictures any number of times.
    """
    return cast(Tensor, _Resample.apply(pictures, inverse.to(pictures.dtype), False))


class _Resample(torch.autograd.Function):
    """Moves pictures [N, C, H, W]; or with `back`, the adjoint, carries gradients of moved pictures back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, inverse: Tensor, back: bool) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.back = back
        return _piecewise(_moved_back if back else _moved, x, inverse)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return cast(Tensor, _Resample.apply(gradients[0], inverse, not ctx.back)), None, None


Piece = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function of some channels of few pictures [n, c, H, W], their grid, and the two filters of `_bands`."""


def _piecewise(move: Piece, pictures: Tensor, inverse: Tensor) -> Tensor:
    """Move few pictures [N, C, H, W] at a time, or few channels of a single one."""
    _, channels, height, width = pictures.shape
    values = (4 * height - 2) * (4 * width - 2)
    count, few = max(1, MOST_AT_ONCE // (channels * values)), max(1, MOST_AT_ONCE // values)
    bands = _bands(pictures)
    moved = []
    for some, maps in zip(pictures.split(count), inverse.split(count), strict=True):
        grid = _grid(maps, height, width)
        moved.append(torch.cat([move(x, grid, *bands) for x in some.split(few, 1)], 1))
    return torch.cat(moved)


def _moved(pictures: Tensor, grid: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Reflect, upsample, sample and downsample."""
    height, width = pictures.shape[2:]
    reflections = {side: _reflection(side, pictures.device) for side in (height, width)}
    period = pictures
    for dim, side in ((2, height), (3, width)):  # in this order the larger tensor is read in order of memory
        reflected = period.index_select(dim, reflections[side])
        period = _spread(reflected, dim, up, 4 * side - 2, before=0)
    del reflected
    canvas = sample(period, grid)  # [n, c, 2·H + 10, 2·W + 10]
    del period
    for dim, side in ((3, width), (2, height)):
        canvas = _gather(canvas, dim, down, side, before=0)
    return canvas


def _moved_back(gradients: Tensor, grid: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Adjoint of `_moved`, from the last step to the first."""
    height, width = gradients.shape[2:]
    reflections = {side: _reflection(side, gradients.device) for side in (height, width)}
    canvas = gradients
    for dim, side in ((2, height), (3, width)):
        canvas = _spread(canvas, dim, up, 2 * side + MARGIN, before=TAPS // 2 - 1)
    period = spread(canvas, grid, (4 * height - 2, 4 * width - 2))
    del canvas
    for dim, side in ((3, width), (2, height)):
        reflection = reflections[side]
        reflected = _gather(period, dim, down, len(reflection), before=TAPS - 2)
        shape = list(reflected.shape)
        shape[dim] = side
        period = torch.zeros(shape, dtype=reflected.dtype, device=reflected.device)
        period.index_add_(dim, reflection, reflected)
    return period


def _reflection(side: int, device: torch.device) -> Tensor:
    """Pixel at each place that one period of upsampled values depends on [2·side + 4]."""
    period = 2 * (side - 1)
    back = torch.arange(-(TAPS // 4), period + TAPS // 4, device=device).remainder(period)
    return torch.minimum(back, period - back)


def _bands(like: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of the upsampling filter [2·B, B + 5] and of the downsampling filter [B, 2·B + 10].

    Upsampled value v takes pixel p by tap v - 2·p, and so does pixel p value v. Counted from the last pixel, each row
    is the row before it, moved: so both are views of one line that holds the taps between zeros.
    """
    zeros = (0.0,) * (2 * BLOCK - 2)
    line = torch.tensor(zeros + SYM6 + zeros, dtype=like.dtype, device="cpu")
    line = line.to(like.device, non_blocking=True)  # without waiting for the device
    up = line.as_strided((2 * BLOCK, BLOCK + TAPS // 2 - 1), (1, 2)).flip(1)
    return up, line.as_strided((BLOCK, 2 * BLOCK + TAPS - 2), (2, 1)).flip(0)


def _spread(x: Tensor, dim: int, band: Tensor, length: int, *, before: int) -> Tensor:
    """Upsample x along a dimension: value v is the sum of x[p] by tap v - 2·p + 10 - 2·before."""
    return _blockwise(x, dim, band, BLOCK, length, before)


def _gather(x: Tensor, dim: int, band: Tensor, length: int, *, before: int) -> Tensor:
    """Downsample x along a dimension: value p is the sum of x[v] by tap v - 2·p + before."""
    return _blockwise(x, dim, band, 2 * BLOCK, length, before)


def _blockwise(x: Tensor, dim: int, band: Tensor, step: int, length: int, before: int) -> Tensor:
    """Multiply windows of x by a block of a filter.

    Args:
        x: [n, C, H, W].
        dim: dimension of the windows, 2 or 3.
        band: the block [outputs, inputs].
        step: inputs from one window to the next.
        length: number of outputs in total.
        before: zeros before the first input.
    """
    outputs, inputs = band.shape
    blocks = -(-length // outputs)
    after = (blocks - 1) * step + inputs - before - x.shape[dim]  # below 0: the last inputs are not needed
    along = F.pad(x.transpose(dim, 3), (before, after))
    lines = along.shape[:3]
    # one product of many rows: without `reshape` there would be a small product for each row of pictures
    along = along.unfold(3, inputs, step).reshape(-1, inputs)  # [n · C · H or W · blocks, inputs]
    return (along @ band.T).view(*lines, blocks * outputs)[..., :length].transpose(dim, 3)


def _grid(inverse: Tensor, height: int, width: int) -> Tensor:
    """Place in the upsampled period of each value of the canvas, in `grid_sample`'s units [N, 2·H + 10, 2·W + 10, 2].

    Pixel i of a picture is value 2·i of the upsampled one, whose values are half a pixel apart: its centre is value
    side - 1.
    """
    columns, rows = (
        torch.arange(2 * side + MARGIN, device=inverse.device, dtype=inverse.dtype) / 2 - (BEFORE + side - 1) / 2
        for side in (width, height)
    )
    of_x, of_y, moved = inverse[:, :2, :, None, None].unbind(2)  # [N, 2, 1, 1] each, for x and for y
    from_centre = of_x * columns + (of_y * rows[:, None] + moved)  # [N, 2, 2·H + 10, 2·W + 10]
    # In steps of upsampled values; a period is 4·(side - 1), and the frame holds one value before it and one after.
    periods = [4 * (side - 1) for side in (width, height)]
    numbers = [[period / 4 for period in periods], periods, [2 / (period + 1) for period in periods]]
    on_host = torch.tensor(numbers, dtype=inverse.dtype, device="cpu")[:, :, None, None]
    last, period, unit = on_host.to(inverse.device, non_blocking=True)  # [2, 1, 1] each
    place = torch.add(last, from_centre, alpha=2).remainder(period)
    return torch.addcmul(unit - 1, place, unit).permute(0, 2, 3, 1).contiguous()
