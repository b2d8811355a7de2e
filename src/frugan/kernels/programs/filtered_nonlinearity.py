"""The program that `kernels.filtered_nonlinearity` starts on a card.

A program makes some rows of a tile of columns, for a block of channels. It goes through the rows of the map in between
from top to bottom, of which it never has more than one: each is filtered along columns by taps, and along rows by a
product with a matrix of these, for which cards have units of their own. Sums are in fp32, and rounded to the map's
dtype where torch would store them.
"""

import triton
import triton.language as tl

from frugan.kernels.programs.activation import _activated, _channels
from frugan.kernels.programs.fir import FAR, _samples


@triton.jit
def _matrix(taps, row, at, valid, WIDE: tl.constexpr):
    """Taps of a row of a filter, placed where `at` says."""
    return tl.load(taps + row * WIDE + at, mask=valid & (at >= 0) & (at < WIDE), other=0.0)


@triton.jit
def _in_row(at, c, pixels, channels, LAST: tl.constexpr):
    """Where columns of the first row are in a picture [any, BLOCK_C], and how far apart columns are."""
    return _samples(at, c, pixels, channels, LAST), channels if LAST else 1


@triton.jit
def _row_between(
    x, added, up_taps, r, within, inside, width, apart, across, at, height,
    UP: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, SQUARE: tl.constexpr, MAKES: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Row r of all that the first filter makes [BLOCK_M, BLOCK_C]."""
    total = tl.zeros([BLOCK_M if SQUARE else BLOCK_I, BLOCK_C], tl.float32)
    below, phase = (r + UP * FAR) // UP - FAR, (r + UP * FAR) % UP
    for j in range((TALL + UP - 1) // UP):
        y, row = below - j, phase + UP * j
        there = (row < TALL) & (y >= 0) & (y < height)
        value = tl.load(x + y.to(tl.int64) * width * apart + within, mask=inside & there, other=0.0)
        if MAKES:  # beside the picture there are zeros, without a bias
            value = tl.where(inside & there, value.to(tl.float32) + added, 0.0).to(value.dtype)
        if SQUARE:
            total = tl.dot(_matrix(up_taps, row, at, there, WIDE), value, total, input_precision="ieee")
        else:
            total += value.to(tl.float32) * tl.load(up_taps + row, mask=there, other=0.0).to(tl.float32)
    if not SQUARE:
        total = tl.dot(across, total.to(across.dtype), input_precision="ieee")
    return total


@triton.jit
def _code(line, clamp, CLAMPED: tl.constexpr):
    """Which slope pixels took: see `contract.filtered_nonlinearity.CODES`."""
    wide = line.to(tl.float32)
    code = (wide > 0).to(tl.int32)
    if CLAMPED:
        code += 2 * (tl.abs(wide) < clamp).to(tl.int32)
    return code


@triton.jit
def _by_code(line, code, slope, CLAMPED: tl.constexpr):
    """A row times the slopes."""
    wide = line.to(tl.float32)
    wide = tl.where((code & 1) != 0, wide, wide * slope)
    if CLAMPED:
        wide = tl.where((code & 2) != 0, wide, 0.0)
    return wide.to(line.dtype)


@triton.jit
def _with_row(
    total, line, down_taps, k, at,
    DOWN: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, SQUARE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Sums for each row of the result with what it takes of row k in between.

    A square filter is applied at once; of a separable one it is the part along columns.
    """
    if SQUARE:
        for number in tl.static_range(ROWS):
            row = k - DOWN * number
            taps = _matrix(down_taps, row, at, (row >= 0) & (row < TALL), WIDE)
            product = tl.dot(taps, line, input_precision="ieee")
            total += tl.where((tl.arange(0, ROWS) == number)[None, :, None], product[:, None, :], 0.0)
    else:
        rows = k - DOWN * tl.arange(0, ROWS)
        weights = tl.load(down_taps + rows, mask=(rows >= 0) & (rows < TALL), other=0.0).to(tl.float32)
        total += line.to(tl.float32)[:, None, :] * weights[None, :, None]
    return total


@triton.jit(do_not_specialize=["begin_y", "begin_x", "after_y", "after_x"])
def filtered(
    x, bias, codes, up_taps, down_taps, result,
    height, width, channels, between_height, between_width, made_height, made_width, begin_y, begin_x, after_y, after_x,
    slope, clamp,
    UP: tl.constexpr, DOWN: tl.constexpr, UP_TALL: tl.constexpr, UP_WIDE: tl.constexpr, UP_SQUARE: tl.constexpr,
    DOWN_TALL: tl.constexpr, DOWN_WIDE: tl.constexpr, DOWN_SQUARE: tl.constexpr, MAKES: tl.constexpr,
    CLAMPED: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COUNT: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Filter, activate or multiply by known slopes, and filter.

    MAKES: x has a bias and is activated, and codes are written; otherwise codes are read. Pixel m of the map in between
    takes sample i by tap m + begin - UP * i of the first filter; pixel o of the result takes pixel m by tap
    m - after - DOWN * o of the second.
    """
    tiles, groups = tl.cdiv(made_width, COLUMNS), tl.cdiv(made_height, ROWS)
    group, tile = tl.program_id(0) // tiles % groups, tl.program_id(0) % tiles
    picture, bytes_high = (tl.program_id(0) // (tiles * groups)).to(tl.int64) * channels, tl.cdiv(between_height, 4)
    c = _channels(channels, BLOCK_C)
    first_row, first = group * ROWS * DOWN + after_y, tile * COLUMNS * DOWN + after_x
    i, m, o = tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_O)
    left = (first + begin_x - UP_WIDE + UP + UP * FAR) // UP - FAR  # the leftmost sample that a tap meets
    at_up, at_down = (first + begin_x - UP * left) + m[:, None] - UP * i[None, :], m[None, :] - DOWN * o[:, None]
    across = _matrix(up_taps, 0, at_up, not UP_SQUARE, UP_WIDE)
    samples, apart = _in_row(left + i, c, height * width, channels, LAST)
    sampled = ((left + i >= 0) & (left + i < width))[:, None] & (c < channels)[None, :]
    pixels, _ = _in_row(first + m, c, bytes_high * between_width, channels, LAST)
    inside = ((first + m >= 0) & (first + m < between_width))[:, None] & (c < channels)[None, :]
    # what other programs need as well is written by the one that has it first
    mine = inside & ((m < COLUMNS * DOWN) | (tile == tiles - 1))[:, None]
    x += picture * height * width
    codes += picture * bytes_high * between_width
    added = tl.zeros([1, BLOCK_C], tl.float32)
    if MAKES:
        added += tl.load(bias + c, mask=c < channels, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros([BLOCK_O if DOWN_SQUARE else BLOCK_M, ROWS, BLOCK_C], tl.float32)
    byte = tl.zeros([BLOCK_M, BLOCK_C], tl.int32)
    for k in range(COUNT):
        r = first_row + k
        there = (r >= 0) & (r < between_height)
        line = _row_between(
            x, added, up_taps, r + begin_y, samples, sampled, width, apart, across, at_up, height,
            UP, UP_TALL, UP_WIDE, UP_SQUARE, MAKES, BLOCK_I, BLOCK_M, BLOCK_C,
        ).to(result.dtype.element_ty)  # fmt: skip
        shown = codes + (r // 4).to(tl.int64) * between_width * apart + pixels  # of rows that are there
        if MAKES:
            line = _activated(line, slope, clamp, CLAMPED)
            byte += tl.where(there, _code(line, clamp, CLAMPED) << (2 * (k % 4)), 0)
            whole = (k % 4 == 3) & ((k < ROWS * DOWN) | (group == groups - 1)) & (r // 4 < bytes_high)
            tl.store(shown, byte.to(tl.uint8), mask=mine & whole)
            byte = tl.where(k % 4 == 3, 0, byte)
        else:
            code = tl.load(shown, mask=inside & there, other=0).to(tl.int32) >> (2 * (r & 3))
            line = tl.where(inside & there, _by_code(line, code, slope, CLAMPED), 0.0)
        total = _with_row(total, line, down_taps, k, at_down, DOWN, DOWN_TALL, DOWN_WIDE, DOWN_SQUARE, ROWS)
    if not DOWN_SQUARE:
        along = _matrix(down_taps, 0, at_down, True, DOWN_WIDE)
        flat = tl.reshape(total.to(along.dtype), [BLOCK_M, ROWS * BLOCK_C])
        total = tl.reshape(tl.dot(along, flat, input_precision="ieee"), [BLOCK_O, ROWS, BLOCK_C])
    row, column = group * ROWS + tl.arange(0, ROWS), tile * COLUMNS + o
    made, apart = _in_row(column, c, made_height * made_width, channels, LAST)
    within = made[:, None, :] + (row.to(tl.int64) * made_width * apart)[None, :, None]
    mask = ((o < COLUMNS) & (column < made_width))[:, None] & (row < made_height)[None, :]
    result += picture * made_height * made_width
    tl.store(result + within, total.to(result.dtype.element_ty), mask=mask[:, :, None] & (c < channels)[None, None, :])
