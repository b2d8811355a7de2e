"""Programs that `kernels.activation` starts on a card.

A map is seen as [pictures, pixels, channels], in either order in memory; a program has a tile of pixels by channels,
and of sums it writes what no other program writes: the same bits whatever order they run in. Between steps that torch
would take one after the other values are rounded to the map's dtype, as torch would store them.
"""

import triton
import triton.language as tl


@triton.jit
def _channels(channels, BLOCK_C: tl.constexpr):
    """This program's channels [BLOCK_C]."""
    return tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)


@triton.jit
def _places(first, c, pixels, channels, LAST: tl.constexpr, BLOCK_P: tl.constexpr):
    """Within a picture, of a tile from pixel `first` on: where it begins, and places from there [BLOCK_P, BLOCK_C]."""
    p = tl.arange(0, BLOCK_P)
    if LAST:
        begins = first.to(tl.int64) * channels
        within = p[:, None] * channels + c[None, :]
    else:
        begins = first.to(tl.int64)
        within = p[:, None] + c.to(tl.int64)[None, :] * pixels
    inside = (first + p < pixels)[:, None] & (c < channels)[None, :]
    return begins, within, inside


@triton.jit
def _activated(y, slope, clamp, CLAMPED: tl.constexpr):
    """Leaky ReLU and clamp of what has the map's dtype; what is not a number stays so."""
    wide = y.to(tl.float32)
    y = tl.where(wide > 0, wide, wide * slope).to(y.dtype)
    if CLAMPED:
        wide = y.to(tl.float32)
        wide = tl.where(wide > clamp, clamp, wide)
        y = tl.where(wide < -clamp, -clamp, wide).to(y.dtype)
    return y


@triton.jit
def _sloped(gradient, result, slope, clamp, CLAMPED: tl.constexpr):
    """A gradient times the slope that each result shows."""
    wide, shown = gradient.to(tl.float32), result.to(tl.float32)
    to_x = tl.where(shown > 0, wide, wide * slope)
    if CLAMPED:
        to_x = tl.where((shown >= clamp) | (shown <= -clamp), 0.0, to_x)
    return to_x.to(gradient.dtype)


@triton.jit
def activate(
    x, bias, result, pixels, channels, slope, clamp,
    LAST: tl.constexpr, CLAMPED: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """clamp(leaky(x + bias)), a tile for each program."""
    tiles = tl.cdiv(pixels, BLOCK_P)
    picture = (tl.program_id(0) // tiles).to(tl.int64) * pixels * channels
    c = _channels(channels, BLOCK_C)
    begins, within, inside = _places((tl.program_id(0) % tiles) * BLOCK_P, c, pixels, channels, LAST, BLOCK_P)
    added = tl.load(bias + c, mask=c < channels, other=0.0).to(tl.float32)
    value = tl.load(x + picture + begins + within, mask=inside, other=0.0)
    y = (value.to(tl.float32) + added[None, :]).to(value.dtype)
    tl.store(result + picture + begins + within, _activated(y, slope, clamp, CLAMPED), mask=inside)


@triton.jit
def slopes(
    gradient, result, to_x, sums, pixels, channels, loops, slope, clamp,
    LAST: tl.constexpr, CLAMPED: tl.constexpr, SUMS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradient of the input, `loops` tiles for each program, and their sums over pixels [programs, channels]."""
    chunks = tl.cdiv(pixels, BLOCK_P * loops)
    picture = (tl.program_id(0) // chunks).to(tl.int64) * pixels * channels
    chunk = (tl.program_id(0) % chunks) * loops
    c = _channels(channels, BLOCK_C)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for i in range(loops):
        begins, within, inside = _places((chunk + i) * BLOCK_P, c, pixels, channels, LAST, BLOCK_P)
        value = tl.load(gradient + picture + begins + within, mask=inside, other=0.0)
        shown = tl.load(result + picture + begins + within, mask=inside, other=0.0)
        passed = _sloped(value, shown, slope, clamp, CLAMPED)
        tl.store(to_x + picture + begins + within, passed, mask=inside)
        total += passed.to(tl.float32)
    if SUMS:
        tl.store(sums + tl.program_id(0).to(tl.int64) * channels + c, tl.sum(total, 0), mask=c < channels)


@triton.jit
def _row_sums(sums, first, rows, c, channels, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sum of some rows [BLOCK_C]."""
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for i in range(0, rows, BLOCK_R):
        r = i + tl.arange(0, BLOCK_R)
        inside = (r < rows)[:, None] & (c < channels)[None, :]
        total += tl.load(sums + (first + r).to(tl.int64)[:, None] * channels + c[None, :], mask=inside, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def add_up(
    whole, parts, numbers, to_whole, to_parts, to_number, rows, rows_each, count, pictures, behind, channels,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Rows of sums: a program adds up those of a picture, one after the last picture's those of all; and numbers."""
    c = _channels(channels, BLOCK_C)
    number = tl.program_id(0)
    if number < pictures:
        total = _row_sums(parts, number * rows_each, rows_each, c, channels, BLOCK_R, BLOCK_C)
        tl.store(to_parts + number * channels + c, total.to(to_parts.dtype.element_ty), mask=c < channels)
    elif number < behind:
        total = _row_sums(whole, number * 0, rows, c, channels, BLOCK_R, BLOCK_C)
        tl.store(to_whole + c, total.to(to_whole.dtype.element_ty), mask=c < channels)
    elif tl.program_id(1) == 0:
        n = tl.arange(0, BLOCK_R * BLOCK_C)
        sums = tl.zeros([BLOCK_R * BLOCK_C], tl.float32)
        for i in range(0, count, BLOCK_R * BLOCK_C):
            sums += tl.load(numbers + i + n, mask=i + n < count, other=0.0)
        tl.store(to_number, tl.sum(sums, 0))
