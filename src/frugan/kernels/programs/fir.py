"""Programs that `kernels.fir` starts on a card.

A map is seen as [pictures, pixels, channels], in either order in memory; a program has a tile of pixels by channels of
what is made, and adds up in fp32 what each tap finds. No program writes what another one writes.
"""

import triton
import triton.language as tl

from frugan.kernels.programs.activation import _activated, _channels, _places, _sloped

FAR = tl.constexpr(1 << 16)
"""More than any padding: what is divided is then not negative."""


@triton.jit
def _samples(at, c, pixels, channels, LAST: tl.constexpr):
    """Where samples of some pixels and channels are in a picture [BLOCK_P, BLOCK_C]."""
    if LAST:
        within = at.to(tl.int64)[:, None] * channels + c[None, :]
    else:
        within = at[:, None] + c.to(tl.int64)[None, :] * pixels
    return within


@triton.jit
def _taken(
    x, shown, bias, kernel, p, c, height, width, made_width, pixels, channels, left, top, slope, clamp,
    UP: tl.constexpr, DOWN: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, TURNED: tl.constexpr,
    BEFORE: tl.constexpr, CLAMPED: tl.constexpr, LAST: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Sums over a filter's taps for some pixels p of what is made [BLOCK_P, BLOCK_C], from one picture.

    Pixel o takes sample i by tap UP * i + left - DOWN * o, where there is one: of `UP` taps one meets no zero.
    BEFORE the filter x is activated ("activation"), or multiplied by the slope of what is shown ("slope"), or neither.
    Taps are taken AT_ONCE, as many as there are registers for.
    """
    row, column = p // made_width * DOWN - top, p % made_width * DOWN - left
    first_row, first_column = (UP - (row + UP * FAR) % UP) % UP, (UP - (column + UP * FAR) % UP) % UP
    if BEFORE != "nothing":
        added = tl.load(bias + c, mask=c < channels, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for i in range((TALL + UP - 1) // UP):
        down = first_row + UP * i
        y = (row + down + UP * FAR) // UP - FAR
        of_row = (down < TALL) & (y >= 0) & (y < height) & (p < pixels)
        for j in tl.range((WIDE + UP - 1) // UP, loop_unroll_factor=AT_ONCE):
            right = first_column + UP * j
            at = (column + right + UP * FAR) // UP - FAR
            there = of_row & (right < WIDE) & (at >= 0) & (at < width)
            tap = down * WIDE + right
            if TURNED:
                tap = TALL * WIDE - 1 - tap
            weight = tl.load(kernel + tap, mask=there, other=0.0).to(tl.float32)
            within = _samples(y * width + at, c, height * width, channels, LAST)
            inside = there[:, None] & (c < channels)[None, :]
            value = tl.load(x + within, mask=inside, other=0.0)
            if BEFORE == "activation":  # beside the picture nothing is activated: its weight is 0
                value = (value.to(tl.float32) + added[None, :]).to(value.dtype)
                value = _activated(value, slope, clamp, CLAMPED)
            if BEFORE == "slope":
                result = tl.load(shown + within, mask=inside, other=0.0)
                result = _activated((result.to(tl.float32) + added[None, :]).to(result.dtype), slope, clamp, CLAMPED)
                value = _sloped(value, result, slope, clamp, CLAMPED)
            total += value.to(tl.float32) * weight[:, None]
    return total


@triton.jit(do_not_specialize=["left", "top"])
def filtered(
    x, shown, bias, kernel, result, height, width, pixels, made_width, channels, left, top, slope, clamp,
    UP: tl.constexpr, DOWN: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, TURNED: tl.constexpr,
    BEFORE: tl.constexpr, CLAMPED: tl.constexpr, LAST: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Filter a map, or what is made of it before, a tile for each program."""
    tiles = tl.cdiv(pixels, BLOCK_P)
    picture = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tl.program_id(0) % tiles) * BLOCK_P
    c = _channels(channels, BLOCK_C)
    total = _taken(
        x + picture * height * width * channels, shown + picture * height * width * channels, bias, kernel,
        first + tl.arange(0, BLOCK_P), c, height, width, made_width, pixels, channels, left, top, slope, clamp,
        UP, DOWN, TALL, WIDE, TURNED, BEFORE, CLAMPED, LAST, BLOCK_P, BLOCK_C, 4 if BEFORE == "nothing" else 1,
    )  # fmt: skip
    begins, within, inside = _places(first, c, pixels, channels, LAST, BLOCK_P)
    tl.store(result + picture * pixels * channels + begins + within, total.to(result.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["left", "top"])
def filtered_slopes(
    gradient, x, bias, kernel, to_x, sums, height, width, pixels, made_width, channels, loops, left, top, slope, clamp,
    TALL: tl.constexpr, WIDE: tl.constexpr, TURNED: tl.constexpr, CLAMPED: tl.constexpr, SUMS: tl.constexpr,
    LAST: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Filter a gradient and multiply by the slopes of what was activated, `loops` tiles for each program.

    Sums over a program's pixels [programs, channels] go to the bias.
    """
    chunks = tl.cdiv(pixels, BLOCK_P * loops)
    picture = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = (tl.program_id(0) % chunks) * loops
    c = _channels(channels, BLOCK_C)
    added = tl.load(bias + c, mask=c < channels, other=0.0).to(tl.float32)
    whole = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for i in range(loops):
        first = (chunk + i) * BLOCK_P
        begins, within, inside = _places(first, c, pixels, channels, LAST, BLOCK_P)
        place = picture * pixels * channels + begins + within
        value = tl.load(x + place, mask=inside, other=0.0)
        shown = _activated((value.to(tl.float32) + added[None, :]).to(value.dtype), slope, clamp, CLAMPED)
        total = _taken(
            gradient + picture * height * width * channels, x, bias, kernel, first + tl.arange(0, BLOCK_P), c, height,
            width, made_width, pixels, channels, left, top, slope, clamp,
            1, 1, TALL, WIDE, TURNED, "nothing", CLAMPED, LAST, BLOCK_P, BLOCK_C, 1 if LAST else 2,
        )  # fmt: skip
        passed = _sloped(total.to(value.dtype), shown, slope, clamp, CLAMPED)
        tl.store(to_x + place, passed, mask=inside)
        whole += passed.to(tl.float32)
    if SUMS:
        tl.store(sums + tl.program_id(0).to(tl.int64) * channels + c, tl.sum(whole, 0), mask=c < channels)
