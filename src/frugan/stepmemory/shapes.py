"""Shape, strides and dtype of what operations return, without running them.

Source: the documented behaviour of torch 2.11 to 2.13; tests/stepmemory/test_output_shapes.py holds every rule to
torch's kernels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, ...]
Spec = tuple[Shape, Shape, torch.dtype]
"""Shape, strides and dtype of a result."""


@dataclass(frozen=True)
class Scalar:
    """A result without dimensions that keeps memory for more."""

    dtype: torch.dtype
    elements: int  # that its memory is for


Specs = Spec | Scalar | None | tuple["Spec | None", ...] | list[Spec]
"""Of an operation: a tuple where it gives several, a list where it gives a list, None where it gives nothing."""


def contiguous(shape: Sequence[int]) -> Shape:
    """Strides of a tensor in rows."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def channels_last(shape: Sequence[int]) -> Shape:
    """Strides of [N, C, H, W] with the channels of a pixel beside each other."""
    _, c, h, w = shape
    return (h * w * c, 1, w * c, c)


def prefers_channels_last(x: Tensor) -> bool:
    """Whether torch takes a tensor for channels-last: by its strides alone, and not where they leave it open."""
    if x.ndim != 4:
        return False
    shape, strides, least = x.shape, x.stride(), 0
    if strides[1] == 0:
        return False
    for d in (1, 3, 2, 0):
        if shape[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return False
        least = strides[d] * max(shape[d], 1)
    return True


def as_preferred(shape: Sequence[int], like: Tensor) -> Shape:
    """Strides of a result laid out as an operand is."""
    return channels_last(shape) if prefers_channels_last(like) else contiguous(shape)


def elementwise(shape: Shape, operands: Sequence[Tensor]) -> Shape:
    """Strides of what an operation on single elements gives: dense, in the order of its operands' dimensions."""
    if all(x.shape == shape for x in operands):
        if all(x.is_contiguous() for x in operands):
            return contiguous(shape)
        if len(shape) == 4 and all(x.is_contiguous(memory_format=torch.channels_last) for x in operands):
            return channels_last(shape)
    stepped = [_broadcast_strides(x, shape) for x in operands]
    order = list(range(len(shape)))[::-1]  # the fastest first
    for i in range(1, len(order)):
        moved = i
        for j in range(i - 1, -1, -1):
            compared = _compare(order[j], order[moved], shape, stepped)
            if compared > 0:
                order[j], order[moved] = order[moved], order[j]
                moved = j
            elif compared < 0:
                break
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= max(shape[d], 1)
    return tuple(strides)


def _broadcast_strides(x: Tensor, shape: Shape) -> Shape:
    """Strides of an operand in the result's dimensions: 0 where it is repeated."""
    missing = len(shape) - x.ndim
    strides = [0 if size == 1 and shape[missing + d] != 1 else x.stride(d) for d, size in enumerate(x.shape)]
    return (*([0] * missing), *strides)


def _compare(a: int, b: int, shape: Shape, stepped: Sequence[Shape]) -> int:
    """Which of two dimensions is the faster, by the first operand that tells: below 0 the first one."""
    for strides in stepped:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return -1 if strides[a] < strides[b] else 1
        if shape[a] > shape[b]:
            return 1
    return 0


def _tensors(values: Sequence[object]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]


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
    dtype: torch.dtype | None = None
    for group in (sized, [x for x in operands if not x.ndim], [v for v in values if isinstance(v, int | float)]):
        for operand in group:
            dtype = _with(dtype, operand, sized)
    assert dtype is not None
    return dtype


def _with(so_far: torch.dtype | None, operand: Any, sized: Sequence[Tensor]) -> torch.dtype:
    if isinstance(operand, Tensor):
        if so_far is None:
            return operand.dtype
        if operand.ndim or not sized or _kind(operand.dtype) > _kind(so_far):
            return torch.promote_types(so_far, operand.dtype) if operand.ndim or not sized else operand.dtype
        return so_far
    dtype = (
        torch.bool
        if isinstance(operand, bool)
        else torch.int64
        if isinstance(operand, int)
        else torch.get_default_dtype()
    )
    return dtype if so_far is None or _kind(dtype) > _kind(so_far) else so_far


def _kind(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1


def pointwise(*args: Any, **_: Any) -> Spec:
    """Arithmetic on single elements."""
    operands = _tensors(args)
    shape = _broadcast(operands)
    return shape, elementwise(shape, operands), promoted(args)


def float_pointwise(*args: Any, **kwargs: Any) -> Spec:
    """Return the spec of an elementwise operation of which whole numbers give fractions."""
    shape, strides, dtype = pointwise(*args, **kwargs)
    return shape, strides, dtype if dtype.is_floating_point else torch.get_default_dtype()


def reduced_loss(x: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Specs:
    """Losses whose mean or sum lies in the memory that was made for all of their elements."""
    whole = pointwise(x, target)
    reduction = next((option for option in (*args, *kwargs.values()) if type(option) is int), 1)
    if reduction == 0:
        return whole
    return Scalar(whole[2], math.prod(whole[0]))


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
    whole = all(isinstance(bound, int) for bound in args)
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


def check_dtypes(*operands: Tensor | None) -> None:
    """Refuse products of several dtypes, as devices do; torch's own rules for tensors without data let them pass.

    Raises:
        RuntimeError: they are of several.
    """
    dtypes = dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in operands if x is not None)
    if len(dtypes) > 1:
        raise RuntimeError(f"a product of {' and '.join(dtypes)} tensors: expected one dtype")


def mm(a: Tensor, b: Tensor) -> Specs:
    """Products of matrices, of batches of them too."""
    check_dtypes(a, b)
    if a.shape[-1] != b.shape[-2]:
        return NotImplemented  # type: ignore[no-any-return]  # torch says what is wrong
    shape = (*a.shape[:-1], b.shape[-1])
    return shape, contiguous(shape), a.dtype


def addmm(added: Tensor, a: Tensor, b: Tensor, **__: Any) -> Specs:
    """Return the spec of a product that is added to something."""
    check_dtypes(added, a)
    return mm(a, b)


def grouped_mm(
    a: Tensor, b: Tensor, ends: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Spec:
    """Products of groups of rows with a matrix each, as mixtures of experts have; torch's own rule knows bf16 alone.

    Args:
        a: [rows, K], or [groups, rows, K].
        b: [groups, K, columns], or [K, columns].
        ends: of the groups, along the dimension that they share.
    """
    check_dtypes(a, b)
    groups = () if a.ndim != b.ndim else (len(a),) if ends is None or a.ndim == 3 else (len(ends),)
    shape = (*groups, a.shape[-2], b.shape[-1])
    return shape, contiguous(shape), out_dtype or a.dtype


def mv(a: Tensor, b: Tensor) -> Spec:
    """A matrix times a vector."""
    check_dtypes(a, b)
    return (a.shape[0],), (1,), a.dtype


def dot(a: Tensor, b: Tensor) -> Spec:
    """Two vectors."""
    check_dtypes(a, b)
    return (), (), a.dtype


def each(tensors: Sequence[Tensor], *_: Any, **__: Any) -> list[Spec]:
    """Elementwise on each of several tensors."""
    return [as_first(x) for x in tensors]


def each_norm(tensors: Sequence[Tensor], _: float = 2, dtype: torch.dtype | None = None) -> list[Spec]:
    """A norm of each."""
    return [((), (), dtype or x.dtype) for x in tensors]


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Specs:
    """Convolutions, transposed ones too."""
    check_dtypes(x, weight, bias)
    if x.shape[1] != weight.shape[0 if transposed else 1] * (1 if transposed else groups):
        return NotImplemented  # type: ignore[no-any-return]  # torch says what is wrong
    spatial = []
    for d, (size, kernel) in enumerate(zip(x.shape[2:], weight.shape[2:], strict=True)):
        reach = dilation[d % len(dilation)] * (kernel - 1)
        step, pad = stride[d % len(stride)], padding[d % len(padding)]
        if transposed:
            spatial.append((size - 1) * step - 2 * pad + reach + output_padding[d % len(output_padding)] + 1)
        else:
            spatial.append((size + 2 * pad - reach - 1) // step + 1)
    shape = (x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0], *spatial)
    return shape, _convolved_strides(shape, x, weight), x.dtype


def _convolved_strides(shape: Shape, x: Tensor, weight: Tensor) -> Shape:
    """Channels-last where either operand is, as cuDNN and oneDNN have it."""
    last = prefers_channels_last(x) or prefers_channels_last(weight)
    return channels_last(shape) if last and len(shape) == 4 else contiguous(shape)


def convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, *rest: Any) -> Specs:
    """Their gradients."""
    mask = rest[-1]
    specs: list[Spec | None] = []
    for wanted, of in zip(mask, (x, weight), strict=False):
        shape = tuple(of.shape)
        specs.append((shape, _convolved_strides(shape, x, weight), gradient.dtype) if wanted else None)
    channels = (gradient.shape[1],)
    specs.append((channels, (1,), gradient.dtype) if mask[2] else None)
    return tuple(specs)


def average_pool(x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, *_: Any) -> Spec:
    """Means over windows."""
    shape = _pooled(x, kernel, stride, padding, (1,), ceil=ceil)
    return shape, as_preferred(shape, x), x.dtype


def max_pool(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Specs:
    """Largest over windows, and where they were."""
    shape = _pooled(x, kernel, stride, padding, dilation, ceil=ceil)
    strides = as_preferred(shape, x)
    return (shape, strides, x.dtype), (shape, strides, torch.int64)


def _pooled(x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, *, ceil: bool) -> Shape:
    kernels, paddings, dilations = (_pair(size) for size in (kernel, padding, dilation))
    steps = _pair(stride) if stride else kernels
    sides = []
    for d, size in enumerate(x.shape[-2:]):
        covered = size + 2 * paddings[d] - dilations[d] * (kernels[d] - 1) - 1
        count = covered // steps[d] + 1
        if ceil and covered % steps[d] and count * steps[d] < size + paddings[d]:
            count += 1
        sides.append(count)
    return (*x.shape[:-2], *sides)


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


def as_second(gradient: Tensor, x: Tensor, *_: Any, **__: Any) -> Spec:
    """The gradient of a picture, laid out as the picture is."""
    return tuple(x.shape), as_preferred(x.shape, x), gradient.dtype


def upsampled(x: Tensor, size: Sequence[int], *_: Any) -> Spec:
    """Nearest pixels."""
    shape = (*x.shape[:2], *size)
    return shape, as_preferred(shape, x), x.dtype


def upsampled_backward(gradient: Tensor, _: Any, input_size: Sequence[int], *__: Any) -> Spec:
    """Their gradient."""
    return tuple(input_size), as_preferred(input_size, gradient), gradient.dtype


def batch_norm(x: Tensor, weight: Tensor | None, *_: Any) -> Specs:
    """Normalised, with the mean and deviation kept for backward."""
    channels, shape = (x.shape[1],), tuple(x.shape)
    kept = (channels, (1,), torch.float32 if x.dtype.itemsize < 4 else x.dtype)
    return (shape, elementwise(shape, (x,)), x.dtype), kept, kept


def batch_norm_backward(gradient: Tensor, x: Tensor, weight: Tensor | None, *rest: Any) -> Specs:
    """Its gradients."""
    mask, shape = rest[-1], tuple(x.shape)
    statistics = ((x.shape[1],), (1,), x.dtype if weight is None else weight.dtype)
    picture = (shape, elementwise(shape, (x,)), x.dtype)
    return picture if mask[0] else None, statistics if mask[1] else None, statistics if mask[2] else None


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Spec:
    """One after the other."""
    parts = [x for x in tensors if tuple(x.shape) != (0,)] or tensors[:1]
    shape = list(parts[0].shape)
    shape[dim] = sum(x.shape[dim] for x in parts)
    last = all(map(prefers_channels_last, tensors))
    return tuple(shape), channels_last(shape) if last else contiguous(shape), promoted(tensors)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Spec:
    """One beside the other."""
    shape = list(tensors[0].shape)
    shape.insert(dim % (len(shape) + 1), len(tensors))
    return tuple(shape), contiguous(shape), promoted(tensors)


def padded(x: Tensor, pad: Sequence[int], *_: Any) -> Spec:
    """With a margin."""
    shape = list(x.shape)
    for d in range(len(pad) // 2):
        shape[-1 - d] += pad[2 * d] + pad[2 * d + 1]
    return tuple(shape), as_preferred(shape, x), x.dtype


def embedding(weight: Tensor, indices: Tensor, *_: Any) -> Spec:
    """Rows of a table."""
    shape = (*indices.shape, *weight.shape[1:])
    return shape, contiguous(shape), weight.dtype


def indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """Rows, columns and so on by number, in one dimension of a tensor in rows; all else is torch's to say."""
    chosen = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(chosen) != 1 or not x.is_contiguous() or chosen[0][1].dtype != torch.int64:
        return NotImplemented
    ((d, index),) = chosen
    shape = (*x.shape[:d], *index.shape, *x.shape[d + 1 :])
    return shape, contiguous(shape), x.dtype


def embedding_backward(gradient: Tensor, _: Tensor, rows: int, *__: Any) -> Spec:
    """Gradient of the table."""
    shape = (rows, gradient.shape[-1])
    return shape, contiguous(shape), gradient.dtype


def put_back(gradient: Tensor, sizes: Sequence[int], *_: Any) -> Spec:
    """Gradient of a part, in the whole."""
    return tuple(sizes), contiguous(sizes), gradient.dtype


def softmax(x: Tensor, _: int, half_to_float: bool) -> Spec:
    """Shares."""
    return tuple(x.shape), contiguous(x.shape), torch.float32 if half_to_float else x.dtype


def softmax_backward(gradient: Tensor, _: Tensor, __: int, dtype: torch.dtype) -> Spec:
    """Their gradient."""
    return tuple(gradient.shape), contiguous(gradient.shape), dtype


def attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Specs:
    """Fused attention, with its sums kept for backward."""
    check_dtypes(query, key, value)
    shape = tuple(query.shape)
    batch, heads, length = shape[:3]
    sums = ((batch, heads, length), (length * heads, 1, heads), torch.float32)
    return (shape, elementwise(shape, (query,)), query.dtype), sums


def attention_backward(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> Specs:
    """Its gradients."""

    def spec(x: Tensor) -> Spec:
        batch, heads, length, width = x.shape
        return (batch, heads, length, width), (length * heads * width, width, heads * width, 1), x.dtype

    return spec(query), spec(key), spec(value)
