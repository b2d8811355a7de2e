"""Products of many matrices with vectors, and gradients carried through their largest singular values, all at once.

Torch has a kernel for each matrix and each step: two products for a power iteration, three passes for a gradient.
Here a kernel does each for all matrices; a gradient is read twice and written once, instead of four times and twice.
The programs in `programs.scaling` give what torch's operations give up to rounding: sums are in fp32 in another order.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from frugan.contract.kernel import Call
from frugan.contract.ops import Ops
from frugan.kernels.kernel import TritonKernel, some_map
from frugan.kernels.maps import table_of
from frugan.kernels.operation import operation
from frugan.nn.spectral_norm import SpectralScaling

Kind = TypeVar("Kind")

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
    result = _divided_like(matrices, divisors, dtype, last)
    for out, matrix, divisor in zip(result, matrices, divisors.split(1), strict=True):
        torch.div(matrix, divisor, out=out)
    return result


def dots(gradients: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    """Sums of each matrix times its gradient, to be added up [matrices, parts]."""
    sums = _dots_like(gradients, matrices).zero_()
    sums[:, 0] = torch.stack([(g.to(m.dtype) * m).sum() for g, m in zip(gradients, matrices, strict=True)])
    return sums


def carried(gradients: Sequence[Tensor], left: Tensor, right: Tensor, divisors: Tensor) -> list[Tensor]:
    """Each gradient [O, I, ..] over its divisor, minus an outer product of vectors: [all rows], [all columns]."""
    result = _carried_like(gradients, left)
    rows, columns = (
        vectors.split([g.flatten(1).shape[i] for g in gradients]) for i, vectors in enumerate((left, right))
    )
    for out, gradient, divisor, row, column in zip(result, gradients, divisors.split(1), rows, columns, strict=True):
        torch.div(gradient, divisor, out=out)
        out.flatten(1).addcmul_(row[:, None], column[None], value=-1)
    return result


def _sides(matrix: Tensor) -> tuple[int, int]:
    """Rows and columns of a master or of its gradient."""
    return matrix.shape[0], matrix.shape[1:].numel()


def _times_like(vectors: Tensor, matrices: Sequence[Tensor], turned: bool) -> Tensor:
    return vectors.new_empty(SPLITS, sum(_sides(matrix)[not turned] for matrix in matrices))


def _divided_like(matrices: Sequence[Tensor], _: Tensor, dtype: torch.dtype, last: bool) -> list[Tensor]:
    orders = (torch.channels_last if last and m.ndim == 4 else torch.contiguous_format for m in matrices)
    return [torch.empty_like(m, dtype=dtype, memory_format=order) for m, order in zip(matrices, orders, strict=True)]


def _dots_like(gradients: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    return matrices[0].new_empty(len(matrices), PARTS)


def _carried_like(gradients: Sequence[Tensor], left: Tensor, *_: object) -> list[Tensor]:
    return [left.new_empty(gradient.shape) for gradient in gradients]


# The same by kernels.


@operation("scaling_times(Tensor vectors, Tensor[] matrices, bool turned) -> Tensor", plain=times, like=_times_like)
def scaling_times(vectors: Tensor, matrices: Sequence[Tensor], turned: bool) -> Tensor:
    from frugan.kernels.programs import scaling as programs

    sums = _times_like(vectors, matrices, turned)
    entries, at = [], [0, 0]
    for matrix in matrices:
        sides = _sides(matrix)
        entries.append([matrix.data_ptr(), *sides, at[turned], at[not turned]])
        at = [first + side for first, side in zip(at, sides, strict=True)]
    most = max(_sides(matrix)[not turned] for matrix in matrices)
    arguments = (table_of(entries, vectors.device), vectors, sums, sums.shape[1], turned, SPLITS, *BLOCKS[turned])
    programs.multiply[len(matrices), -(-most // BLOCKS[turned][not turned]), SPLITS](*arguments, num_warps=WARPS)
    return sums


@operation(
    "scaling_divided(Tensor[] matrices, Tensor divisors, ScalarType dtype, bool last) -> Tensor[]",
    plain=divided,
    like=_divided_like,
)
def scaling_divided(matrices: Sequence[Tensor], divisors: Tensor, dtype: torch.dtype, last: bool) -> list[Tensor]:
    from frugan.kernels.programs import scaling as programs

    result = _divided_like(matrices, divisors, dtype, last)
    table = table_of(_entries(result, matrices, result), divisors.device)
    programs.divide[len(result), PARTS](table, divisors, element_of(result), TILE, num_warps=WARPS)
    return result


@operation("scaling_dots(Tensor[] gradients, Tensor[] matrices) -> Tensor", plain=dots, like=_dots_like)
def scaling_dots(gradients: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    from frugan.kernels.programs import scaling as programs

    sums = _dots_like(gradients, matrices)
    table = table_of(_entries(gradients, matrices, matrices), sums.device)
    programs.dots[tuple(sums.shape)](table, sums, element_of(gradients), TILE, num_warps=WARPS)
    return sums


@operation(
    "scaling_carried(Tensor[] gradients, Tensor left, Tensor right, Tensor divisors) -> Tensor[]",
    plain=carried,
    like=_carried_like,
)
def scaling_carried(gradients: Sequence[Tensor], left: Tensor, right: Tensor, divisors: Tensor) -> list[Tensor]:
    from frugan.kernels.programs import scaling as programs

    result = _carried_like(gradients, left)
    table = table_of(_entries(gradients, result, result), left.device)
    arguments = (table, left, right, divisors, element_of(gradients), TILE)
    programs.carry[len(gradients), PARTS](*arguments, num_warps=WARPS)
    return result


def _entries(gradients: Sequence[Tensor], matrices: Sequence[Tensor], result: Sequence[Tensor]) -> list[list[int]]:
    """Rows of the table in which programs look up matrices; gradients lie in layouts of their own."""
    entries, at = [], (0, 0)
    for gradient, matrix, out in zip(gradients, matrices, result, strict=True):
        rows, columns = _sides(gradient)
        inner = gradient.stride()[1:]
        spots = columns // gradient.shape[1]
        steps = (gradient.stride(0), inner[0], inner[-1] if len(inner) > 1 else 0)
        places = (matrix.data_ptr(), gradient.data_ptr(), out.data_ptr())
        entries.append([*places, rows, columns, spots, *steps, *at])
        at = at[0] + rows, at[1] + columns
    return entries


def element_of(tensors: Sequence[Tensor]) -> Any:
    """Their dtype, in Triton's words."""
    from triton import language as tl

    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[tensors[0].dtype]


