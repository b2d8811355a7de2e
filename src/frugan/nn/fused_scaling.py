"""Products of many matrices with vectors, and gradients carried through their largest singular values, all at once.

Torch has a kernel for each matrix and each step: two products for a power iteration, three passes for a gradient.
Here a kernel does each for all matrices; a gradient is read twice and written once, instead of four times and twice.
The kernels in `scaling_kernels` give what torch's operations give up to rounding: sums are in fp32 in another order.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from frugan.nn.own_operations import Operations, registered

SPLITS = 8
"""Programs that share the sum of one output: long matrices have few."""
PARTS = 256
"""Programs that share one matrix where its numbers are all alike."""
TILE, WARPS = 2048, 8
BLOCKS: Mapping[bool, tuple[int, int]] = MappingProxyType({False: (16, 128), True: (64, 32)})
"""Rows and columns that a program multiplies at once; of matrices that are turned."""


# What is to be computed, in torch's operations. Matrices are masters [O, I, ..], contiguous, seen as [O, K].


def times(vectors: Tensor, matrices: Sequence[Tensor], turned: bool) -> Tensor:
    """A row vector times each matrix.

    Args:
        vectors: one after the other [all rows]; where matrices are turned [all columns].

    Returns:
        Sums, to be added up [splits, all columns] or [splits, all rows].
    """
    sums, seen = _times_like(vectors, matrices, turned).zero_(), [matrix.flatten(1) for matrix in matrices]
    parts = vectors.split([matrix.shape[turned] for matrix in seen])
    sums[0] = torch.cat([part @ (m.T if turned else m) for part, m in zip(parts, seen, strict=True)])
    return sums


def divided(matrices: Sequence[Tensor], divisors: Tensor, dtype: torch.dtype, last: bool) -> list[Tensor]:
    """Each matrix over its divisor [matrices], rounded once; those of four axes in channels-last if so wanted."""
    made = _divided_like(matrices, divisors, dtype, last)
    for out, matrix, divisor in zip(made, matrices, divisors.split(1), strict=True):
        torch.div(matrix, divisor, out=out)
    return made


def dots(gradients: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    """Sums of each matrix times its gradient, to be added up [matrices, parts]."""
    sums = _dots_like(gradients, matrices).zero_()
    sums[:, 0] = torch.stack([(g.to(m.dtype) * m).sum() for g, m in zip(gradients, matrices, strict=True)])
    return sums


def carried(gradients: Sequence[Tensor], left: Tensor, right: Tensor, divisors: Tensor) -> list[Tensor]:
    """Each gradient [O, I, ..] over its divisor, minus an outer product of vectors: [all rows], [all columns]."""
    made = _carried_like(gradients, left)
    rows, columns = (each.split([g.flatten(1).shape[i] for g in gradients]) for i, each in enumerate((left, right)))
    for out, gradient, divisor, row, column in zip(made, gradients, divisors.split(1), rows, columns, strict=True):
        torch.div(gradient, divisor, out=out)
        out.flatten(1).addcmul_(row[:, None], column[None], value=-1)
    return made


# The same in the kernels.


def start_times(vectors: Tensor, matrices: Sequence[Tensor], turned: bool) -> Tensor:
    """As `times`."""
    if vectors.dtype == torch.float64:  # which tests have, and no training
        return times(vectors, matrices, turned)
    from frugan.nn import scaling_kernels as kernels  # noqa: PLC0415  (Triton may be missing)

    sums = _times_like(vectors, matrices, turned)
    entries, at = [], [0, 0]
    for matrix in matrices:
        sides = _sides(matrix)
        entries.append([matrix.data_ptr(), *sides, at[turned], at[not turned]])
        at = [first + side for first, side in zip(at, sides, strict=True)]
    most = max(_sides(matrix)[not turned] for matrix in matrices)
    given = (table_of(entries, vectors.device), vectors, sums, sums.shape[1], turned, SPLITS, *BLOCKS[turned])
    kernels.multiply[len(matrices), -(-most // BLOCKS[turned][not turned]), SPLITS](*given, num_warps=WARPS)
    return sums


def start_divided(matrices: Sequence[Tensor], divisors: Tensor, dtype: torch.dtype, last: bool) -> list[Tensor]:
    """As `divided`."""
    if divisors.dtype == torch.float64:
        return divided(matrices, divisors, dtype, last)
    from frugan.nn import scaling_kernels as kernels  # noqa: PLC0415

    made = _divided_like(matrices, divisors, dtype, last)
    table = table_of(_entries(made, matrices, made), divisors.device)
    kernels.divide[len(made), PARTS](table, divisors, element_of(made), TILE, num_warps=WARPS)
    return made


def start_dots(gradients: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    """As `dots`."""
    if matrices[0].dtype == torch.float64:
        return dots(gradients, matrices)
    from frugan.nn import scaling_kernels as kernels  # noqa: PLC0415

    sums = _dots_like(gradients, matrices)
    table = table_of(_entries(gradients, matrices, matrices), sums.device)
    kernels.dots[tuple(sums.shape)](table, sums, element_of(gradients), TILE, num_warps=WARPS)
    return sums


def start_carried(gradients: Sequence[Tensor], left: Tensor, right: Tensor, divisors: Tensor) -> list[Tensor]:
    """As `carried`."""
    if left.dtype == torch.float64:
        return carried(gradients, left, right, divisors)
    from frugan.nn import scaling_kernels as kernels  # noqa: PLC0415

    made = _carried_like(gradients, left)
    table = table_of(_entries(gradients, made, made), left.device)
    given = (table, left, right, divisors, element_of(gradients), TILE)
    kernels.carry[len(gradients), PARTS](*given, num_warps=WARPS)
    return made


def _entries(gradients: Sequence[Tensor], matrices: Sequence[Tensor], made: Sequence[Tensor]) -> list[list[int]]:
    """What kernels look up of each matrix; gradients lie in layouts of their own."""
    entries, at = [], (0, 0)
    for gradient, matrix, out in zip(gradients, matrices, made, strict=True):
        rows, columns = _sides(gradient)
        inner = gradient.stride()[1:]
        spots = columns // gradient.shape[1]
        steps = (gradient.stride(0), inner[0], inner[-1] if len(inner) > 1 else 0)
        places = (matrix.data_ptr(), gradient.data_ptr(), out.data_ptr())
        entries.append([*places, rows, columns, spots, *steps, *at])
        at = at[0] + rows, at[1] + columns
    return entries


def table_of(entries: list[list[int]], device: torch.device) -> Tensor:
    """On the device, without a wait for it."""
    pinned = device.type != "cpu"
    return torch.tensor(entries, pin_memory=pinned).to(device, non_blocking=True)


def element_of(tensors: Sequence[Tensor]) -> Any:
    """Their dtype, in Triton's words."""
    from triton import language as tl  # noqa: PLC0415

    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[tensors[0].dtype]


