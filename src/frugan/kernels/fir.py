"""A filter with few taps in one pass over a map, with the bias and the activation that stand before it.

Torch's way is a convolution of as many groups as channels, which cuDNN has no tuned kernel for. The programs are in
`programs.fir`: they give what torch's convolution gives up to rounding, as sums of taps are in fp32 in another order.
What is activated is rounded before it is filtered, as torch would store it.
"""

from typing import Any, cast

import torch
from torch import Tensor

from frugan.contract.elementwise import SLOPE, is_wanted, limit_of
from frugan.contract.kernel import Call
from frugan.contract.ops import Ops
from frugan.contract.resampling import Geometry, Padding
from frugan.contract.resampling import filter_map as plain_filter
from frugan.kernels.activation import activated, add_up, slopes
from frugan.kernels.kernel import CLAMP, TritonKernel, some_bias, some_map
from frugan.kernels.maps import WARPS, Grid, grid_of, is_channels_last, laid_out, laid_out_like
from frugan.kernels.operation import operation
from frugan.nn.fir import downsample2d, filtered_leaky_relu, fir_filter, upsample2d

# What is to be computed, in torch's operations.


def filtered(x: Tensor, kernel: Tensor, up: int, down: int, padding: Padding) -> Tensor:
    """See `filter_map`; the numbers are a geometry's."""
    return plain_filter(x, kernel, Geometry(up, down, padding))


def activated_filtered(x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None) -> Tensor:
    """clamp(leaky(x + bias)), filtered: [N, C, H, W], [C], of one dtype."""
    return filtered(activated(x, bias, clamp), kernel, 1, 1, padding)


def sloped_filtered(
    gradient: Tensor, x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None
) -> Tensor:
    """A gradient of x times the slopes of clamp(leaky(x + bias)), filtered: what a penalty on it passes on.

    Args:
        gradient: in the layout of x.
    """
    return filtered(slopes(gradient, activated(x, bias, clamp), clamp, False)[0], kernel, 1, 1, padding)


def filtered_slopes(
    gradient: Tensor, x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None, sums: bool
) -> tuple[Tensor, Tensor]:
    """Gradient of x, and its sums in fp32 [rows, C]; where none are asked for [0, C].

    Args:
        gradient: of what was made, in the layout of x.
        kernel, padding: of the adjoint.
    """
    to_x, _ = slopes(filtered(gradient, kernel, 1, 1, padding), activated(x, bias, clamp), clamp, False)
    rows = _rows_of(x, sums).zero_()
    if len(rows):
        rows[0] = to_x.to(rows.dtype).sum((0, 2, 3))
    return to_x, rows


