"""Resampling by a finite filter: zeros put in, a filter, samples left out; differentiable as often as one asks for.

Source: Karras et al. 2019 (arXiv 1912.04958), appendix B, and the filter of Karras et al. 2018 (arXiv 1812.04948).
Convolutions of torch would keep their input for the gradient of a filter that has none. Each operation here is the
adjoint of another one of its kind, so that nothing but the filter is kept, whatever the order of the derivative.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import cpu_ways

BINOMIAL = (1.0, 3.0, 3.0, 1.0)
"""The filter of every layer of StyleGAN2, in both directions."""

Padding = tuple[int, int, int, int]
"""Zeros before and after in x, before and after in y; negative: samples cut off."""


def fir_filter(taps: Sequence[float] = BINOMIAL) -> Tensor:
    """The filter of two directions [T, T], fp32, that sums to 1."""
    line = torch.tensor(taps, dtype=torch.float32)
    square = torch.outer(line, line)
    return square / square.sum()


class KeptKernels:
    """Kernels of one filter as torch's convolutions take them, kept from one forward to the next.

    They are made anew where the filter is another tensor, or was written to.
    """

    def __init__(self) -> None:
        self._fir: Tensor | None = None
        self._version = 0
        self._kernels: dict[tuple[torch.dtype, float, bool], Tensor] = {}

    def __deepcopy__(self, memo: object) -> "KeptKernels":
        return KeptKernels()  # of the copied filter

    def of(self, fir: Tensor, dtype: torch.dtype, gain: float, *, turned: bool) -> Tensor:
        """The filter [T, T'] times a gain; turned around both axes if asked for."""
        if fir is not self._fir or fir._version != self._version:
            self._fir, self._version = fir, fir._version
            self._kernels.clear()
        key = (dtype, gain, turned)
        if key not in self._kernels:
            kernel = torch.empty_like(fir, dtype=dtype)
            self._kernels[key] = torch.mul(fir.flip((0, 1)) if turned else fir, gain, out=kernel)
        return self._kernels[key]


@dataclass(frozen=True)
class _Geometry:
    """What surrounds the filter."""

    up: int  # samples for each one given, the others zero
    down: int  # of how many samples one is kept
    padding: Padding  # after the zeros are put in

    def adjoint(self, given: torch.Size, made: torch.Size, taps: torch.Size) -> "_Geometry":
        """Of an operation from [.., H, W] to [.., H', W'] with a filter [T, T']."""
        padding: list[int] = []
        for axis, before in ((-1, self.padding[0]), (-2, self.padding[2])):
            end = given[axis] * self.up - made[axis] * self.down + before - self.up + 1
            padding += [taps[axis] - before - 1, end]
        return _Geometry(self.down, self.up, cast(Padding, tuple(padding)))


def upfirdn2d(
    x: Tensor,
    fir: Tensor,
    *,
    up: int = 1,
    down: int = 1,
    padding: Padding = (0, 0, 0, 0),
    flip: bool = False,
    gain: float = 1.0,
    kept: KeptKernels | None = None,
) -> Tensor:
    """Put in `up` - 1 zeros after each sample, pad, filter, and keep one of `down` samples, in both directions.

    Args:
        x: [N, C, H, W].
        fir: [T, T'] of any dtype; the same for every channel; takes no gradient.
        padding: zeros around.
        flip: correlate with the filter; False: convolve.
        gain: multiplies the result.
        kept: of this filter; None: its kernels are made anew.

    Returns:
        [N, C, (H·up + y0 + y1 - T)//down + 1, (W·up + x0 + x1 - T')//down + 1].
    """
    # A transposed convolution turns its kernel around by itself, a convolution of torch does not.
    turned = flip == _transposed(geometry := _Geometry(up, down, padding))
    kernels = kept or KeptKernels()
    kernel = kernels.of(fir, x.dtype, gain, turned=turned)
    # The adjoint of a transposed convolution is none, and the other way; else both take the kernel the same way around.
    alike = (up > 1) == (down > 1)
    other = kernels.of(fir, x.dtype, gain, turned=not turned) if alike else kernel
    return cast(Tensor, _UpFirDown.apply(x, kernel, other, geometry))


def upsample2d(x: Tensor, fir: Tensor, kept: KeptKernels | None = None) -> Tensor:
    """Twice the side: [N, C, H, W] -> [N, C, 2·H, 2·W]."""
    taps = fir.shape[0]
    before, after = (taps + 1) // 2, (taps - 2) // 2
    return upfirdn2d(x, fir, up=2, padding=(before, after, before, after), gain=4, kept=kept)


def downsample2d(x: Tensor, fir: Tensor, kept: KeptKernels | None = None) -> Tensor:
    """Half the side: [N, C, H, W] -> [N, C, H/2, W/2]."""
    taps = fir.shape[0]
    before, after = (taps - 1) // 2, (taps - 2) // 2
    return upfirdn2d(x, fir, down=2, padding=(before, after, before, after), kept=kept)


class _UpFirDown(torch.autograd.Function):
    """[N, C, H, W], kernels [T, T'] as torch's operation and its adjoint's take them -> [N, C, H', W']."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, other: Tensor, geometry: _Geometry) -> Tensor:
        ctx.save_for_backward(kernel, other)
        made = _filtered(x, kernel, geometry)
        ctx.back = geometry.adjoint(x.shape, made.shape, kernel.shape)
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        kernel, other = ctx.saved_tensors
        to_x = None if gradients[0] is None else _UpFirDown.apply(gradients[0], other, kernel, ctx.back)
        return to_x, None, None, None


def _transposed(geometry: _Geometry) -> bool:
    """Whether it is done by a transposed convolution, which needs no zeros put in."""
    return geometry.up > 1 and geometry.down == 1


def _filtered(x: Tensor, kernel: Tensor, geometry: _Geometry) -> Tensor:
    """The operation itself, without a gradient."""
    channels, up = x.shape[1], geometry.up
    x0, x1, y0, y1 = geometry.padding
    height, width = kernel.shape
    transposed = _transposed(geometry)
    if transposed and cpu_ways.taken_in_half_for(x):
        # There a transposed convolution of one channel at a time takes 20 to 50 times as long as zeros put in.
        kernel, transposed = kernel.flip((0, 1)), False
    weight = kernel.expand(channels, 1, height, width)
    if transposed:
        # It makes all that the filter reaches; cut is what was not asked for.
        tall, wide = (side * up for side in x.shape[2:])
        left, top = width - 1 - x0, height - 1 - y0
        right = (wide - up + width) - left - (wide + x0 + x1 - width + 1)
        bottom = (tall - up + height) - top - (tall + y0 + y1 - height + 1)
        if left == right >= 0 and top == bottom >= 0:
            return F.conv_transpose2d(x, weight, stride=up, padding=(top, left), groups=channels)
        whole = F.conv_transpose2d(x, weight, stride=up, groups=channels)
        return F.pad(whole, (-left, -right, -top, -bottom))
    if up > 1:
        size = (x.shape[0], x.shape[2] * up, x.shape[3] * up, channels)
        spread = x.new_zeros(size).permute(0, 3, 1, 2)  # channels last, as pictures are kept
        spread[:, :, ::up, ::up] = x
        x = spread
    if x0 == x1 >= 0 and y0 == y1 >= 0:
        return F.conv2d(x, weight, stride=geometry.down, padding=(y0, x0), groups=channels)
    return F.conv2d(F.pad(x, (x0, x1, y0, y1)), weight, stride=geometry.down, groups=channels)
