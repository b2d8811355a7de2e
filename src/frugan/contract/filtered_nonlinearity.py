"""Leaky ReLU of a map at a higher rate of samples, between a filter that raises the rate and one that lowers it.

Source: Karras et al. 2021 (arXiv 2106.12423), section 3.2 and appendix D. The map in between has up to 16 times the
pixels of the one that comes in. It exists for a few samples or channels at a time; the gradient needs nothing of it but
which of three slopes each pixel took, in two bits. Given these the operation is linear: its gradient is the operation
itself with both filters exchanged, and can be differentiated any number of times.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import cpu_ways
from frugan.contract.elementwise import is_wanted, limit_of
from frugan.contract.resampling import Padding

PIECE = 2**23
"""Pixels of the map in between that exist at once, about, unless it has more than `MOST_PIECES` of these."""
MOST_PIECES = 16
"""Pieces of one map. More would save little memory, and each costs a card some fifteen launches."""
IN_CACHE = 2**18
"""Pixels of it that a processor's core keeps at hand from one elementwise step to the next."""
CODES = 4
"""Codes in a byte, of pixels below each other: bit 0 says that a pixel is positive, bit 1 that it was not clamped."""
Sides = tuple[int, int]
"""Height and width."""


class Sizes(NamedTuple):
    """Sizes of the three maps, and where the one in between begins in all that the first filter reaches."""

    source: Sides
    between: Sides
    result: Sides
    begin: Sides


@dataclass(frozen=True)
class Nonlinearity:
    """Rates of samples around an activation, its slope and its limit."""

    up: int  # each sample becomes one sample and `up` - 1 zeros, before the first filter
    down: int  # one of `down` samples is kept, after the second filter
    padding: Padding  # zeros around the map that the first filter is applied to; negative numbers cut samples off
    slope: float  # below 0
    clamp: float | None  # largest absolute value; None: no limit

    def sizes(self, source: Sides, up_taps: Tensor | None, down_taps: Tensor | None) -> Sizes:
        """Sizes for a map of some height and width.

        Raises:
            ValueError: nothing of the map is left.
        """
        between, result, begin = list[int](), list[int](), list[int]()
        before_and_after = (self.padding[2:], self.padding[:2])
        first, second = _reach(up_taps), _reach(down_taps)
        for side, (before, after), taps, taps_down in zip(source, before_and_after, first, second, strict=True):
            whole = side * self.up + before + after - taps + 1
            count = (whole - taps_down) // self.down + 1
            if count < 1:
                raise ValueError(
                    f"filters of {taps} and {taps_down} taps leave nothing of {side} pixels at {self.up} times the "
                    f"rate with padding {before} and {after}: expected more padding, or a larger map"
                )
            result.append(count)
            between.append((count - 1) * self.down + taps_down)  # the rest has no influence
            begin.append(taps - 1 - before)
        return Sizes(source, *(cast(Sides, tuple(sides)) for sides in (between, result, begin)))


def _reach(taps: Tensor | None) -> Sides:
    """Height and width of a filter, which is separable if its taps are in a line."""
    return (1, 1) if taps is None else cast(Sides, tuple(taps.shape) if taps.ndim == 2 else (len(taps),) * 2)


def codes_shape(x: Tensor, sizes: Sizes) -> tuple[int, int, int, int]:
    """Shape of the codes for a map [N, C, H, W]."""
    return *x.shape[:2], -(-sizes.between[0] // CODES), sizes.between[1]


class Ways(NamedTuple):
    """Functions that compute the operation without a gradient: in torch, or by kernels."""

    applied: Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Nonlinearity], Tensor]
    coded: Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Nonlinearity], tuple[Tensor, Tensor]]
    by_codes: Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Nonlinearity, Sizes, bool], Tensor]


