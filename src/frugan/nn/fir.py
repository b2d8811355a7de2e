"""Resampling by a finite filter, differentiable any number of times.

Source: Karras et al. 2019 (arXiv 1912.04958), appendix B, and the filter of Karras et al. 2018 (arXiv 1812.04948).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from frugan.contract import resampling
from frugan.contract.ops import PLAIN, Ops
from frugan.contract.resampling import Geometry, Padding
from frugan.torch_internals import write_count

BINOMIAL = (1.0, 3.0, 3.0, 1.0)
"""Taps of StyleGAN2's filter, in each direction."""


def fir_filter(taps: Sequence[float] = BINOMIAL) -> Tensor:
    """Outer product of the taps with themselves [T, T], in fp32, that sums to 1."""
    line = torch.tensor(taps, dtype=torch.float32)
    square = torch.outer(line, line)
    return square / square.sum()


class KeptKernels:
    """Cache of one filter's kernels as torch's convolutions take them, from one forward to the next.

    Kernels are computed anew when the filter is another tensor, or was written to.
    """

    def __init__(self) -> None:
        self._fir: Tensor | None = None
        self._writes = 0
        self._kernels: dict[tuple[torch.dtype, float, bool], Tensor] = {}

    def __deepcopy__(self, memo: object) -> "KeptKernels":
        return KeptKernels()  # for the copied filter

    def of(self, fir: Tensor, dtype: torch.dtype, gain: float, *, turned: bool) -> Tensor:
        """Kernel [T, T'], which is the filter times a gain, flipped along both axes if `turned`."""
        if fir is not self._fir or write_count(fir) != self._writes:
            self._fir, self._writes = fir, write_count(fir)
            self._kernels.clear()
        key = (dtype, gain, turned)
        if key not in self._kernels:
            kernel = torch.empty_like(fir, dtype=dtype)
            self._kernels[key] = torch.mul(fir.flip((0, 1)) if turned else fir, gain, out=kernel)
        return self._kernels[key]


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
    ops: Ops = PLAIN,
) -> Tensor:
    """Put in `up` - 1 zeros after each sample, pad, filter, and keep one of `down` samples, in both directions.

    Args:
        x: [N, C, H, W].
        fir: filter [T, T'] of any dtype, for every channel; it takes no gradient.
        up: factor of upsampling, in both directions.
        down: factor of downsampling, in both directions.
        padding: zeros around the upsampled map.
        flip: correlate with the filter; False: convolve.
        gain: multiplies the result.
        kept: cached kernels of this filter; None: they are computed.
        ops: operations that filter the map.

    Returns:
        [N, C, (H·up + y0 + y1 - T)//down + 1, (W·up + x0 + x1 - T')//down + 1].
    """
    geometry = Geometry(up, down, padding)
    kernel, other = _both_ways(fir, x.dtype, geometry, flip, gain, kept)
    return resampling.upfirdn2d(x, kernel, other, geometry, ops)


def _both_ways(
    fir: Tensor, dtype: torch.dtype, geometry: Geometry, flip: bool, gain: float, kept: KeptKernels | None
) -> tuple[Tensor, Tensor]:
    """Kernels of an operation and of its adjoint."""
    # Torch's transposed convolution flips its kernel by itself, its convolution does not.
    turned = flip == geometry.transposed
    kernels = kept or KeptKernels()
    kernel = kernels.of(fir, dtype, gain, turned=turned)
    # Where only one of an operation and its adjoint is a transposed convolution, both take the kernel alike.
    alike = (geometry.up > 1) == (geometry.down > 1)
    return kernel, kernels.of(fir, dtype, gain, turned=not turned) if alike else kernel


def upsample2d(x: Tensor, fir: Tensor, kept: KeptKernels | None = None, ops: Ops = PLAIN) -> Tensor:
    """Double the side: [N, C, H, W] -> [N, C, 2·H, 2·W]."""
    taps = fir.shape[0]
    before, after = (taps + 1) // 2, (taps - 2) // 2
    return upfirdn2d(x, fir, up=2, padding=(before, after, before, after), gain=4, kept=kept, ops=ops)


def downsample2d(x: Tensor, fir: Tensor, kept: KeptKernels | None = None, ops: Ops = PLAIN) -> Tensor:
    """Halve the side: [N, C, H, W] -> [N, C, H/2, W/2]."""
    taps = fir.shape[0]
    before, after = (taps - 1) // 2, (taps - 2) // 2
    return upfirdn2d(x, fir, down=2, padding=(before, after, before, after), kept=kept, ops=ops)


def filtered_leaky_relu(
    x: Tensor,
    bias: Tensor,
    fir: Tensor,
    *,
    padding: Padding,
    clamp: float | None = None,
    kept: KeptKernels | None = None,
    ops: Ops = PLAIN,
) -> Tensor:
    """clamp(leaky(x + bias)), filtered.

    Args:
        x: [N, C, H, W].
        bias: [C].
        fir: see `upfirdn2d`.
        padding: see `upfirdn2d`.
        clamp: largest absolute value; None: no limit.
        kept: see `upfirdn2d`.
        ops: operations that activate and filter.

    Returns:
        [N, C, H + y0 + y1 - T + 1, W + x0 + x1 - T' + 1].
    """
    kernel, other = _both_ways(fir, x.dtype, Geometry(1, 1, padding), False, 1.0, kept)
    return ops.filtered_leaky_relu(x, bias, kernel, other, padding, clamp)
