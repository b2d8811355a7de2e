"""Programs that `kernels.ssim` starts on a card.

Pictures are seen as planes of pixels, one behind the other. No program writes what another one writes. A pointer goes
on from one picture to the next: several times their numbers may be more than 32 bits hold.
"""

import triton
import triton.language as tl


@triton.jit
def moments(a, b, result, count, BLOCK: tl.constexpr):
    """a, b, a·b and a² + b², one behind the other [4, count]: a tile for each program."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    one = tl.load(a + at, mask=inside, other=0.0)
    other = tl.load(b + at, mask=inside, other=0.0)
    result += at
    tl.store(result, one, mask=inside)
    result += count
    tl.store(result, other, mask=inside)
    result += count
    tl.store(result, one * other, mask=inside)
    result += count
    tl.store(result, one * one + other * other, mask=inside)


@triton.jit
def likeness(
    means, slopes, sums, pixels, count, loops, half_c1, half_c2,
    TO_A: tl.constexpr, TO_B: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums of the likeness over pixels [planes, chunks], `loops` tiles of a plane for each program, and its slopes."""
    chunk = tl.program_id(1) * loops
    plane = tl.program_id(0).to(tl.int64) * pixels
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(loops):
        p = (chunk + i) * BLOCK + tl.arange(0, BLOCK)
        inside = p < pixels
        at = plane + p
        mean = means + at
        a = tl.load(mean, mask=inside, other=0.0)
        mean += count
        b = tl.load(mean, mask=inside, other=0.0)
        mean += count
        product = a * b
        squares = a * a + b * b
        luminance = product + half_c1
        structure = tl.load(mean, mask=inside, other=0.0) - product + half_c2
        mean += count
        brightness = squares + 2 * half_c1
        spread = tl.load(mean, mask=inside, other=0.0) - squares + 2 * half_c2
        share = 1 / (brightness * spread)
        alike = luminance * structure * share
        total += tl.where(inside, alike, 0.0)
        if TO_A or TO_B:
            to = slopes + at
            tl.store(to, luminance * share, mask=inside)
            to += count
            tl.store(to, -alike / spread, mask=inside)
            crossed = (structure - luminance) * share
            direct = 2 * alike * (1 / spread - 1 / brightness)
            if TO_A:
                to += count
                tl.store(to, b * crossed + a * direct, mask=inside)
            if TO_B:
                to += count
                tl.store(to, a * crossed + b * direct, mask=inside)
    tl.store(sums + tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1), tl.sum(total, 0))


@triton.jit
def gather(spread, taken, mine, other, weights, result, pixels, count, BLOCK: tl.constexpr):
    """weight·(taken + other·spread[0] + 2·mine·spread[1]), a tile of a plane for each program."""
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = p < pixels
    at = tl.program_id(0).to(tl.int64) * pixels + p
    weight = tl.load(weights + tl.program_id(0))
    total = tl.load(taken + at, mask=inside, other=0.0)
    total += tl.load(other + at, mask=inside, other=0.0) * tl.load(spread + at, mask=inside, other=0.0)
    total += 2 * tl.load(mine + at, mask=inside, other=0.0) * tl.load(spread + count + at, mask=inside, other=0.0)
    tl.store(result + at, weight * total, mask=inside)
