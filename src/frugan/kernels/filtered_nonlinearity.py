"""StyleGAN3's nonlinearity between two filters in one pass: the map in between is in no memory but a core's own.

The program is in `programs.filtered_nonlinearity`. It gives what torch's convolutions give up to rounding, as sums are
in fp32 in another order; a pixel in between that is 0 but for rounding may therefore take the other slope. Filters that
are no product of a line with itself cost a product of matrices for each of their rows.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from frugan.contract import filtered_nonlinearity as plain
from frugan.contract.elementwise import limit_of
from frugan.contract.filtered_nonlinearity import CODES, Nonlinearity, Sides, Sizes, Ways, codes_shape
from frugan.contract.kernel import Call
from frugan.contract.ops import Ops
from frugan.contract.resampling import Padding
from frugan.kernels.kernel import CLAMP, TritonKernel, some_bias, some_map
from frugan.kernels.maps import is_channels_last, laid_out, laid_out_like
from frugan.kernels.operation import operation

ROWS = 4
"""Rows of the result that a program makes: 4 of them need half as much of the map in between as one by one."""
WIDE = 32
"""Columns of the map in between that a program has at least: with 64, products in fp32 have too few registers."""
CHANNELS = 16
"""Channels of a program: 32 bytes of halves, which a card reads at once where channels lie side by side."""
LEAST = 16
"""Side of the smallest matrices that a card multiplies."""
WARPS = 8


class Tile(NamedTuple):
    """Columns that a program works on."""

    made: int  # of the result
    samples: int  # of what comes in, as a power of 2, as those that follow
    between: int
    room: int  # for those of the result


def tile_of(up: int, down: int, up_taps: int, down_taps: int) -> Tile:
    """For filters of some columns, and their rates."""
    between = max(WIDE, _power(down_taps + 3 * down))
    made = (between - down_taps) // down + 1
    return Tile(made, _power((between + up_taps - 2) // up + 1), between, _power(made))


def _power(count: int) -> int:
    """The power of 2 that is not below it, nor below what can be multiplied."""
    return max(LEAST, int(1 << (count - 1).bit_length()))


def _like(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Room for a map, in the layout of x."""
    layout = torch.channels_last if is_channels_last(x) else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=x.device, memory_format=layout)


# What is to be computed, in torch's operations; and the same by a kernel.

_Taps = Tensor | None
_OF = "Tensor? up_taps, Tensor? down_taps, int up, int down, int[4] padding, float slope, float? clamp"


