"""Programs that `kernels.pooling` starts on a card.

Maps lie in channels-last, and a program has a tile of pixels of the small map by channels, four pixels of the large one
for each. Values are rounded where torch would store them. No program writes what another one writes.
"""

import triton
import triton.language as tl


@triton.jit
def _places(pixels, width, channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Places of this program's tile in the small map, and of the first of two pixels in two rows of the large one."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    above = 2 * p + p // width * (2 * width)  # each row of `width` pixels is of two of twice as many
    inside = (p < pixels)[:, None] & (c < channels)[None, :]
    small = p.to(tl.int64)[:, None] * channels + c[None, :]
    below = (above + 2 * width).to(tl.int64)[:, None] * channels + c[None, :]
    return small, above.to(tl.int64)[:, None] * channels + c[None, :], below, inside


@triton.jit
def _relu(x):
    """ReLU by which NaN stays NaN."""
    return tl.where(x < 0, 0.0, x.to(tl.float32)).to(x.dtype)


@triton.jit
def _one_of_four(x, result, place, inside, total, RELU: tl.constexpr, KEEPS: tl.constexpr):
    """Load a pixel, store its ReLU where that is wanted, and add what counts to the total."""
    value = tl.load(x + place, mask=inside, other=0.0)
    if KEEPS:
        tl.store(result + place, _relu(value), mask=inside)
    if RELU:
        value = _relu(value)
    return total + value.to(tl.float32)


@triton.jit
def pool(
    x, result, added, means, pixels, width, channels,
    RELU: tl.constexpr, KEEPS: tl.constexpr, ADDS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Means of four pixels each: of their ReLU, or beside it where it KEEPS that; with what it ADDS to them."""
    small, above, below, inside = _places(pixels, width, channels, BLOCK_P, BLOCK_C)
    total = _one_of_four(x, result, above, inside, tl.zeros([BLOCK_P, BLOCK_C], tl.float32), RELU, KEEPS)
    total = _one_of_four(x, result, above + channels, inside, total, RELU, KEEPS)
    total = _one_of_four(x, result, below, inside, total, RELU, KEEPS)
    total = _one_of_four(x, result, below + channels, inside, total, RELU, KEEPS)
    mean = (total * 0.25).to(means.dtype.element_ty)
    if ADDS:
        mean = (mean.to(tl.float32) + tl.load(added + small, mask=inside, other=0.0).to(tl.float32)).to(mean.dtype)
    tl.store(means + small, mean, mask=inside)


@triton.jit
def _one_of_slopes(gradient, shown, to_x, spread, place, inside, BOTH: tl.constexpr):
    """Store a pixel's gradient: through a ReLU that BOTH has a gradient of its own and adds what is spread, or that
    passes what is spread."""
    held = tl.load(shown + place, mask=inside, other=0.0) <= 0
    if BOTH:
        passed = tl.where(held, 0.0, tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)) + spread
    else:
        passed = tl.where(held, 0.0, spread)
    tl.store(to_x + place, passed.to(to_x.dtype.element_ty), mask=inside)


@triton.jit
def unpool(
    gradient, shown, of_means, to_x, pixels, width, channels,
    BOTH: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradient of x of that of the means, and where BOTH were made of it, of its ReLU's beside them."""
    small, above, below, inside = _places(pixels, width, channels, BLOCK_P, BLOCK_C)
    value = tl.load(of_means + small, mask=inside, other=0.0)
    spread = (value.to(tl.float32) * 0.25).to(value.dtype).to(tl.float32)
    _one_of_slopes(gradient, shown, to_x, spread, above, inside, BOTH)
    _one_of_slopes(gradient, shown, to_x, spread, above + channels, inside, BOTH)
    _one_of_slopes(gradient, shown, to_x, spread, below, inside, BOTH)
    _one_of_slopes(gradient, shown, to_x, spread, below + channels, inside, BOTH)


@triton.jit
def pass_and_add(gradient, shown, other, to_x, count, BLOCK: tl.constexpr):
    """Gradient of x of that of its ReLU and of another one, of as many numbers in the same order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    held = tl.load(shown + at, mask=inside, other=0.0) <= 0
    passed = tl.where(held, 0.0, tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32))
    added = passed + tl.load(other + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(to_x + at, added.to(to_x.dtype.element_ty), mask=inside)