def filtered_nonlinearity(
    x: Tensor, bias: Tensor, up_taps: Tensor | None, down_taps: Tensor | None, of: Nonlinearity, ways: Ways
) -> Tensor:
    """Add a bias, filter at the higher rate, clamp(leaky()), filter and keep fewer samples, differentiably.

    Args:
        x: [N, C, H, W].
        bias: [C].
        up_taps: filter that the spread samples are convolved with, of x's dtype: [T, T'], or [T] in both directions,
            one after the other; None: samples are taken as they are, and the factor is 1.
        down_taps: filter, likewise, that correlates with what is activated.
    """
    if not (torch.is_grad_enabled() and (x.requires_grad or bias.requires_grad)):
        return ways.applied(x, bias.to(x.dtype), up_taps, down_taps, of)
    # a view of the bias: for `is_wanted`
    return cast(Tensor, _Filtered.apply(x, bias.view_as(bias), up_taps, down_taps, of, ways))


class _Filtered(torch.autograd.Function):
    """Keeps codes and nothing else."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor,
        up_taps: Tensor | None,
        down_taps: Tensor | None,
        of: Nonlinearity,
        ways: Ways,
    ) -> Tensor:
        result, codes = ways.coded(x, bias.to(x.dtype), up_taps, down_taps, of)
        ctx.save_for_backward(codes, up_taps, down_taps)
        sides = cast(Sides, tuple(x.shape[2:]))
        ctx.of, ctx.sizes, ctx.ways, ctx.bias_dtype = of, of.sizes(sides, up_taps, down_taps), ways, bias.dtype
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        to_x = cast(Tensor, _ByCodes.apply(gradients[0], *ctx.saved_tensors, ctx.of, ctx.sizes, ctx.ways, True))
        # in the bias's dtype, which may be wider than the map's
        to_bias = to_x.sum((0, 2, 3), dtype=ctx.bias_dtype) if is_wanted(ctx, 1) else None
        return to_x, to_bias, None, None, None, None


class _ByCodes(torch.autograd.Function):
    """Operation for known codes, or its adjoint: each is the gradient of the other."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        codes: Tensor,
        up_taps: Tensor | None,
        down_taps: Tensor | None,
        of: Nonlinearity,
        sizes: Sizes,
        ways: Ways,
        adjoint: bool,
    ) -> Tensor:
        ctx.save_for_backward(codes, up_taps, down_taps)
        ctx.rest = of, sizes, ways, not adjoint
        return ways.by_codes(x, codes, up_taps, down_taps, of, sizes, adjoint)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return cast(Tensor, _ByCodes.apply(gradients[0], *ctx.saved_tensors, *ctx.rest)), *(None,) * 7


def at_once(x: Tensor, bias: Tensor, up_taps: Tensor | None, down_taps: Tensor | None, of: Nonlinearity) -> Tensor:
    """Result [N, C, H', W'] by the whole map in between, for records of operations: none writes to a part of a map."""
    sizes = of.sizes(cast(Sides, tuple(x.shape[2:])), up_taps, down_taps)
    between = _spread(x + bias.to(x.dtype).view(1, -1, 1, 1), up_taps, of.up, sizes.begin, sizes.between)
    activated, limit = F.leaky_relu(between, of.slope), limit_of(of.clamp, x.dtype)
    clamped = activated if limit is None else activated.clamp(-limit, limit)
    return _gathered(clamped, down_taps, of.down, (0, 0), sizes.result)


# In plain torch, piece by piece.


def applied(x: Tensor, bias: Tensor, up_taps: Tensor | None, down_taps: Tensor | None, of: Nonlinearity) -> Tensor:
    """Result [N, C, H', W'] alone, for what takes no gradient."""
    return _computed(x, bias, up_taps, down_taps, of, None)


def coded(
    x: Tensor, bias: Tensor, up_taps: Tensor | None, down_taps: Tensor | None, of: Nonlinearity
) -> tuple[Tensor, Tensor]:
    """Result [N, C, H', W'], and codes of the pixels in between [N, C, rows/4, columns] in bytes, in x's layout."""
    codes = _like(x, codes_shape(x, of.sizes(cast(Sides, tuple(x.shape[2:])), up_taps, down_taps)), torch.uint8)
    return _computed(x, bias, up_taps, down_taps, of, codes), codes