def _rows_of(x: Tensor, sums: bool) -> Tensor:
    """Room for sums over pixels."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty(grid_of(x, apart=True, summed=True).rows if sums else 0, x.shape[1], dtype=wide)


def _filtered_like(x: Tensor, kernel: Tensor, up: int, down: int, padding: Padding) -> Tensor:
    """Room for a filtered map, in the layout of x."""
    x0, x1, y0, y1 = padding
    height = (x.shape[2] * up + y0 + y1 - kernel.shape[0]) // down + 1
    width = (x.shape[3] * up + x0 + x1 - kernel.shape[1]) // down + 1
    layout = torch.channels_last if is_channels_last(x) else torch.contiguous_format
    return torch.empty(*x.shape[:2], height, width, dtype=x.dtype, device=x.device, memory_format=layout)


def _activated_filtered_like(x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None) -> Tensor:
    return _filtered_like(x, kernel, 1, 1, padding)


def _sloped_filtered_like(
    gradient: Tensor, x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None
) -> Tensor:
    return _filtered_like(x, kernel, 1, 1, padding)


def _filtered_slopes_like(
    gradient: Tensor, x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None, sums: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), _rows_of(x, sums)


# The same by kernels.

_OF_FILTER = "Tensor kernel, int[4] padding, float? clamp"


@operation(
    "fir(Tensor x, Tensor kernel, int up, int down, int[4] padding) -> Tensor", plain=filtered, like=_filtered_like
)
def fir(x: Tensor, kernel: Tensor, up: int, down: int, padding: Padding) -> Tensor:
    result = _filtered_like(x, kernel, up, down, padding)
    _start((x, x, x), kernel, result, Geometry(up, down, padding), None, "nothing")
    return result


@operation(
    f"fir_leaky_relu(Tensor x, Tensor bias, {_OF_FILTER}) -> Tensor",
    plain=activated_filtered,
    like=_activated_filtered_like,
)
def fir_leaky_relu(x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None) -> Tensor:
    result = _filtered_like(x, kernel, 1, 1, padding)
    _start((x, x, bias.contiguous()), kernel, result, Geometry(1, 1, padding), clamp, "activation")
    return result


@operation(
    f"fir_sloped(Tensor gradient, Tensor x, Tensor bias, {_OF_FILTER}) -> Tensor",
    plain=sloped_filtered,
    like=_sloped_filtered_like,
)
def fir_sloped(
    gradient: Tensor, x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None
) -> Tensor:
    result = _filtered_like(x, kernel, 1, 1, padding)
    _start((gradient, x, bias.contiguous()), kernel, result, Geometry(1, 1, padding), clamp, "slope")
    return result


def _start(
    maps: tuple[Tensor, Tensor, Tensor], kernel: Tensor, result: Tensor, of: Geometry, clamp: float | None, before: str
) -> None:
    """Filter the first map; the others tell slopes: a map, and a bias."""
    from frugan.kernels.programs import fir as programs

    if not result.numel():
        return
    # a result of a single pixel is in both layouts, and its input is not
    grid = grid_of(result, apart=True, summed=False)._replace(last=is_channels_last(maps[0]))
    numbers = (*maps[0].shape[2:], grid.pixels, result.shape[3], grid.channels, of.padding[0], of.padding[2])
    facts = {"UP": of.up, "DOWN": of.down, "BEFORE": before, **constants(kernel, grid, of, clamp)}
    tensors = (*maps, kernel.contiguous(), result)
    programs.filtered[grid.rows, grid.blocks](*tensors, *numbers, SLOPE, limit_of(clamp, result.dtype) or 0.0, **facts)


@operation(
    f"fir_leaky_relu_slopes(Tensor gradient, Tensor x, Tensor bias, {_OF_FILTER}, bool sums) -> (Tensor, Tensor)",
    plain=filtered_slopes,
    like=_filtered_slopes_like,
)
def fir_leaky_relu_slopes(
    gradient: Tensor, x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None, sums: bool
) -> tuple[Tensor, Tensor]:
    from frugan.kernels.programs import fir as programs

    to_x, rows = _filtered_slopes_like(gradient, x, bias, kernel, padding, clamp, sums)
    if x.numel():
        grid = grid_of(x, apart=True, summed=sums)
        numbers = (*gradient.shape[2:], grid.pixels, x.shape[3], grid.channels, grid.loops, padding[0], padding[2])
        facts = {"SUMS": sums, **constants(kernel, grid, Geometry(1, 1, padding), clamp)}
        arguments = (gradient, x, bias.contiguous(), kernel.contiguous(), to_x, rows, *numbers)
        limits = (SLOPE, limit_of(clamp, x.dtype) or 0.0)
        programs.filtered_slopes[grid.rows, grid.blocks](*arguments, *limits, **facts)
    return to_x, rows


def constants(kernel: Tensor, grid: Grid, of: Geometry, clamp: float | None) -> dict[str, Any]:
    """Constants that a program is compiled for."""
    tall, wide = kernel.shape
    shape = {"LAST": grid.last, "BLOCK_P": grid.block_p, "BLOCK_C": grid.block_c, "num_warps": WARPS}
    return {"TALL": tall, "WIDE": wide, "TURNED": of.transposed, "CLAMPED": clamp is not None, **shape}


# An activation and the filter behind it, differentiable as often as one asks.


class _Activated(torch.autograd.Function):
    """Keeps x, and nothing of what it makes."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor, kernel: Tensor, other: Tensor, padding: Padding, clamp: float | None
    ) -> Tensor:
        added = bias.to(x.dtype)
        result = fir_leaky_relu(x, added, kernel, padding, clamp)
        ctx.save_for_backward(x, added, kernel, other)
        ctx.of = padding, Geometry(1, 1, padding).adjoint(x.shape, result.shape, kernel.shape).padding, clamp
        ctx.bias_dtype = bias.dtype
        ctx.set_materialize_grads(False)
        return result

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
        gradient = laid_out_like(gradient, x)
        to_x, rows = fir_leaky_relu_slopes(gradient, x, bias, other, back, clamp, sums is not None)
        return to_x, None if sums is None else add_up(rows, None, None, 0, sums)[0]

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
        return fir_sloped(laid_out_like(gradient, x), x, bias, kernel, padding, clamp)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradients[0] is None:
            return (None,) * 6
        return _Back.apply(gradients[0], *ctx.saved_tensors, ctx.of, None)[0], *(None,) * 5


class Fir(TritonKernel):
    """Filters, and activations before them."""

    filters_activations = True

    def fir(self, x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
        return fir(laid_out(x), kernel, geometry.up, geometry.down, geometry.padding)

    def filtered_leaky_relu(
        self, x: Tensor, bias: Tensor, kernel: Tensor, other: Tensor, padding: Padding, clamp: float | None
    ) -> Tensor:
        # a view of the bias: for `is_wanted`
        return cast(Tensor, _Activated.apply(laid_out(x), bias.view_as(bias), kernel, other, padding, clamp))

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """A map that is activated and filtered, made smaller and as large as before."""
        return _filters, [some_map(shape, dtype, layout, device), some_bias(shape[1], dtype, device)]


def _filters(x: Tensor, bias: Tensor, *, ops: Ops) -> Tensor:
    taps = fir_filter().to(x.device)
    y = filtered_leaky_relu(x, bias, taps, padding=(2, 2, 2, 2), clamp=CLAMP, ops=ops)
    return upsample2d(downsample2d(y, taps, ops=ops), taps, ops=ops)
