"""What operations on single elements give, and what makes or reduces tensors: shape, strides and dtype.

Source: the documented behaviour of torch 2.11 to 2.13; tests/memory/test_output_shapes.py holds every rule to torch's
own kernels.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from frugan.memory.strides import Shape, Spec, channels_last, contiguous, elementwise


def _tensors(values: Sequence[object]) -> list[Tensor]:
    return [each for each in values if isinstance(each, Tensor)]


def _broadcast(operands: Sequence[Tensor]) -> Shape:
    shapes = {tuple(x.shape) for x in operands}
    if len(shapes) == 1:
        return shapes.pop()
    ndim = max(map(len, shapes))
    out = [1] * ndim
    for shape in shapes:
        for d, size in enumerate(shape, ndim - len(shape)):
            if size != 1:
                if out[d] not in (1, size):
                    raise RuntimeError(
                        f"shapes {sorted(shapes)} do not broadcast: {out[d]} and {size} at dimension {d}"
                    )
                out[d] = size
    return tuple(out)


def promoted(values: Sequence[Any]) -> torch.dtype:
    """Dtype of tensors and numbers together; those without dimensions count less, as in torch."""
    operands = _tensors(values)
    if len({x.dtype for x in operands}) == 1 and operands[0].dtype.is_floating_point:
        return operands[0].dtype
    sized = [x for x in operands if x.ndim]
    found: torch.dtype | None = None
    for group in (sized, [x for x in operands if not x.ndim], [v for v in values if isinstance(v, int | float)]):
        for each in group:
            found = _with(found, each, sized)
    assert found is not None
    return found


def _with(found: torch.dtype | None, each: Any, sized: Sequence[Tensor]) -> torch.dtype:
    if isinstance(each, Tensor):
        if found is None:
            return each.dtype
        if each.ndim or not sized or _kind(each.dtype) > _kind(found):
            return torch.promote_types(found, each.dtype) if each.ndim or not sized else each.dtype
        return found
    dtype = (
        torch.bool if isinstance(each, bool) else torch.int64 if isinstance(each, int) else torch.get_default_dtype()
    )
    return dtype if found is None or _kind(dtype) > _kind(found) else found


def _kind(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1


def pointwise(*args: Any, **_: Any) -> Spec:
    """Arithmetic on single elements."""
    operands = _tensors(args)
    shape = _broadcast(operands)
    return shape, elementwise(shape, operands), promoted(args)


def float_pointwise(*args: Any, **kwargs: Any) -> Spec:
    """The same where whole numbers give fractions."""
    shape, strides, dtype = pointwise(*args, **kwargs)
    return shape, strides, dtype if dtype.is_floating_point else torch.get_default_dtype()


def compared(*args: Any, **_: Any) -> Spec:
    """Comparisons and logic."""
    operands = _tensors(args)
    shape = _broadcast(operands)
    return shape, elementwise(shape, operands), torch.bool


def second_first(gradient: Tensor, x: Tensor, *_: Any) -> Spec:
    """Elementwise, laid out as its second operand where the two differ."""
    shape = _broadcast((gradient, x))
    return shape, elementwise(shape, (x, gradient)), promoted((gradient, x))


def where(condition: Tensor, a: Tensor, b: Tensor) -> Spec:
    """One of two, by a condition."""
    shape = _broadcast((condition, a, b))
    return shape, elementwise(shape, (condition, a, b)), promoted((a, b))


def as_first(x: Tensor, *_: Any, **__: Any) -> Spec:
    """Elementwise, of the shape and dtype of the first operand."""
    return tuple(x.shape), elementwise(tuple(x.shape), (x,)), x.dtype


def like(x: Tensor, *_: Any, dtype: torch.dtype | None = None, memory_format: Any = None, **__: Any) -> Spec:
    """Made like an operand, unless said otherwise."""
    shape = tuple(x.shape)
    if memory_format is torch.channels_last:
        strides = channels_last(shape)
    elif memory_format is torch.contiguous_format:
        strides = contiguous(shape)
    else:
        strides = elementwise(shape, (x,))
    return shape, strides, dtype or x.dtype


def new(x: Tensor, size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Spec:
    """Made in rows, of an operand's dtype."""
    return tuple(size), contiguous(size), dtype or x.dtype