def _computed(
    x: Tensor,
    bias: Tensor,
    up_taps: Tensor | None,
    down_taps: Tensor | None,
    of: Nonlinearity,
    codes: Tensor | None,
) -> Tensor:
    """Result, with codes written where there is room for them."""
    sizes = of.sizes(cast(Sides, tuple(x.shape[2:])), up_taps, down_taps)
    result = _like(x, (*x.shape[:2], *sizes.result), x.dtype)
    limit = limit_of(of.clamp, x.dtype)
    for part in _pieces(x, sizes):
        piece = _laid_out(x[part] + bias[part[1]].view(1, -1, 1, 1))
        between = _spread(piece, up_taps, of.up, sizes.begin, sizes.between)
        for rows in _blocks(between):
            block = between[:, :, rows]
            F.leaky_relu_(block, of.slope)
            if limit is not None:
                block.clamp_(-limit, limit)
            if codes is not None:
                _pack(block, limit, codes[part][:, :, _bytes_of(rows)])
        result[part] = _gathered(between, down_taps, of.down, (0, 0), sizes.result)
    return result


def by_codes(
    x: Tensor,
    codes: Tensor,
    up_taps: Tensor | None,
    down_taps: Tensor | None,
    of: Nonlinearity,
    sizes: Sizes,
    adjoint: bool,
) -> Tensor:
    """Multiply by the slopes that codes tell, between the filters: [N, C, H, W] -> [N, C, H', W'], or the adjoint."""
    result = _like(x, (*x.shape[:2], *(sizes.source if adjoint else sizes.result)), x.dtype)
    for part in _pieces(x, sizes):
        piece = _laid_out(x[part])
        if adjoint:
            between = _spread(piece, down_taps, of.down, (0, 0), sizes.between)
        else:
            between = _spread(piece, up_taps, of.up, sizes.begin, sizes.between)
        for rows in _blocks(between):
            _multiply(between[:, :, rows], codes[part][:, :, _bytes_of(rows)], of)
        if adjoint:
            begin = (-sizes.begin[0], -sizes.begin[1])
            result[part] = _gathered(between, up_taps, of.up, begin, sizes.source)
        else:
            result[part] = _gathered(between, down_taps, of.down, (0, 0), sizes.result)
    return result


IN_TORCH = Ways(applied, coded, by_codes)


