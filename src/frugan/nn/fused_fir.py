"""A filter with few taps in one pass over a map, with the bias and the activation that stand before it.

Torch's way is a convolution of as many groups as channels, which cuDNN has no tuned kernel for. Here it is an operation
of our own, whose kernels are in `fir_kernels`: they give what torch's convolution gives up to rounding, as sums of taps
are in fp32 in another order. What is activated is rounded before it is filtered, as torch would store it.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import cpu_ways
from frugan.nn.elementwise import SLOPE, limit_of
from frugan.nn.fused_activation import WARPS, Grid, activated, grid_of, is_channels_last, laid_out, slopes
from frugan.nn.own_operations import Operations, registered

Padding = tuple[int, int, int, int]
"""Zeros before and after in x, before and after in y; negative: samples cut off."""


@dataclass(frozen=True)
class Geometry:
    """What surrounds a filter."""

    up: int  # samples for each one given, the others zero
    down: int  # of how many samples one is kept
    padding: Padding  # after the zeros are put in

    @property
    def transposed(self) -> bool:
        """Whether torch does it by a transposed convolution, which needs no zeros put in."""
        return is_transposed(self.up, self.down)

    def adjoint(self, given: torch.Size, made: torch.Size, taps: torch.Size) -> "Geometry":
        """Of an operation from [.., H, W] to [.., H', W'] with a filter [T, T']."""
        padding: list[int] = []
        for axis, before in ((-1, self.padding[0]), (-2, self.padding[2])):
            end = given[axis] * self.up - made[axis] * self.down + before - self.up + 1
            padding += [taps[axis] - before - 1, end]
        return Geometry(self.down, self.up, cast(Padding, tuple(padding)))


def is_transposed(up: int, down: int) -> bool:
    """As `Geometry.transposed`."""
    return up > 1 and down == 1


# What is to be computed, in torch's operations.


def filtered(x: Tensor, kernel: Tensor, up: int, down: int, padding: Padding) -> Tensor:
    """The operation itself, without a gradient: [N, C, H, W] -> [N, C, H', W'].

    Args:
        kernel: [T, T'], turned around unless a transposed convolution does so by itself.
        up, down, padding: see `Geometry`.
    """
    channels = x.shape[1]
    x0, x1, y0, y1 = padding
    height, width = kernel.shape
    transposed = is_transposed(up, down)
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
        return F.conv2d(x, weight, stride=down, padding=(y0, x0), groups=channels)
    return F.conv2d(F.pad(x, (x0, x1, y0, y1)), weight, stride=down, groups=channels)


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


# The same in the kernels.


def start_filtered(x: Tensor, kernel: Tensor, up: int, down: int, padding: Padding) -> Tensor:
    """As `filtered`."""
    if x.dtype == torch.float64:  # which tests have, and no training
        return filtered(x, kernel, up, down, padding)
    made = _filtered_like(x, kernel, up, down, padding)
    _start((x, x, x), kernel, made, Geometry(up, down, padding), None, "nothing")
    return made


def start_activated_filtered(x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None) -> Tensor:
    """As `activated_filtered`."""
    if x.dtype == torch.float64:
        return activated_filtered(x, bias, kernel, padding, clamp)
    made = _filtered_like(x, kernel, 1, 1, padding)
    _start((x, x, bias.contiguous()), kernel, made, Geometry(1, 1, padding), clamp, "activation")
    return made


def start_sloped_filtered(
    gradient: Tensor, x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None
) -> Tensor:
    """As `sloped_filtered`."""
    if x.dtype == torch.float64:
        return sloped_filtered(gradient, x, bias, kernel, padding, clamp)
    made = _filtered_like(x, kernel, 1, 1, padding)
    _start((gradient, x, bias.contiguous()), kernel, made, Geometry(1, 1, padding), clamp, "slope")
    return made


def _start(
    given: tuple[Tensor, Tensor, Tensor], kernel: Tensor, made: Tensor, of: Geometry, clamp: float | None, before: str
) -> None:
    """Filter the first of what is given; the others are shown, and a bias."""
    from frugan.nn import fir_kernels as kernels  # noqa: PLC0415  (Triton may be missing)

    if not made.numel():
        return
    # a single pixel that is made is in both layouts, and what is given is not
    grid = grid_of(made, apart=True, summed=False)._replace(last=is_channels_last(given[0]))
    numbers = (*given[0].shape[2:], grid.pixels, made.shape[3], grid.channels, of.padding[0], of.padding[2])
    facts = {"UP": of.up, "DOWN": of.down, "BEFORE": before, **constants(kernel, grid, of, clamp)}
    tensors = (*given, kernel.contiguous(), made)
    kernels.filtered[grid.rows, grid.blocks](*tensors, *numbers, SLOPE, limit_of(clamp, made.dtype) or 0.0, **facts)


def start_filtered_slopes(
    gradient: Tensor, x: Tensor, bias: Tensor, kernel: Tensor, padding: Padding, clamp: float | None, sums: bool
) -> tuple[Tensor, Tensor]:
    """As `filtered_slopes`."""
    if x.dtype == torch.float64:
        return filtered_slopes(gradient, x, bias, kernel, padding, clamp, sums)
    from frugan.nn import fir_kernels as kernels  # noqa: PLC0415

    to_x, rows = _filtered_slopes_like(gradient, x, bias, kernel, padding, clamp, sums)
    if x.numel():
        grid = grid_of(x, apart=True, summed=sums)
        numbers = (*gradient.shape[2:], grid.pixels, x.shape[3], grid.channels, grid.loops, padding[0], padding[2])
        facts = {"SUMS": sums, **constants(kernel, grid, Geometry(1, 1, padding), clamp)}
        given = (gradient, x, bias.contiguous(), kernel.contiguous(), to_x, rows, *numbers)
        limits = (SLOPE, limit_of(clamp, x.dtype) or 0.0)
        kernels.filtered_slopes[grid.rows, grid.blocks](*given, *limits, **facts)
    return to_x, rows


def constants(kernel: Tensor, grid: Grid, of: Geometry, clamp: float | None) -> dict[str, Any]:
    """What a kernel is compiled for."""
    tall, wide = kernel.shape
    shape = {"LAST": grid.last, "BLOCK_P": grid.block_p, "BLOCK_C": grid.block_c, "num_warps": WARPS}
    return {"TALL": tall, "WIDE": wide, "TURNED": of.transposed, "CLAMPED": clamp is not None, **shape}


# As operations of torch's.


def _filtered_like(x: Tensor, kernel: Tensor, up: int, down: int, padding: Padding) -> Tensor:
    """Of its size, in the layout of x."""
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


_OF_FILTER = "Tensor kernel, int[4] padding, float? clamp"
OPERATIONS: Operations = MappingProxyType(
    {
        "fir(Tensor x, Tensor kernel, int up, int down, int[4] padding) -> Tensor": (
            filtered,
            start_filtered,
            _filtered_like,
        ),
        f"fir_leaky_relu(Tensor x, Tensor bias, {_OF_FILTER}) -> Tensor": (
            activated_filtered,
            start_activated_filtered,
            _activated_filtered_like,
        ),
        f"fir_sloped(Tensor gradient, Tensor x, Tensor bias, {_OF_FILTER}) -> Tensor": (
            sloped_filtered,
            start_sloped_filtered,
            _sloped_filtered_like,
        ),
        f"fir_leaky_relu_slopes(Tensor gradient, Tensor x, Tensor bias, {_OF_FILTER}, bool sums) -> (Tensor, Tensor)": (
            filtered_slopes,
            start_filtered_slopes,
            _filtered_slopes_like,
        ),
    }
)
_LIBRARY = registered(OPERATIONS)
_operations = torch.ops.frugan


# What filters of layers call; differentiable by what calls them.


def filter_map(x: Tensor, kernel: Tensor, of: Geometry, *, own: bool) -> Tensor:
    """As `filtered`, by a kernel of our own if that may be."""
    if own:
        return cast(Tensor, _operations.fir(laid_out(x), kernel, of.up, of.down, of.padding))
    return filtered(x, kernel, of.up, of.down, of.padding)
