"""Resampling by a finite filter: zeros put in, a filter, samples left out; differentiable as often as one asks for.

Source: Karras et al. 2019 (arXiv 1912.04958), appendix B, and the filter of Karras et al. 2018 (arXiv 1812.04948).
Convolutions of torch would keep their input for the gradient of a filter that has none. Each operation here is the
adjoint of another one of its kind, so that nothing but the filter is kept, whatever the order of the derivative.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from frugan.nn.elementwise import is_traced, is_wanted
from frugan.nn.fused_activation import biased_leaky_relu, laid_out, laid_out_like
from frugan.nn.fused_fir import Geometry, Padding, filter_map

BINOMIAL = (1.0, 3.0, 3.0, 1.0)
"""The filter of every layer of StyleGAN2, in both directions."""


_operations = torch.ops.frugan


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
    kernels: frozenset[str] = frozenset(),
) -> Tensor:
    """Put in `up` - 1 zeros after each sample, pad, filter, and keep one of `down` samples, in both directions.

    Args:
        x: [N, C, H, W].
        fir: [T, T'] of any dtype; the same for every channel; takes no gradient.
        padding: zeros around.
        flip: correlate with the filter; False: convolve.
        gain: multiplies the result.
        kept: of this filter; None: its kernels are made anew.
        kernels: names of those of our own that may be used.

    Returns:
        [N, C, (H·up + y0 + y1 - T)//down + 1, (W·up + x0 + x1 - T')//down + 1].
    """
    geometry = Geometry(up, down, padding)
    both = _both_ways(fir, x.dtype, geometry, flip, gain, kept)
    return cast(Tensor, _UpFirDown.apply(x, *both, geometry, "fir" in kernels and not is_traced()))


def _both_ways(
    fir: Tensor, dtype: torch.dtype, geometry: Geometry, flip: bool, gain: float, kept: KeptKernels | None
) -> tuple[Tensor, Tensor]:
    """Kernels of an operation and of its adjoint."""
    # A transposed convolution turns its kernel around by itself, a convolution of torch does not.
    turned = flip == geometry.transposed
    kernels = kept or KeptKernels()
    kernel = kernels.of(fir, dtype, gain, turned=turned)
    # The adjoint of a transposed convolution is none, and the other way; else both take the kernel the same way around.
    alike = (geometry.up > 1) == (geometry.down > 1)
    return kernel, kernels.of(fir, dtype, gain, turned=not turned) if alike else kernel


def upsample2d(
    x: Tensor, fir: Tensor, kept: KeptKernels | None = None, kernels: frozenset[str] = frozenset()
) -> Tensor:
    """Twice the side: [N, C, H, W] -> [N, C, 2·H, 2·W]."""
    taps = fir.shape[0]
    before, after = (taps + 1) // 2, (taps - 2) // 2
    padding = (before, after, before, after)
    return upfirdn2d(x, fir, up=2, padding=padding, gain=4, kept=kept, kernels=kernels)


def downsample2d(
    x: Tensor, fir: Tensor, kept: KeptKernels | None = None, kernels: frozenset[str] = frozenset()
) -> Tensor:
    """Half the side: [N, C, H, W] -> [N, C, H/2, W/2]."""
    taps = fir.shape[0]
    before, after = (taps - 1) // 2, (taps - 2) // 2
    return upfirdn2d(x, fir, down=2, padding=(before, after, before, after), kept=kept, kernels=kernels)


def filtered_leaky_relu(
    x: Tensor,
    bias: Tensor,
    fir: Tensor,
    *,
    padding: Padding,
    clamp: float | None = None,
    kept: KeptKernels | None = None,
    kernels: frozenset[str] = frozenset(),
) -> Tensor:
    """clamp(leaky(x + bias)), filtered: in one pass, by kernels of our own.

    Args:
        x: [N, C, H, W].
        bias: [C].
        clamp: largest absolute value; None: no limit.
        fir, padding, kept, kernels: see `upfirdn2d`.

    Returns:
        [N, C, H + y0 + y1 - T + 1, W + x0 + x1 - T' + 1].
    """
    if "fir" not in kernels or is_traced():
        made = biased_leaky_relu(x, bias, clamp=clamp, kernels=kernels)
        return upfirdn2d(made, fir, padding=padding, kept=kept, kernels=kernels)
    both = _both_ways(fir, x.dtype, Geometry(1, 1, padding), False, 1.0, kept)
    # a view of the bias: for `is_wanted`
    return cast(Tensor, _Activated.apply(laid_out(x), bias.view_as(bias), *both, padding, clamp))


class _UpFirDown(torch.autograd.Function):
    """[N, C, H, W], kernels [T, T'] as torch's operation and its adjoint's take them -> [N, C, H', W']."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, other: Tensor, geometry: Geometry, own: bool) -> Tensor:
        ctx.save_for_backward(kernel, other)
        made = filter_map(x, kernel, geometry, own=own)
        ctx.back, ctx.own = geometry.adjoint(x.shape, made.shape, kernel.shape), own
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        kernel, other = ctx.saved_tensors
        to_x = None if gradients[0] is None else _UpFirDown.apply(gradients[0], other, kernel, ctx.back, ctx.own)
        return to_x, None, None, None, None


class _Activated(torch.autograd.Function):
    """As `filtered_leaky_relu`; keeps x, and nothing of what it makes."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor, kernel: Tensor, other: Tensor, padding: Padding, clamp: float | None
    ) -> Tensor:
        added = bias.to(x.dtype)
        made = cast(Tensor, _operations.fir_leaky_relu(x, added, kernel, padding, clamp))
        ctx.save_for_backward(x, added, kernel, other)
        ctx.of = padding, Geometry(1, 1, padding).adjoint(x.shape, made.shape, kernel.shape).padding, clamp
        ctx.bias_dtype = bias.dtype
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradients[0] is None:  # of what only its slopes are asked for, in a gradient of a gradient
            return (None,) * 6
        sums = ctx.bias_dtype if is_wanted(ctx, 1) else None
        return *_Back.apply(gradients[0], *ctx.saved_tensors, ctx.of, sums), None, None, None, None


_Of = tuple[Padding, Padding, float | None]
"""Paddings of a filter and of its adjoint, and a clamp."""


class _Back(torch.autograd.Function):
    """Its gradients, which are linear in what they are given: of x, and of the bias where a dtype for it is given."""

    @staticmethod
    def forward(
        ctx: Any,
        gradient: Tensor,
        x: Tensor,
        bias: Tensor,
        kernel: Tensor,
        other: Tensor,
        of: _Of,
        sums: torch.dtype | None,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(x, bias, kernel, other)
        ctx.of, (_, back, clamp) = of, of
        ctx.set_materialize_grads(False)
        given = laid_out_like(gradient, x)
        to_x, rows = _operations.fir_leaky_relu_slopes(given, x, bias, other, back, clamp, sums is not None)
        return to_x, None if sums is None else _operations.added_up(rows, None, None, 0, sums)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *_ = ctx.saved_tensors
        of_x, of_bias = gradients
        if of_bias is not None:
            spread = of_bias.to(x.dtype).view(1, -1, 1, 1)
            of_x = spread.expand_as(x) if of_x is None else of_x + spread
        return None if of_x is None else _Sloped.apply(of_x, *ctx.saved_tensors, ctx.of), *(None,) * 6


class _Sloped(torch.autograd.Function):
    """The adjoint of these: a gradient times the slopes, filtered."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, bias: Tensor, kernel: Tensor, other: Tensor, of: _Of) -> Tensor:
        ctx.save_for_backward(x, bias, kernel, other)
        ctx.of, (padding, _, clamp) = of, of
        ctx.set_materialize_grads(False)
        return cast(Tensor, _operations.fir_sloped(laid_out_like(gradient, x), x, bias, kernel, padding, clamp))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradients[0] is None:
            return (None,) * 6
        return _Back.apply(gradients[0], *ctx.saved_tensors, ctx.of, None)[0], *(None,) * 5