def _like(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Room for a map, in the layout of x."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=x.device, memory_format=layout)


def _pieces(x: Tensor, sizes: Sizes) -> Iterator[tuple[slice, slice]]:
    """Samples and channels that are computed together."""
    count, channels = x.shape[:2]
    plane = max(1, sizes.between[0] * sizes.between[1])
    pixels = max(PIECE, count * channels * plane // MOST_PIECES)
    together = max(1, min(channels, pixels // plane))
    samples = max(1, pixels // (plane * channels)) if together == channels else 1
    for n in range(0, count, samples):
        for c in range(0, channels, together):
            yield slice(n, n + samples), slice(c, c + together)


def _laid_out(piece: Tensor) -> Tensor:
    """In the layout and type that filters are fastest in: on a processor channels last, and fp32.

    Torch's fp16 takes thousands of times as long there with a filter's padding of more than 20 pixels.
    """
    if cpu_ways.taken_in_half_for(piece):
        piece = piece.float()
    return piece.contiguous(memory_format=torch.channels_last) if cpu_ways.taken_for(piece) else piece


_Passes = list[tuple[Tensor, Sides, tuple[int, ...]]]
"""Filters [T, T'] that are applied one after the other, their rates, and the directions that each is along."""


def _passes(taps: Tensor, rate: int) -> _Passes:
    if taps.ndim == 2:
        return [(taps, (rate, rate), (0, 1))]
    return [(taps[:, None], (rate, 1), (0,)), (taps[None], (1, rate), (1,))]


def _spread(x: Tensor, taps: Tensor | None, up: int, begin: Sides, size: Sides) -> Tensor:
    """A new map [n, c, *size], from row and column `begin` on of all that the filter makes of spread samples."""
    if taps is None:
        return _window(x, begin, size).clone()
    for kernel, rate, axes in _passes(taps, up):
        cut, first, count = [0, 0], [0, 0], list(x.shape[2:])
        for axis in axes:
            reached = (x.shape[2 + axis] - 1) * rate[axis] + kernel.shape[axis]
            cut[axis] = max(0, min(begin[axis], reached - begin[axis] - size[axis]))
            first[axis], count[axis] = begin[axis] - cut[axis], size[axis]
        x = _window(_transposed(x, kernel, rate, cut), first, count)
    return x


def _transposed(x: Tensor, kernel: Tensor, rate: Sides, cut: Sequence[int]) -> Tensor:
    """Transposed convolution of each channel, less `cut` rows and columns at either end."""
    channels = x.shape[1]
    weight = kernel.to(x.dtype).expand(channels, 1, *kernel.shape)
    return F.conv_transpose2d(x, weight, stride=rate, padding=cut, groups=channels)


def _gathered(x: Tensor, taps: Tensor | None, down: int, begin: Sides, size: Sides) -> Tensor:
    """[n, c, *size]: correlation with the taps from row and column `begin` on, of which one of `down` is kept."""
    if taps is None:
        return _window(x, begin, size)
    for kernel, rate, axes in _passes(taps, down):
        around, first, count = [0, 0], [0, 0], list(x.shape[2:])
        for axis in axes:
            needed = (size[axis] - 1) * rate[axis] + kernel.shape[axis]
            behind = begin[axis] + needed - x.shape[2 + axis]
            around[axis] = max(0, min(-begin[axis], behind))
            first[axis], count[axis] = begin[axis] + around[axis], needed - 2 * around[axis]
        weight = kernel.to(x.dtype).expand(x.shape[1], 1, *kernel.shape)
        x = F.conv2d(_window(x, first, count), weight, stride=rate, padding=around, groups=x.shape[1])
    return x


def _window(x: Tensor, begin: Sequence[int], size: Sequence[int]) -> Tensor:
    """Part of a map [n, c, *size], with zeros beside the map."""
    ends = (begin[0] + size[0], begin[1] + size[1])
    inside = x[:, :, max(0, begin[0]) : max(0, ends[0]), max(0, begin[1]) : max(0, ends[1])]
    before, behind = [max(0, -first) for first in begin], [max(0, ends[a] - x.shape[2 + a]) for a in (0, 1)]
    if not any(before) and not any(behind):
        return inside
    padding = [min(before[1], size[1]), min(behind[1], size[1]), min(before[0], size[0]), min(behind[0], size[0])]
    return F.pad(inside, padding)


def _blocks(between: Tensor) -> Iterator[slice]:
    """Rows of a piece that are computed together, whose codes are whole bytes."""
    height, row = between.shape[2], between[:, :, :1].numel()
    count = max(1, IN_CACHE // (row * CODES)) * CODES if cpu_ways.taken_for(between) else height
    for first in range(0, height, count):
        yield slice(first, min(first + count, height))


def _bytes_of(rows: slice) -> slice:
    """Rows of codes that are those of some rows."""
    return slice(rows.start // CODES, -(-rows.stop // CODES))


def _pack(between: Tensor, limit: float | None, codes: Tensor) -> None:
    """Write the codes of what was activated [n, c, rows, columns]."""
    code = (between > 0).to(torch.uint8)
    if limit is not None:
        code.add_((between.abs() < limit).to(torch.uint8), alpha=2)
    codes.copy_(code[:, :, ::CODES])
    for k in range(1, min(CODES, between.shape[2])):
        rows = code[:, :, k::CODES]
        codes[:, :, : rows.shape[2]].add_(rows, alpha=4**k)


def _multiply(between: Tensor, codes: Tensor, of: Nonlinearity) -> None:
    """Multiply by the slopes that codes tell, in place."""
    for k in range(min(CODES, between.shape[2])):
        rows = between[:, :, k::CODES]
        code = codes[:, :, : rows.shape[2]]
        sloped = torch.ops.aten.leaky_relu_backward(rows, (code & 4**k).to(rows.dtype), of.slope, False)
        if of.clamp is not None:
            sloped = torch.ops.aten.threshold_backward(sloped, (code & 2 * 4**k).to(rows.dtype), 0)
        rows.copy_(sloped)