def new_strided(x: Tensor, size: Shape, stride: Shape, *, dtype: torch.dtype | None = None, **_: Any) -> Spec:
    """Made as said, of an operand's dtype."""
    return tuple(size), tuple(stride), dtype or x.dtype


def made(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, memory_format: Any = None, **__: Any) -> Spec:
    """Made of a size."""
    last = memory_format is torch.channels_last
    return tuple(size), channels_last(size) if last else contiguous(size), dtype or torch.get_default_dtype()


def made_strided(size: Shape, stride: Shape, *, dtype: torch.dtype | None = None, **_: Any) -> Spec:
    """Made of a size and strides."""
    return tuple(size), tuple(stride), dtype or torch.get_default_dtype()


def full(size: Sequence[int], value: float, *, dtype: torch.dtype | None = None, **_: Any) -> Spec:
    """Filled with a number."""
    return tuple(size), contiguous(size), dtype or _with(None, value, ())


def number(value: float, *, dtype: torch.dtype | None = None, **_: Any) -> Spec:
    """A number as a tensor."""
    return (), (), dtype or _with(None, value, ())


def integers(_: int, size: Sequence[int], *__: Any, dtype: torch.dtype | None = None, **___: Any) -> Spec:
    """Random whole numbers below a limit."""
    return tuple(size), contiguous(size), dtype or torch.int64


def integers_from(
    _: int, __: int, size: Sequence[int], *___: Any, dtype: torch.dtype | None = None, **____: Any
) -> Spec:
    """Random whole numbers between limits."""
    return tuple(size), contiguous(size), dtype or torch.int64


def range_(*args: Any, dtype: torch.dtype | None = None, **_: Any) -> Spec:
    """Numbers in a row."""
    start, end, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    count = math.ceil((end - start) / step)
    whole = all(isinstance(each, int) for each in args)
    return (count,), (1,), dtype or (torch.int64 if whole else torch.get_default_dtype())


def _reduced(x: Tensor, dim: Sequence[int] | int | None, *, keepdim: bool) -> Shape:
    dims = range(x.ndim) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    gone = {d % max(x.ndim, 1) for d in dims}
    if keepdim:
        return tuple(1 if d in gone else size for d, size in enumerate(x.shape))
    return tuple(size for d, size in enumerate(x.shape) if d not in gone)


def sum_(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Spec:
    """Sums and means."""
    shape = _reduced(x, dim, keepdim=keepdim)
    return shape, contiguous(shape), dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)


def extreme(x: Tensor, dim: Any = None, keepdim: bool = False) -> Spec:
    """Largest and smallest."""
    shape = _reduced(x, dim, keepdim=keepdim)
    return shape, contiguous(shape), x.dtype


def variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Spec:
    """Variances."""
    shape = _reduced(x, dim, keepdim=keepdim)
    return shape, contiguous(shape), x.dtype


def judged(x: Tensor, dim: Any = None, keepdim: bool = False) -> Spec:
    """Whether all or any are true."""
    shape = _reduced(x, dim, keepdim=keepdim)
    return shape, contiguous(shape), torch.bool


def norm(x: Tensor, _: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Spec:
    """Norms."""
    shape = _reduced(x, dim, keepdim=keepdim)
    return shape, contiguous(shape), dtype or x.dtype


def counted(x: Tensor, dim: Any = None) -> Spec:
    """How many are not zero."""
    shape = _reduced(x, dim, keepdim=False)
    return shape, contiguous(shape), torch.int64


def mm(a: Tensor, b: Tensor) -> Spec:
    """Products of matrices, of batches of them too."""
    shape = (*a.shape[:-1], b.shape[-1])
    return shape, contiguous(shape), a.dtype


def addmm(_: Tensor, a: Tensor, b: Tensor, **__: Any) -> Spec:
    """The same added to something."""
    return mm(a, b)


def mv(a: Tensor, _: Tensor) -> Spec:
    """A matrix times a vector."""
    return (a.shape[0],), (1,), a.dtype


def dot(a: Tensor, _: Tensor) -> Spec:
    """Two vectors."""
    return (), (), a.dtype


def each(tensors: Sequence[Tensor], *_: Any, **__: Any) -> list[Spec]:
    """Elementwise on each of several tensors."""
    return [as_first(x) for x in tensors]


def each_norm(tensors: Sequence[Tensor], _: float = 2, dtype: torch.dtype | None = None) -> list[Spec]:
    """A norm of each."""
    return [((), (), dtype or x.dtype) for x in tensors]
