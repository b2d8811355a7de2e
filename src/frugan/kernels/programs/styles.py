"""Programs that `kernels.styles` starts on a card.

Of all layers at once: a table in memory tells where each one's matrix and rows are. Where there is nothing left to do
for a program, it ends. No program writes what another one writes.
"""

import triton
import triton.language as tl


@triton.jit
def _entry(entry):
    """Matrix, bias, outputs and inputs of a layer, and places and steps of its rows of outputs and of inputs."""
    matrix = tl.load(entry).to(tl.pointer_type(tl.float32))
    bias = tl.load(entry + 1).to(tl.pointer_type(tl.float32))
    outputs, inputs = tl.load(entry + 2).to(tl.int32), tl.load(entry + 3).to(tl.int32)
    return matrix, bias, outputs, inputs, tl.load(entry + 4), tl.load(entry + 5), tl.load(entry + 6)


@triton.jit
def _tile(values, row, column, rows, columns, step):
    """Values at some places of a matrix [rows, columns]."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(values + row.to(tl.int64)[:, None] * step + column[None, :], mask=inside, other=0.0)


@triton.jit
def multiply(
    table, x, result, count, BIASED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr
):
    """Rows times each turned matrix, plus its bias: some rows and outputs for each program."""
    matrix, bias, outputs, inputs, to, at, step = _entry(table + tl.program_id(0) * 8)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    r = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
    if tl.program_id(1) * BLOCK_O < outputs:
        total = tl.zeros([BLOCK_R, BLOCK_O, BLOCK_I], tl.float32)
        for first in range(0, inputs, BLOCK_I):
            i = first + tl.arange(0, BLOCK_I)
            value = _tile(x + at, r, i, count, inputs, step)
            total += value[:, None, :] * _tile(matrix, o, i, outputs, inputs, inputs)[None, :, :]
        y = tl.sum(total, 2)
        if BIASED:
            y += tl.load(bias + o, mask=o < outputs, other=0.0)[None, :]
        places = result + to + r.to(tl.int64)[:, None] * outputs + o[None, :]
        tl.store(places, y, mask=(r < count)[:, None] & (o < outputs)[None, :])


@triton.jit
def give_back(
    table, y, result, count, BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr
):  # fmt: skip
    """Rows times each matrix, added up over layers that share their inputs: some rows and inputs for each program."""
    entry = table + tl.program_id(0) * 8
    _, _, _, inputs, _, to, step = _entry(entry)
    together = tl.load(entry + 7).to(tl.int32)  # 0: an earlier layer's program does this one too
    i = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    r = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
    if (together > 0) & (tl.program_id(1) * BLOCK_I < inputs):
        total = tl.zeros([BLOCK_R, BLOCK_O, BLOCK_I], tl.float32)
        for layer in range(together):
            matrix, _, outputs, _, at, _, _ = _entry(entry + layer * 8)
            for first in range(0, outputs, BLOCK_O):
                o = first + tl.arange(0, BLOCK_O)
                value = _tile(y + at, r, o, count, outputs, outputs)
                total += value[:, :, None] * _tile(matrix, o, i, outputs, inputs, inputs)[None, :, :]
        places = result + to + r.to(tl.int64)[:, None] * step + i[None, :]
        tl.store(places, tl.sum(total, 1), mask=(r < count)[:, None] & (i < inputs)[None, :])


@triton.jit
def outer(table, y, x, count, BIASED: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr):
    """Sums over rows of outer products, and of the rows alone for the bias: a tile for each program."""
    matrix, bias, outputs, inputs, of_y, of_x, step = _entry(table + tl.program_id(0) * 8)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    i = tl.program_id(2) * BLOCK_I + tl.arange(0, BLOCK_I)
    if (tl.program_id(1) * BLOCK_O < outputs) & (tl.program_id(2) * BLOCK_I < inputs):
        total = tl.zeros([BLOCK_O, BLOCK_I], tl.float32)
        alone = tl.zeros([BLOCK_O], tl.float32)
        for r in range(count):
            left = tl.load(y + of_y + r * outputs + o, mask=o < outputs, other=0.0)
            right = tl.load(x + of_x + r * step + i, mask=i < inputs, other=0.0)
            total += left[:, None] * right[None, :]
            alone += left
        places = matrix + o.to(tl.int64)[:, None] * inputs + i[None, :]
        tl.store(places, total, mask=(o < outputs)[:, None] & (i < inputs)[None, :])
        if BIASED:
            tl.store(bias + o, alone, mask=(o < outputs) & (tl.program_id(2) == 0))


@triton.jit
def divide(table, x, divisors, result, count, least, FOUND: tl.constexpr, BLOCK: tl.constexpr):
    """Rows over their largest absolute values, where a layer's shall be: a row for each program."""
    entry = table + tl.program_id(0) * 3
    width = tl.load(entry + 1).to(tl.int32)
    at = tl.load(entry) + tl.program_id(1) * width + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < width
    value = tl.load(x + at, mask=inside, other=0.0)
    place = divisors + tl.program_id(0) * count + tl.program_id(1)
    if FOUND:
        divisor = tl.load(place)
    else:
        sizes = tl.abs(value)
        numbers = sizes >= 0  # a maximum would pass over what is none
        most = tl.maximum(tl.max(tl.where(numbers, sizes, 0.0), 0), least)
        most = tl.where(tl.min(numbers.to(tl.int32), 0) > 0, most, float("nan"))
        divisor = tl.where(tl.load(entry + 2) > 0, most, 1.0)
        tl.store(place, divisor)
    tl.store(result + at, value / divisor, mask=inside)