def _sides(matrix: Tensor) -> tuple[int, int]:
    """Rows and columns of a master or of its gradient."""
    return matrix.shape[0], matrix.shape[1:].numel()


# As operations of torch's.


def _times_like(vectors: Tensor, matrices: Sequence[Tensor], turned: bool) -> Tensor:
    return vectors.new_empty(SPLITS, sum(_sides(matrix)[not turned] for matrix in matrices))


def _divided_like(matrices: Sequence[Tensor], _: Tensor, dtype: torch.dtype, last: bool) -> list[Tensor]:
    orders = (torch.channels_last if last and m.ndim == 4 else torch.contiguous_format for m in matrices)
    return [torch.empty_like(m, dtype=dtype, memory_format=order) for m, order in zip(matrices, orders, strict=True)]


def _dots_like(gradients: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    return matrices[0].new_empty(len(matrices), PARTS)


def _carried_like(gradients: Sequence[Tensor], left: Tensor, *_: object) -> list[Tensor]:
    return [left.new_empty(gradient.shape) for gradient in gradients]


OPERATIONS: Operations = MappingProxyType(
    {
        "scaling_times(Tensor vectors, Tensor[] matrices, bool turned) -> Tensor": (times, start_times, _times_like),
        "scaling_divided(Tensor[] matrices, Tensor divisors, ScalarType dtype, bool last) -> Tensor[]": (
            divided,
            start_divided,
            _divided_like,
        ),
        "scaling_dots(Tensor[] gradients, Tensor[] matrices) -> Tensor": (dots, start_dots, _dots_like),
        "scaling_carried(Tensor[] gradients, Tensor left, Tensor right, Tensor divisors) -> Tensor[]": (
            carried,
            start_carried,
            _carried_like,
        ),
    }
)
_LIBRARY = registered(OPERATIONS)
_operations = torch.ops.frugan


# What spectral norms call.


def vectors_times(vectors: Tensor, matrices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """A row vector times each matrix, and what that gives times each turned: a power iteration but for the scale.

    Args:
        vectors: one after the other [all rows].
        matrices: masters [O, I, ..], contiguous.

    Returns:
        [all columns], [all rows].
    """
    right = _operations.scaling_times(vectors, matrices, False).sum(0)
    return right, _operations.scaling_times(right, matrices, True).sum(0)


def divide(matrices: Sequence[Tensor], divisors: Tensor, dtype: torch.dtype, *, last: bool) -> list[Tensor]:
    """Each matrix [O, I, ..] over its divisor [matrices], in a precision.

    Args:
        last: those of four axes come in channels-last.
    """
    return list(_operations.scaling_divided([each.contiguous() for each in matrices], divisors, dtype, last))


def dots_of(gradients: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    """Sums of each matrix times its gradient [matrices]."""
    gradients, matrices = [_by_spots(each) for each in gradients], [each.contiguous() for each in matrices]
    return cast(Tensor, _operations.scaling_dots(gradients, matrices).sum(1))


def through(gradients: Sequence[Tensor], left: Tensor, right: Tensor, divisors: Tensor) -> list[Tensor]:
    """Each gradient [O, I, ..] over its divisor, minus an outer product: [all rows], [all columns] one by one.

    Args:
        divisors: of each [matrices].

    Returns:
        [O, I, ..] each, contiguous, in the vectors' dtype.
    """
    return list(_operations.scaling_carried([_by_spots(each) for each in gradients], left, right, divisors))


def _by_spots(gradient: Tensor) -> Tensor:
    """In a layout in which a kernel's rows follow one another as its columns do; most are."""
    followed = gradient.ndim < 4 or gradient.stride(2) == gradient.stride(3) * gradient.shape[3]
    return gradient if followed else gradient.contiguous()
