"""Programs that `kernels.norm` starts on a card.

Maps are seen as in `programs.activation`. Statistics are of a unit's pixels: of a group's where channels lie side by
side, and of a picture's otherwise. No program writes what another one writes.
"""

import triton
import triton.language as tl

from frugan.kernels.programs.activation import _channels, _places


@triton.jit
def moments(
    x, means, squares, pixels, channels, loops,
    LAST: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squared deviations [programs, channels] of the pixels of `loops` tiles of a unit.

    Sums are of distances from the first pixel: squares of a large mean would leave nothing of a small deviation.
    """
    chunks = tl.cdiv(pixels, BLOCK_P * loops)
    unit = (tl.program_id(0) // chunks).to(tl.int64) * pixels * channels
    chunk = (tl.program_id(0) % chunks) * loops
    c = _channels(channels, BLOCK_C)
    first = (chunk * BLOCK_P).to(tl.int64)
    at = first * channels + c if LAST else first + c.to(tl.int64) * pixels
    near = tl.load(x + unit + at, mask=c < channels, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    squared = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for i in range(loops):
        begins, within, inside = _places((chunk + i) * BLOCK_P, c, pixels, channels, LAST, BLOCK_P)
        value = tl.load(x + unit + begins + within, mask=inside, other=0.0).to(tl.float32)
        distance = tl.where(inside, value - near[None, :], 0.0)
        total += distance
        squared += distance * distance
    count = tl.minimum(pixels - chunk * BLOCK_P, BLOCK_P * loops).to(tl.float32)
    mean = tl.sum(total, 0) / count
    row = tl.program_id(0).to(tl.int64) * channels + c
    tl.store(means + row, near + mean, mask=c < channels)
    tl.store(squares + row, tl.sum(squared, 0) - mean * mean * count, mask=c < channels)


@triton.jit
def statistics(
    means, squares, found, rows, channels, pixels, chunk, count, divisor, eps,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Mean, reciprocal deviation of a group's rows, and the variance that is observed [3, groups, channels].

    Chan et al. 1983, "Algorithms for computing the sample variance", with distances from the first row's mean.
    """
    c = _channels(channels, BLOCK_C)
    group = tl.program_id(0).to(tl.int64) * channels + c
    begin = tl.program_id(0).to(tl.int64) * rows * channels + c
    near = tl.load(means + begin, mask=c < channels, other=0.0)
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    squared = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for i in range(0, rows, BLOCK_R):
        r = i + tl.arange(0, BLOCK_R)
        inside = (r < rows)[:, None] & (c < channels)[None, :]
        at = begin[None, :] + r[:, None] * channels
        weight = tl.minimum(pixels - (r % tl.cdiv(pixels, chunk)) * chunk, chunk).to(tl.float32)[:, None]
        distance = tl.where(inside, tl.load(means + at, mask=inside, other=0.0) - near[None, :], 0.0)
        total += weight * distance
        squared += tl.load(squares + at, mask=inside, other=0.0) + weight * distance * distance
    mean = tl.sum(total, 0) / count
    whole = tl.sum(squared, 0) - mean * mean * count
    whole = tl.where(whole < 0, 0.0, whole)
    plane = tl.num_programs(0).to(tl.int64) * channels
    tl.store(found + group, near + mean, mask=c < channels)
    tl.store(found + plane + group, 1 / tl.sqrt(whole / count + eps), mask=c < channels)
    tl.store(found + 2 * plane + group, whole / divisor, mask=c < channels)


@triton.jit
def _of_group(found, number, c, channels, group, groups):
    """Mean and reciprocal deviation of a picture's group [BLOCK_C]."""
    at = (number // group).to(tl.int64) * channels + c
    mean = tl.load(found + at, mask=c < channels, other=0.0)
    return mean, tl.load(found + groups * channels + at, mask=c < channels, other=0.0)


@triton.jit
def _made(normal, gain, bias, dtype: tl.constexpr):
    """gain·normal + bias, as it is stored where there is no ReLU."""
    return (normal * gain[None, :] + bias[None, :]).to(dtype)


@triton.jit
def apply(
    x, found, gains, biases, result, pixels, channels, group, groups, gain_step, bias_step,
    LAST: tl.constexpr, RELU: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """relu(gain·normalised + bias), a tile for each program."""
    tiles = tl.cdiv(pixels, BLOCK_P)
    number = tl.program_id(0) // tiles
    c = _channels(channels, BLOCK_C)
    begins, within, inside = _places((tl.program_id(0) % tiles) * BLOCK_P, c, pixels, channels, LAST, BLOCK_P)
    place = number.to(tl.int64) * pixels * channels + begins + within
    mean, scale = _of_group(found, number, c, channels, group, groups)
    gain = tl.load(gains + number * gain_step + c, mask=c < channels, other=0.0).to(tl.float32)
    bias = tl.load(biases + number * bias_step + c, mask=c < channels, other=0.0).to(tl.float32)
    value = tl.load(x + place, mask=inside, other=0.0)
    y = _made((value.to(tl.float32) - mean[None, :]) * scale[None, :], gain, bias, value.dtype)
    if RELU:
        y = tl.where(y < 0, 0.0, y).to(value.dtype)  # what is not a number stays so
    tl.store(result + place, y, mask=inside)


@triton.jit
def slopes(
    gradient, x, found, gains, biases, bias_sums, gain_sums, pixels, channels, loops, group, groups, gain_step,
    bias_step, LAST: tl.constexpr, RELU: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient, and of it times what was normalised [programs, channels], of `loops` tiles of a picture."""
    chunks = tl.cdiv(pixels, BLOCK_P * loops)
    number = tl.program_id(0) // chunks
    picture = number.to(tl.int64) * pixels * channels
    chunk = (tl.program_id(0) % chunks) * loops
    c = _channels(channels, BLOCK_C)
    mean, scale = _of_group(found, number, c, channels, group, groups)
    gain = tl.load(gains + number * gain_step + c, mask=c < channels, other=0.0).to(tl.float32)
    bias = tl.load(biases + number * bias_step + c, mask=c < channels, other=0.0).to(tl.float32)
    to_bias = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    to_gain = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for i in range(loops):
        begins, within, inside = _places((chunk + i) * BLOCK_P, c, pixels, channels, LAST, BLOCK_P)
        value = tl.load(x + picture + begins + within, mask=inside, other=0.0)
        passed = tl.load(gradient + picture + begins + within, mask=inside, other=0.0).to(tl.float32)
        normal = (value.to(tl.float32) - mean[None, :]) * scale[None, :]
        if RELU:
            passed = tl.where(_made(normal, gain, bias, value.dtype) <= 0, 0.0, passed)
        to_bias += passed
        to_gain += passed * normal
    row = tl.program_id(0).to(tl.int64) * channels + c
    tl.store(bias_sums + row, tl.sum(to_bias, 0), mask=c < channels)
    tl.store(gain_sums + row, tl.sum(to_gain, 0), mask=c < channels)


@triton.jit
def gather(
    bias_sums, gain_sums, gains, to_biases, to_gains, totals, rows, channels, group, gain_step,
    SHARED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradients of gain and bias of a group's pictures, `rows` each; their sums by gains [2, groups, channels]."""
    c = _channels(channels, BLOCK_C)
    weighted_bias = tl.zeros([BLOCK_C], tl.float32)
    weighted_gain = tl.zeros([BLOCK_C], tl.float32)
    whole_bias = tl.zeros([BLOCK_C], tl.float32)
    whole_gain = tl.zeros([BLOCK_C], tl.float32)
    for i in range(group):
        number = (tl.program_id(0) * group + i).to(tl.int64)
        to_bias = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
        to_gain = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
        for first in range(0, rows, BLOCK_R):
            r = first + tl.arange(0, BLOCK_R)
            inside = (r < rows)[:, None] & (c < channels)[None, :]
            at = (number * rows + r)[:, None] * channels + c[None, :]
            to_bias += tl.load(bias_sums + at, mask=inside, other=0.0)
            to_gain += tl.load(gain_sums + at, mask=inside, other=0.0)
        of_bias, of_gain = tl.sum(to_bias, 0), tl.sum(to_gain, 0)
        gain = tl.load(gains + number * gain_step + c, mask=c < channels, other=0.0).to(tl.float32)
        weighted_bias += gain * of_bias
        weighted_gain += gain * of_gain
        if SHARED:
            whole_bias += of_bias
            whole_gain += of_gain
        else:
            tl.store(to_biases + number * channels + c, of_bias.to(to_biases.dtype.element_ty), mask=c < channels)
            tl.store(to_gains + number * channels + c, of_gain.to(to_gains.dtype.element_ty), mask=c < channels)
    at = tl.program_id(0).to(tl.int64) * channels + c
    if SHARED:
        tl.store(to_biases + at, whole_bias.to(to_biases.dtype.element_ty), mask=c < channels)
        tl.store(to_gains + at, whole_gain.to(to_gains.dtype.element_ty), mask=c < channels)
    tl.store(totals + at, weighted_bias, mask=c < channels)
    tl.store(totals + tl.num_programs(0).to(tl.int64) * channels + at, weighted_gain, mask=c < channels)


@triton.jit
def unapply(
    gradient, x, found, gains, biases, totals, to_x, pixels, channels, group, groups, gain_step, bias_step, share,
    LAST: tl.constexpr, RELU: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradient of x, a tile for each program; `share` is one over a group's pixels."""
    tiles = tl.cdiv(pixels, BLOCK_P)
    number = tl.program_id(0) // tiles
    c = _channels(channels, BLOCK_C)
    begins, within, inside = _places((tl.program_id(0) % tiles) * BLOCK_P, c, pixels, channels, LAST, BLOCK_P)
    place = number.to(tl.int64) * pixels * channels + begins + within
    mean, scale = _of_group(found, number, c, channels, group, groups)
    of_mean, of_deviation = _of_group(totals, number, c, channels, group, groups)
    gain = tl.load(gains + number * gain_step + c, mask=c < channels, other=0.0).to(tl.float32)
    bias = tl.load(biases + number * bias_step + c, mask=c < channels, other=0.0).to(tl.float32)
    value = tl.load(x + place, mask=inside, other=0.0)
    passed = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    normal = (value.to(tl.float32) - mean[None, :]) * scale[None, :]
    if RELU:
        passed = tl.where(_made(normal, gain, bias, value.dtype) <= 0, 0.0, passed)
    away = (of_mean * share)[None, :] + normal * (of_deviation * share)[None, :]
    tl.store(to_x + place, ((passed * gain[None, :] - away) * scale[None, :]).to(value.dtype), mask=inside)
