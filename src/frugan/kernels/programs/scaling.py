"""Programs that `kernels.scaling` starts on a card.

Of many matrices at once: a table in memory tells where each is, and a program works on one of them. Where there is
nothing left to do for it, it ends. No program writes what another one writes.
"""

import triton
import triton.language as tl


@triton.jit
def multiply(
    table, vectors, sums, whole,
    TURNED: tl.constexpr, SPLITS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A vector times each matrix, from the left, or from the right where matrices are TURNED.

    A program has some of the outputs, and one of `SPLITS` parts of the sums [SPLITS, whole].
    """
    entry = table + tl.program_id(0) * 5
    matrix = tl.load(entry).to(tl.pointer_type(tl.float32))
    rows, columns = tl.load(entry + 1), tl.load(entry + 2)
    vectors += tl.load(entry + 3)
    sums += tl.program_id(2).to(tl.int64) * whole + tl.load(entry + 4)
    total = tl.zeros([BLOCK_O, BLOCK_K], tl.float32)
    if TURNED:
        o = tl.program_id(1).to(tl.int64) * BLOCK_O + tl.arange(0, BLOCK_O)
        part = tl.cdiv(columns, SPLITS)
        last = tl.minimum(columns, (tl.program_id(2) + 1) * part)
        if tl.program_id(1) * BLOCK_O < rows:
            for first in range(tl.program_id(2) * part, last, BLOCK_K):
                k = first + tl.arange(0, BLOCK_K)
                inside = (o < rows)[:, None] & (k < last)[None, :]
                value = tl.load(matrix + o[:, None] * columns + k[None, :], mask=inside, other=0.0)
                total += value * tl.load(vectors + k, mask=k < last, other=0.0)[None, :]
            tl.store(sums + o, tl.sum(total, 1), mask=o < rows)
    else:
        k = tl.program_id(1).to(tl.int64) * BLOCK_K + tl.arange(0, BLOCK_K)
        part = tl.cdiv(rows, SPLITS)
        last = tl.minimum(rows, (tl.program_id(2) + 1) * part)
        if tl.program_id(1) * BLOCK_K < columns:
            for first in range(tl.program_id(2) * part, last, BLOCK_O):
                o = first + tl.arange(0, BLOCK_O)
                inside = (o < last)[:, None] & (k < columns)[None, :]
                value = tl.load(matrix + o[:, None] * columns + k[None, :], mask=inside, other=0.0)
                total += value * tl.load(vectors + o, mask=o < last, other=0.0)[:, None]
            tl.store(sums + k, tl.sum(total, 0), mask=k < columns)


@triton.jit
def _entry(table, DTYPE: tl.constexpr):
    """Addresses of this program's matrix and of its gradient or result, its rows and its columns."""
    entry = table + tl.program_id(0) * 11
    matrix = tl.load(entry).to(tl.pointer_type(tl.float32))
    gradients = tl.load(entry + 1).to(tl.pointer_type(DTYPE))
    # places in one matrix fit in 32 bits, by which a card divides much faster
    return entry, matrix, gradients, tl.load(entry + 3).to(tl.int32), tl.load(entry + 4).to(tl.int32)


@triton.jit
def _places(entry, row, column):
    """Places in the gradient or result, which has another layout: a column is an input and a spot of the kernel."""
    spots = tl.load(entry + 5).to(tl.int32)
    of_row, of_input, of_spot = tl.load(entry + 6), tl.load(entry + 7), tl.load(entry + 8)
    return row * of_row + (column // spots) * of_input + (column % spots) * of_spot


@triton.jit
def divide(table, divisors, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """Each matrix divided, in another precision and layout; every so many tiles for each program."""
    entry, matrix, result, rows, columns = _entry(table, DTYPE)
    divisor = tl.load(divisors + tl.program_id(0))
    for first in range(tl.program_id(1) * BLOCK, rows * columns, tl.num_programs(1) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < rows * columns
        value = tl.load(matrix + at, mask=inside, other=0.0)
        tl.store(result + _places(entry, at // columns, at % columns), (value / divisor).to(DTYPE), mask=inside)


@triton.jit
def dots(table, sums, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of products of each matrix with its gradient, every so many tiles for each program [matrices, programs]."""
    entry, matrix, gradients, rows, columns = _entry(table, DTYPE)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(1) * BLOCK, rows * columns, tl.num_programs(1) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < rows * columns
        places = _places(entry, at // columns, at % columns)
        value = tl.load(gradients + places, mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(matrix + at, mask=inside, other=0.0)
    tl.store(sums + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.sum(total, 0))


@triton.jit
def carry(table, left, right, divisors, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """Each gradient divided, minus an outer product, in its matrix's layout; tiles as above."""
    entry, _, gradients, rows, columns = _entry(table, DTYPE)
    result = tl.load(entry + 2).to(tl.pointer_type(tl.float32))
    left += tl.load(entry + 9)
    right += tl.load(entry + 10)
    divisor = tl.load(divisors + tl.program_id(0))
    for first in range(tl.program_id(1) * BLOCK, rows * columns, tl.num_programs(1) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < rows * columns
        row, column = at // columns, at % columns
        value = tl.load(gradients + _places(entry, row, column), mask=inside, other=0.0).to(tl.float32)
        away = tl.load(left + row, mask=inside, other=0.0) * tl.load(right + column, mask=inside, other=0.0)
        tl.store(result + at, value / divisor - away, mask=inside)