# What spectral norms call.


def vectors_times(vectors: Tensor, matrices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """A row vector times each matrix, and what that gives times each turned: a power iteration but for the scale.

    Args:
        vectors: one after the other [all rows].
        matrices: masters [O, I, ..], contiguous.

    Returns:
        [all columns], [all rows].
    """
    right = scaling_times(vectors, matrices, False).sum(0)
    return right, scaling_times(right, matrices, True).sum(0)


def divide(matrices: Sequence[Tensor], divisors: Tensor, dtype: torch.dtype, *, last: bool) -> list[Tensor]:
    """Each matrix [O, I, ..] over its divisor [matrices], in a precision.

    Args:
        last: those of four axes come in channels-last.
    """
    return list(scaling_divided([matrix.contiguous() for matrix in matrices], divisors, dtype, last))


def dots_of(gradients: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    """Sums of each matrix times its gradient [matrices]."""
    gradients, matrices = [_by_spots(gradient) for gradient in gradients], [matrix.contiguous() for matrix in matrices]
    return scaling_dots(gradients, matrices).sum(1)


def through(gradients: Sequence[Tensor], left: Tensor, right: Tensor, divisors: Tensor) -> list[Tensor]:
    """Each gradient [O, I, ..] over its divisor, minus an outer product: [all rows], [all columns] one by one.

    Args:
        divisors: of each [matrices].

    Returns:
        [O, I, ..] each, contiguous, in the vectors' dtype.
    """
    return list(scaling_carried([_by_spots(gradient) for gradient in gradients], left, right, divisors))


def _by_spots(gradient: Tensor) -> Tensor:
    """In a layout in which a kernel's rows follow one another as its columns do; most are."""
    followed = gradient.ndim < 4 or gradient.stride(2) == gradient.stride(3) * gradient.shape[3]
    return gradient if followed else gradient.contiguous()


class _ByKernels(SpectralScaling):
    """Matrices that stand in no stack are multiplied, divided and carried by kernels."""

    def _iterate_alone(self, matrices: list[Tensor]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        if not (alone := [matrices[i] for i in self._alone]):
            return {}, {}
        rows, columns = vectors_times(torch.cat([self.left[i] for i in self._alone], 1)[0], alone)
        parts = rows[None].split([m.shape[1] for m in alone], 1), columns[None].split([len(m) for m in alone], 1)
        return dict(zip(self._alone, parts[0], strict=True)), dict(zip(self._alone, parts[1], strict=True))

    def divided(self, masters: Sequence[Tensor], dtypes: Sequence[torch.dtype], *, last: bool) -> dict[int, Tensor]:
        working = super().divided(masters, dtypes, last=last)
        each_sigma = self.sigmas.unbind()
        for dtype in dict.fromkeys(dtypes[i] for i in self._alone):
            places = [i for i in self._alone if dtypes[i] == dtype]
            divisors = torch.stack([each_sigma[i] for i in places])
            working |= zip(places, divide([masters[i] for i in places], divisors, dtype, last=last), strict=True)
        return working

    def _dots_alone(
        self,
        gradients: Mapping[int, Tensor],
        masters: Sequence[Tensor],
        inverse_scale: Tensor | None,
        divisors: Tensor,
    ) -> tuple[list[Tensor | None], list[Tensor]]:
        each_divisor, dots = divisors.unbind(), dict[int, Tensor]()
        for places in _of_one_dtype(gradients):
            sums = dots_of([gradients[i] for i in places], [masters[i] for i in places])
            dots |= zip(places, (sums / torch.stack([each_divisor[i] for i in places])).split(1), strict=True)
        return [None] * len(masters), [dots[i] for i in gradients]

    def _subtract_alone(
        self,
        gradients: Mapping[int, Tensor],
        left: Mapping[int, Tensor],
        carried: list[Tensor | None],
        divisors: Tensor,
    ) -> None:
        """Divide, and subtract."""
        each_divisor = divisors.unbind()
        for places in _of_one_dtype(gradients):
            us, vs = (torch.cat([vectors[i] for i in places], 1)[0] for vectors in (left, self.right))
            stacked = torch.stack([each_divisor[i] for i in places])
            for i, found in zip(places, through([gradients[i] for i in places], us, vs, stacked), strict=True):
                carried[i] = found


def _of_one_dtype(tensors: Mapping[int, Tensor]) -> list[list[int]]:
    """Places of tensors that are alike in it."""
    alike: dict[torch.dtype, list[int]] = {}
    for place, tensor in tensors.items():
        alike.setdefault(tensor.dtype, []).append(place)
    return list(alike.values())


class SpectralNorm(TritonKernel):
    """Power iterations, weights over their largest singular values, and gradients carried through these."""

    timed = (512, 1024, 3, 3)  # masters; there are some smaller ones beside it

    def spectral_scaling(self, kind: type[Kind]) -> type[Kind]:
        return cast(type[Kind], _ByKernels) if kind is SpectralScaling else super().spectral_scaling(kind)

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """Weights of several shapes, always in fp32; their gradients come in another dtype, and in channels-last."""
        shapes = [shape, shape[:2], (*shape[:2], 1, 1), (1, *shape[1:]), (shape[1], shape[0], *shape[2:])]
        weights = [some_map((*sides, 1, 1)[:4], torch.float32, torch.contiguous_format, device) for sides in shapes]
        return _divide, [weight.view(sides) for weight, sides in zip(weights, shapes, strict=True)]


def _divide(*weights: Tensor, ops: Ops) -> Tensor:
    """[O, I, ..] each -> [numbers of all]."""
    return cast(Tensor, _Divided.apply(ops, *weights))


class _Divided(torch.autograd.Function):
    """Weights over their largest singular values, one after the other, by whose gradients the kernels are tried."""

    @staticmethod
    def forward(ctx: Any, ops: Ops, *weights: Tensor) -> Tensor:
        left = [torch.linspace(1, 2, len(weight), device=weight.device)[None] for weight in weights]
        ctx.scaling = scaling = ops.spectral_scaling(SpectralScaling).of(weights, left, 1e-12)
        ctx.save_for_backward(*weights)
        found = scaling.divided(weights, [torch.float32] * len(weights), last=True)  # halves would round either way
        divided = (found.get(i, w / sigma) for i, (w, sigma) in enumerate(zip(weights, scaling.divisors, strict=True)))
        return torch.cat([weight.flatten() for weight in divided])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights = ctx.saved_tensors
        parts = [
            part.view_as(weight)
            for part, weight in zip(gradients[0].split([w.numel() for w in weights]), weights, strict=True)
        ]
        if torch.is_grad_enabled():  # which training never asks for
            return None, *(part / sigma for part, sigma in zip(parts, ctx.scaling.divisors, strict=True))
        halves = [p.half().contiguous(memory_format=torch.channels_last) if p.ndim == 4 else p for p in parts]
        return None, *ctx.scaling.carry(weights, halves)