def _coded(
    x: Tensor, bias: Tensor, up_taps: _Taps, down_taps: _Taps, up: int, down: int, padding: Padding, slope: float,
    clamp: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return plain.coded(x, bias, up_taps, down_taps, Nonlinearity(up, down, padding, slope, clamp))


def _coded_like(
    x: Tensor, bias: Tensor, up_taps: _Taps, down_taps: _Taps, up: int, down: int, padding: Padding, slope: float,
    clamp: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    sizes = Nonlinearity(up, down, padding, slope, clamp).sizes(_sides(x), up_taps, down_taps)
    return _like(x, (*x.shape[:2], *sizes.result), x.dtype), _like(x, codes_shape(x, sizes), torch.uint8)


@operation(f"filtered_nonlinearity(Tensor x, Tensor bias, {_OF}) -> (Tensor, Tensor)", plain=_coded, like=_coded_like)
def coded(
    x: Tensor, bias: Tensor, up_taps: _Taps, down_taps: _Taps, up: int, down: int, padding: Padding, slope: float,
    clamp: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """See `frugan.contract.filtered_nonlinearity.coded`; x is in one of the two layouts."""
    of = Nonlinearity(up, down, padding, slope, clamp)
    sizes = of.sizes(_sides(x), up_taps, down_taps)
    result, codes = _coded_like(x, bias, up_taps, down_taps, up, down, padding, slope, clamp)
    _start(x, bias.contiguous(), codes, up_taps, down_taps, result, of, sizes, (0, 0))
    return result, codes


def _by_codes(
    x: Tensor, codes: Tensor, up_taps: _Taps, down_taps: _Taps, up: int, down: int, padding: Padding, slope: float,
    clamp: float | None, source: Sides, adjoint: bool,
) -> Tensor:  # fmt: skip
    of = Nonlinearity(up, down, padding, slope, clamp)
    return plain.by_codes(x, codes, up_taps, down_taps, of, of.sizes(source, up_taps, down_taps), adjoint)


def _by_codes_like(
    x: Tensor, codes: Tensor, up_taps: _Taps, down_taps: _Taps, up: int, down: int, padding: Padding, slope: float,
    clamp: float | None, source: Sides, adjoint: bool,
) -> Tensor:  # fmt: skip
    sizes = Nonlinearity(up, down, padding, slope, clamp).sizes(source, up_taps, down_taps)
    return _like(x, (*x.shape[:2], *(sizes.source if adjoint else sizes.result)), x.dtype)


@operation(
    f"filtered_by_codes(Tensor x, Tensor codes, {_OF}, int[2] source, bool adjoint) -> Tensor",
    plain=_by_codes,
    like=_by_codes_like,
)
def by_codes(
    x: Tensor, codes: Tensor, up_taps: _Taps, down_taps: _Taps, up: int, down: int, padding: Padding, slope: float,
    clamp: float | None, source: Sides, adjoint: bool,
) -> Tensor:  # fmt: skip
    """See `frugan.contract.filtered_nonlinearity.by_codes`; x is in the layout of the codes."""
    of = Nonlinearity(up, down, padding, slope, clamp)
    sizes = of.sizes(source, up_taps, down_taps)
    result = _by_codes_like(x, codes, up_taps, down_taps, up, down, padding, slope, clamp, source, adjoint)
    if not adjoint:
        _start(x, None, codes, up_taps, down_taps, result, of, sizes, (0, 0))
        return result
    # the same with both filters exchanged: where the map in between began, the result begins
    after = (-sizes.begin[0], -sizes.begin[1])
    other = Nonlinearity(of.down, of.up, of.padding, of.slope, of.clamp)
    exchanged = Sizes(sizes.result, sizes.between, sizes.source, (0, 0))
    _start(x, None, codes, down_taps, up_taps, result, other, exchanged, after)
    return result


def _sides(x: Tensor) -> Sides:
    return cast(Sides, tuple(x.shape[2:]))


def _start(
    x: Tensor,
    bias: Tensor | None,
    codes: Tensor,
    up_taps: _Taps,
    down_taps: _Taps,
    result: Tensor,
    of: Nonlinearity,
    sizes: Sizes,
    after: Sides,
) -> None:
    """Write a result, and codes where there is a bias."""
    from frugan.kernels.programs import filtered_nonlinearity as programs

    if not result.numel():
        return
    first, second = (x.new_ones(1) if taps is None else taps.contiguous() for taps in (up_taps, down_taps))
    facts = constants(first, second, of, makes=bias is not None, last=is_channels_last(x))
    groups, tiles = -(-sizes.result[0] // ROWS), -(-sizes.result[1] // facts["COLUMNS"])
    grid = (len(x) * groups * tiles, -(-x.shape[1] // facts["BLOCK_C"]))
    numbers = (*sizes.source, x.shape[1], *sizes.between, *sizes.result, *sizes.begin, *after)
    tensors = (x, x if bias is None else bias, codes, first, second, result)
    programs.filtered[grid](*tensors, *numbers, of.slope, limit_of(of.clamp, x.dtype) or 0.0, **facts)


def constants(first: Tensor, second: Tensor, of: Nonlinearity, *, makes: bool, last: bool) -> dict[str, Any]:
    """Constants that a program is compiled for."""
    tile = tile_of(of.up, of.down, first.shape[-1], second.shape[-1])
    rows = (ROWS - 1) * of.down + len(second)
    return {
        "UP": of.up,
        "DOWN": of.down,
        "UP_TALL": len(first),
        "UP_WIDE": first.shape[-1],
        "UP_SQUARE": first.ndim == 2,
        "DOWN_TALL": len(second),
        "DOWN_WIDE": second.shape[-1],
        "DOWN_SQUARE": second.ndim == 2,
        "MAKES": makes,
        "CLAMPED": of.clamp is not None,
        "LAST": last,
        "ROWS": ROWS,
        "COUNT": -(-rows // CODES) * CODES,
        "COLUMNS": tile.made,
        "BLOCK_I": tile.samples,
        "BLOCK_M": tile.between,
        "BLOCK_O": tile.room,
        "BLOCK_C": CHANNELS,
        "num_warps": WARPS,
    }


# Differentiable as often as one asks, as in plain torch.


def _numbers(of: Nonlinearity) -> tuple[int, int, Padding, float, float | None]:
    return of.up, of.down, of.padding, of.slope, of.clamp


def _applied_by_kernel(x: Tensor, bias: Tensor, up_taps: _Taps, down_taps: _Taps, of: Nonlinearity) -> Tensor:
    return coded(x, bias, up_taps, down_taps, *_numbers(of))[0]


def _coded_by_kernel(
    x: Tensor, bias: Tensor, up_taps: _Taps, down_taps: _Taps, of: Nonlinearity
) -> tuple[Tensor, Tensor]:
    return coded(x, bias, up_taps, down_taps, *_numbers(of))


def _by_codes_by_kernel(
    x: Tensor, codes: Tensor, up_taps: _Taps, down_taps: _Taps, of: Nonlinearity, sizes: Sizes, adjoint: bool
) -> Tensor:
    return by_codes(laid_out_like(x, codes), codes, up_taps, down_taps, *_numbers(of), sizes.source, adjoint)


_WAYS = Ways(_applied_by_kernel, _coded_by_kernel, _by_codes_by_kernel)


class FilteredNonlinearity(TritonKernel):
    """Bias, filter, activation and filter in one pass."""

    timed = (4, 64, 150, 150)

    def filtered_nonlinearity(
        self, x: Tensor, bias: Tensor, up_taps: Tensor | None, down_taps: Tensor | None, of: Nonlinearity
    ) -> Tensor:
        if up_taps is None and down_taps is None:
            return super().filtered_nonlinearity(x, bias, up_taps, down_taps, of)
        return plain.filtered_nonlinearity(laid_out(x), bias, up_taps, down_taps, of, _WAYS)

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """A map, whose numbers have so few digits that no pixel in between is rounded, and a bias."""
        x, bias = some_map(shape, dtype, layout, device), some_bias(shape[1], dtype, device)
        return _between_filters, [(x * 2).round() / 2, (bias * 2).round() / 2]


def _between_filters(x: Tensor, bias: Tensor, *, ops: Ops) -> Tensor:
    taps = torch.tensor([1, 3, 3, 1], dtype=x.dtype, device=x.device) / 4
    of = Nonlinearity(2, 2, (3, 2, 3, 2), 0.25, CLAMP)
    return ops.filtered_nonlinearity(x, bias, taps, taps / 2, of)
