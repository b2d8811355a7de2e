"""Bias, leaky ReLU and clamp in one pass over a map.

Torch's own operations take a pass each: three forward, and three more backward with the bias's sum. Here they are
operations of our own, whose kernels are in `activation_kernels` and give what torch's operations give:

- forward the same bits: values are rounded where torch would store them;
- sums over a map in fp32, in another order than torch's.

Sums come as one row for each program, which another kernel adds up: nothing is added to what another program writes.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.nn import elementwise
from frugan.nn.elementwise import SLOPE, limit_of
from frugan.nn.own_operations import Operations, registered

TILE = 2048
"""Numbers that a program works on at once: 16 bytes of halves for each of its threads."""
MOST_WIDE = 256
"""Of these, side by side in memory."""
WARPS = 8
MOST_PROGRAMS = 1024
"""That write sums, about: a few for each multiprocessor, and few rows to add up."""
OF_ROWS: Mapping[str, int] = MappingProxyType({"BLOCK_R": 32, "BLOCK_C": 32, "num_warps": 4})
"""Rows of sums and channels that a program adds up at once."""
LEAST_SUMMED = 64
"""Pixels that a program sums over at least, where there are as many: rows of sums are then small beside the map."""


class Grid(NamedTuple):
    """How a map [N, C, ..] is divided between programs."""

    pictures: int
    pixels: int  # of a picture; all of a map, where pictures need not be told apart
    channels: int
    last: bool  # channels lie side by side, pixels otherwise
    block_p: int  # pixels of a tile
    block_c: int  # channels of a tile
    loops: int  # tiles of a program, one behind the other

    @property
    def rows(self) -> int:
        """Programs beside each other: rows of sums."""
        return self.pictures * -(-self.pixels // (self.block_p * self.loops))

    @property
    def blocks(self) -> int:
        """Programs for the channels."""
        return -(-self.channels // self.block_c)


def grid_of(x: Tensor, *, apart: bool, summed: bool) -> Grid:
    """By shape and layout alone.

    Args:
        x: [N, C] or [N, C, H, W], in one of the two layouts.
        apart: programs have pixels of one picture each.
        summed: they write sums.
    """
    pictures, channels, pixels = x.shape[0], x.shape[1], x.shape[2:].numel()
    last = is_channels_last(x)
    if last and not apart:
        pictures, pixels = 1, pictures * pixels
    wide = channels if last else pixels
    # pixels side by side: the more channels a program has, the fewer sums over channels there are for the noise
    fast = min(_power(wide), MOST_WIDE if last or not (apart and summed) else MOST_WIDE // 4)
    slow = min(_power(pixels if last else channels), TILE // fast)
    block_p, block_c = (slow, fast) if last else (fast, slow)
    grid = Grid(pictures, pixels, channels, last, block_p, block_c, 1)
    if not summed:
        return grid
    tiles = -(-pixels // block_p)
    programs = max(1, MOST_PROGRAMS // max(1, pictures * grid.blocks))  # of a picture and a block of channels
    return grid._replace(loops=max(-(-tiles // programs), min(tiles, -(-LEAST_SUMMED // block_p)), 1))


def _power(count: int) -> int:
    """The power of 2 that is not below it."""
    return int(1 << max(0, count - 1).bit_length())


def is_channels_last(x: Tensor) -> bool:
    """Whether a map's channels lie side by side, as a vector's do."""
    return x.is_contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.ndim == 2 and x.is_contiguous()


def laid_out(x: Tensor) -> Tensor:
    """[N, C, ..] in one of the two layouts."""
    return x if is_channels_last(x) else x.contiguous()


def laid_out_like(x: Tensor, made: Tensor) -> Tensor:
    """In the layout of what is in one of the two."""
    last = made.ndim == 4 and is_channels_last(made)
    return x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


# What is to be computed, in torch's operations.


def activated(x: Tensor, bias: Tensor, clamp: float | None, slope: float = SLOPE) -> Tensor:
    """clamp(leaky(x + bias)).

    Args:
        x: [N, C] or [N, C, H, W], in one of the two layouts, as all maps here.
        bias: [C], of its dtype.
        clamp: largest absolute value; None: no limit.
        slope: below 0; 1: colours, which have no activation.
    """
    made = F.leaky_relu_(torch.add(x, bias.view(1, -1, *(1,) * (x.ndim - 2))), slope)
    limit = limit_of(clamp, x.dtype)
    return made if limit is None else made.clamp_(-limit, limit)


def slopes(
    gradient: Tensor, made: Tensor, clamp: float | None, sums: bool, slope: float = SLOPE
) -> tuple[Tensor, Tensor]:
    """Gradient of x, and its sums in fp32 [rows, C]; where none are asked for [0, C].

    Args:
        gradient: of what was made, in its layout.
        made: shows by its sign and size which slope each element took.
    """
    limit = limit_of(clamp, made.dtype)
    to_x = gradient if limit is None else torch.ops.aten.hardtanh_backward(gradient, made, -limit, limit)
    to_x = torch.ops.aten.leaky_relu_backward(to_x, made, slope, True)
    rows = room_for_sums(made, grid_of(made, apart=False, summed=sums), sums).zero_()
    if len(rows):
        rows[0] = to_x.to(rows.dtype).sum([axis for axis in range(to_x.ndim) if axis != 1])
    return to_x, rows


def added_up(
    whole: Tensor | None, parts: Tensor | None, numbers: Tensor | None, pictures: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of sums, all together [rows, C] -> [C], others of each picture [rows, C] -> [pictures, C], and numbers.

    Numbers [any], which come with parts, become one that keeps their precision. What is not given is not made: it has
    no elements.
    """
    made = _added_like(whole, parts, numbers, pictures, dtype)
    if whole is not None:
        made[0].copy_(whole.sum(0))
    if parts is not None and pictures:
        made[1].copy_(parts.unflatten(0, (pictures, len(parts) // pictures)).sum(1))
    if numbers is not None:
        made[2].copy_(numbers.sum())
    return made


def room_for_sums(made: Tensor, grid: Grid, sums: bool) -> Tensor:
    """Room for sums over pixels."""
    wide = torch.promote_types(made.dtype, torch.float32)
    return made.new_empty(grid.rows if sums else 0, grid.channels, dtype=wide)


# The same in the kernels.


def start_activated(x: Tensor, bias: Tensor, clamp: float | None, slope: float = SLOPE) -> Tensor:
    """As `activated`."""
    if x.dtype == torch.float64:  # which tests have, and no training
        return activated(x, bias, clamp, slope)
    from frugan.nn import activation_kernels as kernels  # noqa: PLC0415  (Triton may be missing)

    made, grid = torch.empty_like(x), grid_of(x, apart=False, summed=False)
    if made.numel():
        numbers = (grid.pixels, grid.channels, slope, limit_of(clamp, x.dtype) or 0.0)
        kernels.activate[grid.rows, grid.blocks](x, bias.contiguous(), made, *numbers, **constants_of(grid, clamp))
    return made


def start_slopes(
    gradient: Tensor, made: Tensor, clamp: float | None, sums: bool, slope: float = SLOPE
) -> tuple[Tensor, Tensor]:
    """As `slopes`."""
    if made.dtype == torch.float64:
        return slopes(gradient, made, clamp, sums, slope)
    from frugan.nn import activation_kernels as kernels  # noqa: PLC0415

    grid = grid_of(made, apart=False, summed=sums)
    to_x = torch.empty_like(made)
    rows = room_for_sums(made, grid, sums)
    if made.numel():
        numbers = (grid.pixels, grid.channels, grid.loops, slope, limit_of(clamp, made.dtype) or 0.0)
        constants = {"SUMS": sums, **constants_of(grid, clamp)}
        kernels.slopes[grid.rows, grid.blocks](gradient, made, to_x, rows, *numbers, **constants)
    return to_x, rows


def start_added_up(
    whole: Tensor | None, parts: Tensor | None, numbers: Tensor | None, pictures: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """As `added_up`."""
    given = _first(whole, parts)
    if given.dtype == torch.float64:
        return added_up(whole, parts, numbers, pictures, dtype)
    from frugan.nn import activation_kernels as kernels  # noqa: PLC0415

    made, channels = _added_like(whole, parts, numbers, pictures, dtype), given.shape[1]
    apart = len(made[1])
    behind = apart + (whole is not None)
    blocks = max(-(-channels // OF_ROWS["BLOCK_C"]), numbers is not None)
    if (programs := behind + (numbers is not None)) and blocks:
        rows, each = 0 if whole is None else len(whole), 0 if parts is None else len(parts) // max(1, apart)
        count = 0 if numbers is None else numbers.numel()
        sources = (given if source is None else source for source in (whole, parts, numbers))
        kernels.add_up[programs, blocks](*sources, *made, rows, each, count, apart, behind, channels, **OF_ROWS)
    return made


def _first(*tensors: Tensor | None) -> Tensor:
    """That is there."""
    return next(tensor for tensor in tensors if tensor is not None)


def constants_of(grid: Grid, clamp: float | None) -> dict[str, Any]:
    """What a kernel is compiled for."""
    shape = {"LAST": grid.last, "BLOCK_P": grid.block_p, "BLOCK_C": grid.block_c}
    return {**shape, "CLAMPED": clamp is not None, "num_warps": WARPS}


# As operations of torch's.


def _made_like(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


def _slopes_like(
    gradient: Tensor, made: Tensor, clamp: float | None, sums: bool, slope: float = SLOPE
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(made), room_for_sums(made, grid_of(made, apart=False, summed=sums), sums)


def _added_like(
    whole: Tensor | None, parts: Tensor | None, numbers: Tensor | None, pictures: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    given = _first(whole, parts)
    made = given.new_empty(0 if whole is None else given.shape[1], dtype=dtype)
    of_each = given.new_empty(0 if parts is None else pictures, given.shape[1], dtype=dtype)
    return made, of_each, given.new_empty((0,) if numbers is None else ())


OPERATIONS: Operations = MappingProxyType(
    {
        f"leaky_relu(Tensor x, Tensor bias, float? clamp, float slope={SLOPE}) -> Tensor": (
            activated,
            start_activated,
            _made_like,
        ),
        f"leaky_relu_slopes(Tensor gradient, Tensor made, float? clamp, bool sums, float slope={SLOPE})"
        " -> (Tensor, Tensor)": (slopes, start_slopes, _slopes_like),
        "added_up(Tensor? whole, Tensor? parts, Tensor? numbers, int pictures, ScalarType dtype)"
        " -> (Tensor, Tensor, Tensor)": (added_up, start_added_up, _added_like),
    }
)
_LIBRARY = registered(OPERATIONS)
_operations = torch.ops.frugan


# What layers call; differentiable as often as one asks: slopes have no derivative, and are their own adjoint.


def biased_leaky_relu(
    x: Tensor, bias: Tensor, *, clamp: float | None = None, kernels: frozenset[str] = frozenset()
) -> Tensor:
    """clamp(leaky(x + bias)).

    Args:
        x: [N, C] or [N, C, H, W].
        bias: [C].
        clamp: largest absolute value; None: no limit.
        kernels: names of those that may be used.
    """
    if "leaky_relu" not in kernels or elementwise.is_traced():
        return elementwise.leaky_relu(x, bias, clamp=clamp)
    return _with_slope(x, bias, clamp, SLOPE)


def biased(x: Tensor, bias: Tensor, *, clamp: float | None, kernels: frozenset[str]) -> Tensor:
    """clamp(x + bias), of what has no activation. As `biased_leaky_relu`, but bias is of x's dtype."""
    if "leaky_relu" not in kernels or elementwise.is_traced():
        return elementwise.clamped(x + bias.view(1, -1, *(1,) * (x.ndim - 2)), clamp)
    return _with_slope(x, bias, clamp, 1.0)


def _with_slope(x: Tensor, bias: Tensor, clamp: float | None, slope: float) -> Tensor:
    # a view of the bias: for `is_wanted`
    return cast(Tensor, _LeakyReLU.apply(laid_out(x), bias.view_as(bias), clamp, slope))


class _LeakyReLU(torch.autograd.Function):
    """Keeps its result and nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, clamp: float | None, slope: float) -> Tensor:
        made = cast(Tensor, _operations.leaky_relu(x, bias.to(x.dtype), clamp, slope))
        ctx.save_for_backward(made)
        ctx.clamp, ctx.slope, ctx.bias_dtype = clamp, slope, bias.dtype
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        if gradients[0] is None:  # of what only its slopes are asked for, in a gradient of a gradient
            return None, None, None, None
        (made,) = ctx.saved_tensors
        sums = ctx.bias_dtype if elementwise.is_wanted(ctx, 1) else None
        return *Slopes.apply(gradients[0], made, ctx.clamp, sums, ctx.slope), None, None


class Slopes(torch.autograd.Function):
    """Multiplies by each element's slope, and adds up over all but the channels where a dtype for that is given."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, made: Tensor, clamp: float | None, sums: torch.dtype | None, slope: float
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(made)
        ctx.clamp, ctx.slope = clamp, slope
        ctx.set_materialize_grads(False)
        to_x, rows = _operations.leaky_relu_slopes(laid_out_like(gradient, made), made, clamp, sums is not None, slope)
        return to_x, None if sums is None else _operations.added_up(rows, None, None, 0, sums)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        (made,) = ctx.saved_tensors
        of_x, of_bias = gradients
        if of_bias is not None:
            spread = of_bias.to(made.dtype).view(1, -1, *(1,) * (made.ndim - 2))
            of_x = spread.expand_as(made) if of_x is None else of_x + spread
        to_gradient = None if of_x is None else Slopes.apply(of_x, made, ctx.clamp, None, ctx.slope)[0]
        return to_gradient, None, None, None, None
