"""Bias, leaky ReLU and clamp in one pass over a map.

Torch's own operations take a pass each: three forward, and three more backward with the bias's sum. The programs are in
`programs.activation` and give what torch's operations give:

- forward the same bits: values are rounded where torch would store them;
- sums over a map in fp32, in another order than torch's.

Sums come as one row for each program, which another kernel adds up: nothing is added to what another program writes.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import elementwise
from frugan.contract.elementwise import SLOPE, limit_of
from frugan.contract.kernel import Call
from frugan.contract.ops import Ops
from frugan.kernels.kernel import CLAMP, TritonKernel, some_bias, some_map
from frugan.kernels.maps import OF_ROWS, constants_of, grid_of, laid_out, laid_out_like, room_for_sums
from frugan.kernels.operation import like_first, operation

# What is to be computed, in torch's operations; and the same by kernels.


def activated(x: Tensor, bias: Tensor, clamp: float | None, slope: float = SLOPE) -> Tensor:
    """clamp(leaky(x + bias)).

    Args:
        x: [N, C] or [N, C, H, W], in one of the two layouts, as all maps here.
        bias: [C], of its dtype.
        clamp: largest absolute value; None: no limit.
        slope: below 0; 1: colours, which have no activation.
    """
    result = F.leaky_relu_(torch.add(x, bias.view(1, -1, *(1,) * (x.ndim - 2))), slope)
    limit = limit_of(clamp, x.dtype)
    return result if limit is None else result.clamp_(-limit, limit)


def slopes(
    gradient: Tensor, result: Tensor, clamp: float | None, sums: bool, slope: float = SLOPE
) -> tuple[Tensor, Tensor]:
    """Gradient of x, and its sums in fp32 [rows, C]; where none are asked for [0, C].

    Args:
        gradient: of the result, in its layout.
        result: shows by its sign and size which slope each element took.
    """
    limit = limit_of(clamp, result.dtype)
    to_x = gradient if limit is None else torch.ops.aten.hardtanh_backward(gradient, result, -limit, limit)
    to_x = torch.ops.aten.leaky_relu_backward(to_x, result, slope, True)
    rows = room_for_sums(result, grid_of(result, apart=False, summed=sums), sums).zero_()
    if len(rows):
        rows[0] = to_x.to(rows.dtype).sum([axis for axis in range(to_x.ndim) if axis != 1])
    return to_x, rows


@operation(
    f"leaky_relu(Tensor x, Tensor bias, float? clamp, float slope={SLOPE}) -> Tensor", plain=activated, like=like_first
)
def leaky_relu(x: Tensor, bias: Tensor, clamp: float | None, slope: float = SLOPE) -> Tensor:
    from frugan.kernels.programs import activation as programs

    y, grid = torch.empty_like(x), grid_of(x, apart=False, summed=False)
    if y.numel():
        numbers = (grid.pixels, grid.channels, slope, limit_of(clamp, x.dtype) or 0.0)
        programs.activate[grid.rows, grid.blocks](x, bias.contiguous(), y, *numbers, **constants_of(grid, clamp))
    return y


def _slopes_like(
    gradient: Tensor, result: Tensor, clamp: float | None, sums: bool, slope: float = SLOPE
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(result), room_for_sums(result, grid_of(result, apart=False, summed=sums), sums)


@operation(
    f"leaky_relu_slopes(Tensor gradient, Tensor result, float? clamp, bool sums, float slope={SLOPE})"
    " -> (Tensor, Tensor)",
    plain=slopes,
    like=_slopes_like,
)
def leaky_relu_slopes(
    gradient: Tensor, result: Tensor, clamp: float | None, sums: bool, slope: float = SLOPE
) -> tuple[Tensor, Tensor]:
    from frugan.kernels.programs import activation as programs

    grid = grid_of(result, apart=False, summed=sums)
    to_x = torch.empty_like(result)
    rows = room_for_sums(result, grid, sums)
    if result.numel():
        numbers = (grid.pixels, grid.channels, grid.loops, slope, limit_of(clamp, result.dtype) or 0.0)
        constants = {"SUMS": sums, **constants_of(grid, clamp)}
        programs.slopes[grid.rows, grid.blocks](gradient, result, to_x, rows, *numbers, **constants)
    return to_x, rows


def added_up(
    whole: Tensor | None, parts: Tensor | None, numbers: Tensor | None, pictures: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of sums, all together [rows, C] -> [C], others of each picture [rows, C] -> [pictures, C], and numbers.

    Numbers [any], which come with parts, become one that keeps their precision. What is not given is not made: it has
    no elements.
    """
    result = _added_like(whole, parts, numbers, pictures, dtype)
    if whole is not None:
        result[0].copy_(whole.sum(0))
    if parts is not None and pictures:
        result[1].copy_(parts.unflatten(0, (pictures, len(parts) // pictures)).sum(1))
    if numbers is not None:
        result[2].copy_(numbers.sum())
    return result


def _added_like(
    whole: Tensor | None, parts: Tensor | None, numbers: Tensor | None, pictures: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    rows = _first(whole, parts)
    total = rows.new_empty(0 if whole is None else rows.shape[1], dtype=dtype)
    by_picture = rows.new_empty(0 if parts is None else pictures, rows.shape[1], dtype=dtype)
    return total, by_picture, rows.new_empty((0,) if numbers is None else ())


@operation(
    "added_up(Tensor? whole, Tensor? parts, Tensor? numbers, int pictures, ScalarType dtype)"
    " -> (Tensor, Tensor, Tensor)",
    plain=added_up,
    like=_added_like,
)
def add_up(
    whole: Tensor | None, parts: Tensor | None, numbers: Tensor | None, pictures: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    from frugan.kernels.programs import activation as programs

    rows_given = _first(whole, parts)
    result, channels = _added_like(whole, parts, numbers, pictures, dtype), rows_given.shape[1]
    apart = len(result[1])
    behind = apart + (whole is not None)
    blocks = max(-(-channels // OF_ROWS["BLOCK_C"]), numbers is not None)
    if (count_of_programs := behind + (numbers is not None)) and blocks:
        rows, of_each = 0 if whole is None else len(whole), 0 if parts is None else len(parts) // max(1, apart)
        count = 0 if numbers is None else numbers.numel()
        sources = (rows_given if source is None else source for source in (whole, parts, numbers))
        grid = (count_of_programs, blocks)
        programs.add_up[grid](*sources, *result, rows, of_each, count, apart, behind, channels, **OF_ROWS)
    return result


def _first(*tensors: Tensor | None) -> Tensor:
    return next(tensor for tensor in tensors if tensor is not None)


# Differentiable as often as one asks: slopes have no derivative, and are their own adjoint.


class _LeakyReLU(torch.autograd.Function):
    """Keeps its result and nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, clamp: float | None, slope: float) -> Tensor:
        result = leaky_relu(x, bias.to(x.dtype), clamp, slope)
        ctx.save_for_backward(result)
        ctx.clamp, ctx.slope, ctx.bias_dtype = clamp, slope, bias.dtype
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        if gradients[0] is None:  # of what only its slopes are asked for, in a gradient of a gradient
            return None, None, None, None
        (result,) = ctx.saved_tensors
        sums = ctx.bias_dtype if elementwise.is_wanted(ctx, 1) else None
        return *Slopes.apply(gradients[0], result, ctx.clamp, sums, ctx.slope), None, None


class Slopes(torch.autograd.Function):
    """Multiplies by each element's slope, and adds up over all but the channels where a dtype for that is given."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, result: Tensor, clamp: float | None, sums: torch.dtype | None, slope: float
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(result)
        ctx.clamp, ctx.slope = clamp, slope
        ctx.set_materialize_grads(False)
        to_x, rows = leaky_relu_slopes(laid_out_like(gradient, result), result, clamp, sums is not None, slope)
        return to_x, None if sums is None else add_up(rows, None, None, 0, sums)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        (result,) = ctx.saved_tensors
        of_x, of_bias = gradients
        if of_bias is not None:
            spread = of_bias.to(result.dtype).view(1, -1, *(1,) * (result.ndim - 2))
            of_x = spread.expand_as(result) if of_x is None else of_x + spread
        to_gradient = None if of_x is None else Slopes.apply(of_x, result, ctx.clamp, None, ctx.slope)[0]
        return to_gradient, None, None, None, None


def _with_slope(x: Tensor, bias: Tensor, clamp: float | None, slope: float) -> Tensor:
    # a view of the bias: for `is_wanted`
    return cast(Tensor, _LeakyReLU.apply(laid_out(x), bias.view_as(bias), clamp, slope))


class LeakyReLU(TritonKernel):
    """Bias, activation and clamp; and the first and last alone, which are the same with a slope of 1."""

    def leaky_relu(self, x: Tensor, bias: Tensor, clamp: float | None = None) -> Tensor:
        return _with_slope(x, bias, clamp, SLOPE)

    def add_bias(self, x: Tensor, bias: Tensor, clamp: float | None) -> Tensor:
        return _with_slope(x, bias, clamp, 1.0)

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """A map and a bias."""
        return _activate, [some_map(shape, dtype, layout, device), some_bias(shape[1], dtype, device)]


def _activate(x: Tensor, bias: Tensor, *, ops: Ops) -> Tensor:
    return ops.leaky_relu(x, bias, CLAMP)
