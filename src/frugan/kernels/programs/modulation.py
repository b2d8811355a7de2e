"""Programs that `kernels.modulation` starts on a card.

Maps are seen, and values rounded, as in `programs.activation`; no program writes what another one writes.
"""

import triton
import triton.language as tl

from frugan.kernels.programs.activation import _activated, _channels, _places, _sloped


@triton.jit
def activate_styled(
    x, factors, noise, strength, bias, result, pixels, channels, noise_stride, slope, clamp,
    LAST: tl.constexpr, CLAMPED: tl.constexpr, NOISY: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """clamp(leaky(x·factors + noise·strength + bias)), a tile for each program."""
    tiles = tl.cdiv(pixels, BLOCK_P)
    number = tl.program_id(0) // tiles
    picture = number.to(tl.int64) * pixels * channels
    first = (tl.program_id(0) % tiles) * BLOCK_P
    c = _channels(channels, BLOCK_C)
    begins, within, inside = _places(first, c, pixels, channels, LAST, BLOCK_P)
    factor = tl.load(factors + number * channels + c, mask=c < channels, other=0.0).to(tl.float32)
    added = tl.load(bias + c, mask=c < channels, other=0.0).to(tl.float32)
    value = tl.load(x + picture + begins + within, mask=inside, other=0.0)
    y = value.to(tl.float32) * factor[None, :]
    if NOISY:
        p = first + tl.arange(0, BLOCK_P)
        drawn = tl.load(noise + number.to(tl.int64) * noise_stride + p, mask=p < pixels, other=0.0)
        scaled = (drawn.to(tl.float32) * tl.load(strength)).to(drawn.dtype).to(value.dtype)
        y += scaled.to(tl.float32)[:, None]
    y = (y.to(value.dtype).to(tl.float32) + added[None, :]).to(value.dtype)
    tl.store(result + picture + begins + within, _activated(y, slope, clamp, CLAMPED), mask=inside)


@triton.jit
def slopes_styled(
    gradient, result, x, factors, noise, to_x, bias_sums, factor_sums, totals, pixels, channels, loops, noise_stride,
    slope, clamp,
    LAST: tl.constexpr, CLAMPED: tl.constexpr, NOISY: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """All gradients, `loops` tiles for each program.

    Sums over a program's pixels [programs, channels] go to bias and factors; one number of each program, weighted by
    the noise, to its strength.
    """
    chunks = tl.cdiv(pixels, BLOCK_P * loops)
    number = tl.program_id(0) // chunks
    picture = number.to(tl.int64) * pixels * channels
    chunk = (tl.program_id(0) % chunks) * loops
    c = _channels(channels, BLOCK_C)
    factor = tl.load(factors + number * channels + c, mask=c < channels, other=0.0).to(tl.float32)
    to_bias = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    to_factor = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    to_strength = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    noise += number.to(tl.int64) * noise_stride
    for i in range(loops):
        first = (chunk + i) * BLOCK_P
        begins, within, inside = _places(first, c, pixels, channels, LAST, BLOCK_P)
        place = picture + begins + within
        value = tl.load(gradient + place, mask=inside, other=0.0)
        shown = tl.load(result + place, mask=inside, other=0.0)
        passed = _sloped(value, shown, slope, clamp, CLAMPED).to(tl.float32)
        tl.store(to_x + place, (passed * factor[None, :]).to(value.dtype), mask=inside)
        to_bias += passed
        to_factor += passed * tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        if NOISY:
            p = first + tl.arange(0, BLOCK_P)
            to_strength += passed * tl.load(noise + p, mask=p < pixels, other=0.0).to(tl.float32)[:, None]
    row = tl.program_id(0).to(tl.int64) * channels
    tl.store(bias_sums + row + c, tl.sum(to_bias, 0), mask=c < channels)
    tl.store(factor_sums + row + c, tl.sum(to_factor, 0), mask=c < channels)
    if NOISY:
        place = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        tl.store(totals + place, tl.sum(tl.sum(to_strength, 0), 0))


@triton.jit
def unscale(
    gradient, x, factors, to_x, factor_sums, pixels, channels, loops,
    LAST: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradients of x·factors, `loops` tiles for each program; sums over its pixels go to the factors."""
    chunks = tl.cdiv(pixels, BLOCK_P * loops)
    number = tl.program_id(0) // chunks
    picture = number.to(tl.int64) * pixels * channels
    chunk = (tl.program_id(0) % chunks) * loops
    c = _channels(channels, BLOCK_C)
    factor = tl.load(factors + number * channels + c, mask=c < channels, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for i in range(loops):
        begins, within, inside = _places((chunk + i) * BLOCK_P, c, pixels, channels, LAST, BLOCK_P)
        place = picture + begins + within
        value = tl.load(gradient + place, mask=inside, other=0.0)
        wide = value.to(tl.float32)
        tl.store(to_x + place, (wide * factor[None, :]).to(value.dtype), mask=inside)
        total += wide * tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(factor_sums + tl.program_id(0).to(tl.int64) * channels + c, tl.sum(total, 0), mask=c < channels)


@triton.jit
def unscale_twice(
    gradient, result, x, factors, of_x, of_factors, to_gradient, to_x, factor_sums,
    pixels, channels, loops, slope, clamp,
    SLOPED: tl.constexpr, OF_X: tl.constexpr, OF_FACTORS: tl.constexpr,
    LAST: tl.constexpr, CLAMPED: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradients of those that `unscale` gives, or `slopes_styled`, `loops` tiles for each program.

    Of `gradient` and of x; sums over a program's pixels go to the factors. Maps that are not asked for are not touched.
    """
    chunks = tl.cdiv(pixels, BLOCK_P * loops)
    number = tl.program_id(0) // chunks
    picture = number.to(tl.int64) * pixels * channels
    chunk = (tl.program_id(0) % chunks) * loops
    c = _channels(channels, BLOCK_C)
    factor = tl.load(factors + number * channels + c, mask=c < channels, other=0.0).to(tl.float32)
    if OF_FACTORS:
        of_factor = tl.load(of_factors + number * channels + c, mask=c < channels, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for i in range(loops):
        begins, within, inside = _places((chunk + i) * BLOCK_P, c, pixels, channels, LAST, BLOCK_P)
        place = picture + begins + within
        value = tl.load(gradient + place, mask=inside, other=0.0)
        shown = value
        if SLOPED:
            shown = tl.load(result + place, mask=inside, other=0.0)
            value = _sloped(value, shown, slope, clamp, CLAMPED)
        passed = value.to(tl.float32)
        through = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
        if OF_X:
            of_map = tl.load(of_x + place, mask=inside, other=0.0).to(tl.float32)
            through += of_map * factor[None, :]
            total += of_map * passed
        if OF_FACTORS:
            through += tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * of_factor[None, :]
            tl.store(to_x + place, (passed * of_factor[None, :]).to(value.dtype), mask=inside)
        back = through.to(value.dtype)
        if SLOPED:
            back = _sloped(back, shown, slope, clamp, CLAMPED)
        tl.store(to_gradient + place, back, mask=inside)
    if OF_X:
        row = tl.program_id(0).to(tl.int64) * channels
        tl.store(factor_sums + row + c, tl.sum(total, 0), mask=c < channels)
