"""What operations give, by shape, strides and dtype: the rules of torch's kernels, for the operations that steps are made of.

Torch has such rules of its own ("meta" kernels), for every operation; most are written in Python and take 50 to 1,000
times as long as these, and the first one that is called imports a compiler. What is not listed here is asked of them.

Source: the documented behaviour of torch 2.11 to 2.13; tests/memory/test_output_shapes.py holds every rule to torch's own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

Shape = tuple[int, ...]
Spec = tuple[Shape, Shape, torch.dtype]
"""Shape, strides and dtype of a result."""
Specs = Spec | None | tuple["Spec | None", ...] | list[Spec]
"""Of an operation: a tuple where it gives several, a list where it gives a list, None where it gives nothing."""
Rule = Callable[..., Specs]
"""Takes the operation's own arguments; gives NotImplemented where only torch can tell."""


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
    own = [0 if size == 1 and shape[missing + d] != 1 else x.stride(d) for d, size in enumerate(x.shape)]
    return (*([0] * missing), *own)


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
                    raise RuntimeError(f"shapes {sorted(shapes)} do not broadcast: {out[d]} and {size} at dimension {d}")
                out[d] = size
    return tuple(out)


def _promoted(values: Sequence[Any]) -> torch.dtype:
    """Of tensors and numbers together; those without dimensions count less, as in torch."""
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
    dtype = torch.bool if isinstance(each, bool) else torch.int64 if isinstance(each, int) else torch.get_default_dtype()
    return dtype if found is None or _kind(dtype) > _kind(found) else found


def _kind(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1


def _pointwise(*args: Any, **_: Any) -> Spec:
    operands = _tensors(args)
    shape = _broadcast(operands)
    return shape, elementwise(shape, operands), _promoted(args)


def _float_pointwise(*args: Any, **kwargs: Any) -> Spec:
    shape, strides, dtype = _pointwise(*args, **kwargs)
    return shape, strides, dtype if dtype.is_floating_point else torch.get_default_dtype()


def _compared(*args: Any, **_: Any) -> Spec:
    operands = _tensors(args)
    shape = _broadcast(operands)
    return shape, elementwise(shape, operands), torch.bool


def _second_first(gradient: Tensor, x: Tensor, *_: Any) -> Spec:
    """Elementwise, laid out as its second operand where the two differ."""
    shape = _broadcast((gradient, x))
    return shape, elementwise(shape, (x, gradient)), _promoted((gradient, x))


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Spec:
    shape = _broadcast((condition, a, b))
    return shape, elementwise(shape, (condition, a, b)), _promoted((a, b))


def _as_first(x: Tensor, *_: Any, **__: Any) -> Spec:
    """Elementwise, of the shape and dtype of the first operand."""
    return tuple(x.shape), elementwise(tuple(x.shape), (x,)), x.dtype


def _like(x: Tensor, *_: Any, dtype: torch.dtype | None = None, memory_format: Any = None, **__: Any) -> Spec:
    shape = tuple(x.shape)
    if memory_format is torch.channels_last:
        strides = channels_last(shape)
    elif memory_format is torch.contiguous_format:
        strides = contiguous(shape)
    else:
        strides = elementwise(shape, (x,))
    return shape, strides, dtype or x.dtype


def _new(x: Tensor, size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Spec:
    return tuple(size), contiguous(size), dtype or x.dtype


def _new_strided(x: Tensor, size: Shape, stride: Shape, *, dtype: torch.dtype | None = None, **_: Any) -> Spec:
    return tuple(size), tuple(stride), dtype or x.dtype


def _made(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, memory_format: Any = None, **__: Any) -> Spec:
    last = memory_format is torch.channels_last
    return tuple(size), channels_last(size) if last else contiguous(size), dtype or torch.get_default_dtype()


def _made_strided(size: Shape, stride: Shape, *, dtype: torch.dtype | None = None, **_: Any) -> Spec:
    return tuple(size), tuple(stride), dtype or torch.get_default_dtype()


def _full(size: Sequence[int], value: float, *, dtype: torch.dtype | None = None, **_: Any) -> Spec:
    return tuple(size), contiguous(size), dtype or _with(None, value, ())


def _number(value: float, *, dtype: torch.dtype | None = None, **_: Any) -> Spec:
    return (), (), dtype or _with(None, value, ())


def _integers(_: int, size: Sequence[int], *__: Any, dtype: torch.dtype | None = None, **___: Any) -> Spec:
    return tuple(size), contiguous(size), dtype or torch.int64


def _integers_from(_: int, __: int, size: Sequence[int], *___: Any, dtype: torch.dtype | None = None, **____: Any) -> Spec:
    return tuple(size), contiguous(size), dtype or torch.int64


def _range(*args: Any, dtype: torch.dtype | None = None, **_: Any) -> Spec:
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


def _sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Spec:
    shape = _reduced(x, dim, keepdim=keepdim)
    return shape, contiguous(shape), dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)


def _extreme(x: Tensor, dim: Any = None, keepdim: bool = False) -> Spec:
    shape = _reduced(x, dim, keepdim=keepdim)
    return shape, contiguous(shape), x.dtype


def _variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Spec:
    shape = _reduced(x, dim, keepdim=keepdim)
    return shape, contiguous(shape), x.dtype


def _judged(x: Tensor, dim: Any = None, keepdim: bool = False) -> Spec:
    shape = _reduced(x, dim, keepdim=keepdim)
    return shape, contiguous(shape), torch.bool


def _norm(x: Tensor, _: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Spec:
    shape = _reduced(x, dim, keepdim=keepdim)
    return shape, contiguous(shape), dtype or x.dtype


def _counted(x: Tensor, dim: Any = None) -> Spec:
    shape = _reduced(x, dim, keepdim=False)
    return shape, contiguous(shape), torch.int64


def _mm(a: Tensor, b: Tensor) -> Spec:
    shape = (*a.shape[:-1], b.shape[-1])
    return shape, contiguous(shape), a.dtype


def _addmm(_: Tensor, a: Tensor, b: Tensor, **__: Any) -> Spec:
    return _mm(a, b)


def _mv(a: Tensor, _: Tensor) -> Spec:
    return (a.shape[0],), (1,), a.dtype


def _dot(a: Tensor, _: Tensor) -> Spec:
    return (), (), a.dtype


def _convolution(
    x: Tensor,
    weight: Tensor,
    _: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Spec:
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


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, *rest: Any) -> Specs:
    mask = rest[-1]
    found: list[Spec | None] = []
    for wanted, of in zip(mask, (x, weight), strict=False):
        shape = tuple(of.shape)
        found.append((shape, _convolved_strides(shape, x, weight), gradient.dtype) if wanted else None)
    channels = (gradient.shape[1],)
    found.append((channels, (1,), gradient.dtype) if mask[2] else None)
    return tuple(found)


def _average_pool(x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, *_: Any) -> Spec:
    shape = _pooled(x, kernel, stride, padding, (1,), ceil=ceil)
    return shape, as_preferred(shape, x), x.dtype


def _max_pool(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Specs:
    shape = _pooled(x, kernel, stride, padding, dilation, ceil=ceil)
    strides = as_preferred(shape, x)
    return (shape, strides, x.dtype), (shape, strides, torch.int64)


def _pooled(x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, *, ceil: bool) -> Shape:
    kernels, paddings, dilations = (_pair(each) for each in (kernel, padding, dilation))
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


def _as_second(gradient: Tensor, x: Tensor, *_: Any, **__: Any) -> Spec:
    """The gradient of a picture, laid out as the picture is."""
    return tuple(x.shape), as_preferred(x.shape, x), gradient.dtype


def _upsampled(x: Tensor, size: Sequence[int], *_: Any) -> Spec:
    shape = (*x.shape[:2], *size)
    return shape, as_preferred(shape, x), x.dtype


def _upsampled_backward(gradient: Tensor, _: Any, input_size: Sequence[int], *__: Any) -> Spec:
    return tuple(input_size), as_preferred(input_size, gradient), gradient.dtype


def _batch_norm(x: Tensor, weight: Tensor | None, *_: Any) -> Specs:
    channels, shape = (x.shape[1],), tuple(x.shape)
    kept = (channels, (1,), torch.float32 if x.dtype.itemsize < 4 else x.dtype)
    return (shape, elementwise(shape, (x,)), x.dtype), kept, kept


def _batch_norm_backward(gradient: Tensor, x: Tensor, weight: Tensor | None, *rest: Any) -> Specs:
    mask, shape = rest[-1], tuple(x.shape)
    own = ((x.shape[1],), (1,), x.dtype if weight is None else weight.dtype)
    picture = (shape, elementwise(shape, (x,)), x.dtype)
    return picture if mask[0] else None, own if mask[1] else None, own if mask[2] else None


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Spec:
    parts = [x for x in tensors if tuple(x.shape) != (0,)] or tensors[:1]
    shape = list(parts[0].shape)
    shape[dim] = sum(x.shape[dim] for x in parts)
    last = all(map(prefers_channels_last, tensors))
    return tuple(shape), channels_last(shape) if last else contiguous(shape), _promoted(tensors)


def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Spec:
    shape = list(tensors[0].shape)
    shape.insert(dim % (len(shape) + 1), len(tensors))
    return tuple(shape), contiguous(shape), _promoted(tensors)


def _padded(x: Tensor, pad: Sequence[int], *_: Any) -> Spec:
    shape = list(x.shape)
    for d in range(len(pad) // 2):
        shape[-1 - d] += pad[2 * d] + pad[2 * d + 1]
    return tuple(shape), as_preferred(shape, x), x.dtype


def _embedding(weight: Tensor, indices: Tensor, *_: Any) -> Spec:
    shape = (*indices.shape, *weight.shape[1:])
    return shape, contiguous(shape), weight.dtype


def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """Rows, columns and so on by number, in one dimension of a tensor in rows; all else is torch's to say."""
    chosen = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(chosen) != 1 or not x.is_contiguous() or chosen[0][1].dtype != torch.int64:
        return NotImplemented
    ((d, index),) = chosen
    shape = (*x.shape[:d], *index.shape, *x.shape[d + 1 :])
    return shape, contiguous(shape), x.dtype


def _embedding_backward(gradient: Tensor, _: Tensor, rows: int, *__: Any) -> Spec:
    shape = (rows, gradient.shape[-1])
    return shape, contiguous(shape), gradient.dtype


def _put_back(gradient: Tensor, sizes: Sequence[int], *_: Any) -> Spec:
    return tuple(sizes), contiguous(sizes), gradient.dtype


def _softmax(x: Tensor, _: int, half_to_float: bool) -> Spec:
    return tuple(x.shape), contiguous(x.shape), torch.float32 if half_to_float else x.dtype


def _softmax_backward(gradient: Tensor, _: Tensor, __: int, dtype: torch.dtype) -> Spec:
    return tuple(gradient.shape), contiguous(gradient.shape), dtype


def _attention(query: Tensor, *_: Any, **__: Any) -> Specs:
    shape = tuple(query.shape)
    batch, heads, length = shape[:3]
    sums = ((batch, heads, length), (length * heads, 1, heads), torch.float32)
    return (shape, elementwise(shape, (query,)), query.dtype), sums


def _attention_backward(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> Specs:
    def spec(x: Tensor) -> Spec:
        batch, heads, length, width = x.shape
        return (batch, heads, length, width), (length * heads * width, width, heads * width, 1), x.dtype

    return spec(query), spec(key), spec(value)


def _each(tensors: Sequence[Tensor], *_: Any, **__: Any) -> list[Spec]:
    return [_as_first(x) for x in tensors]


def _each_norm(tensors: Sequence[Tensor], _: float = 2, dtype: torch.dtype | None = None) -> list[Spec]:
    return [((), (), dtype or x.dtype) for x in tensors]


def _table() -> dict[Any, Rule]:
    """Operation -> its rule."""
    of: dict[Rule, tuple[Any, ...]] = {
        _pointwise: (
            aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar, aten.mul.Tensor,
            aten.mul.Scalar, aten.addcmul.default, aten.addcdiv.default, aten.maximum.default, aten.minimum.default,
            aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor,
            aten.bitwise_xor.Tensor, aten.leaky_relu_backward.default,
            aten.softplus_backward.default, aten.sigmoid_backward.default, aten.tanh_backward.default,
            aten.lerp.Scalar, aten.lerp.Tensor, aten.remainder.Scalar, aten.remainder.Tensor,
        ),
        _float_pointwise: (
            aten.div.Tensor, aten.div.Scalar, aten.sqrt.default, aten.rsqrt.default, aten.exp.default, aten.log.default,
            aten.sin.default, aten.cos.default, aten.tanh.default, aten.sigmoid.default, aten.reciprocal.default,
        ),
        _compared: (
            aten.ge.Scalar, aten.gt.Scalar, aten.le.Scalar, aten.lt.Scalar, aten.eq.Scalar, aten.ne.Scalar,
            aten.ge.Tensor, aten.gt.Tensor, aten.le.Tensor, aten.lt.Tensor, aten.eq.Tensor, aten.ne.Tensor,
            aten.logical_and.default, aten.logical_or.default, aten.logical_not.default, aten.isfinite.default,
        ),
        _second_first: (aten.threshold_backward.default,),
        _where: (aten.where.self,),
        _as_first: (
            aten.relu.default, aten.leaky_relu.default, aten.neg.default, aten.abs.default, aten.sgn.default,
            aten.sign.default, aten.floor.default, aten.ceil.default, aten.round.default, aten.clamp.default,
            aten.clamp_min.default, aten.clamp_max.default, aten.softplus.default, aten.bitwise_not.default,
            aten.flip.default,
        ),
        _like: (
            aten.ones_like.default, aten.zeros_like.default, aten.empty_like.default, aten.full_like.default,
            aten.rand_like.default, aten.randn_like.default,
        ),
        _new: (aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default),
        _new_strided: (aten.new_empty_strided.default,),
        _made: (
            aten.empty.memory_format, aten.zeros.default, aten.ones.default, aten.rand.default, aten.rand.generator,
            aten.randn.default, aten.randn.generator,
        ),
        _made_strided: (aten.empty_strided.default,),
        _full: (aten.full.default,),
        _number: (aten.scalar_tensor.default,),
        _integers: (aten.randint.default, aten.randint.generator),
        _integers_from: (aten.randint.low, aten.randint.low_generator),
        _range: (aten.arange.default, aten.arange.start, aten.arange.start_step),
        _sum: (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim),
        _extreme: (aten.amax.default, aten.amin.default),
        _variance: (aten.var.correction,),
        _judged: (aten.all.default, aten.any.default, aten.all.dim, aten.any.dim),
        _norm: (aten.linalg_vector_norm.default,),
        _counted: (aten.count_nonzero.default,),
        _mm: (aten.mm.default, aten.bmm.default),
        _addmm: (aten.addmm.default, aten.baddbmm.default),
        _mv: (aten.mv.default,),
        _dot: (aten.dot.default,),
        _convolution: (aten.convolution.default,),
        _convolution_backward: (aten.convolution_backward.default,),
        _average_pool: (aten.avg_pool2d.default,),
        _max_pool: (aten.max_pool2d_with_indices.default,),
        _as_second: (aten.avg_pool2d_backward.default, aten.max_pool2d_with_indices_backward.default),
        _upsampled: (aten.upsample_nearest2d.default,),
        _upsampled_backward: (aten.upsample_nearest2d_backward.default,),
        _batch_norm: (aten.native_batch_norm.default,),
        _batch_norm_backward: (aten.native_batch_norm_backward.default,),
        _cat: (aten.cat.default,),
        _stack: (aten.stack.default,),
        _padded: (aten.constant_pad_nd.default,),
        _embedding: (aten.embedding.default,),
        _indexed: (aten.index.Tensor,),
        _embedding_backward: (aten.embedding_dense_backward.default,),
        _put_back: (aten.slice_backward.default, aten.select_backward.default),
        _softmax: (aten._softmax.default,),
        _softmax_backward: (aten._softmax_backward_data.default,),
        _attention: (aten._scaled_dot_product_flash_attention_for_cpu.default,),
        _attention_backward: (aten._scaled_dot_product_flash_attention_for_cpu_backward.default,),
        _each: (aten._foreach_mul.Scalar, aten._foreach_mul.List, aten._foreach_add.Scalar, aten._foreach_add.List),
        _each_norm: (aten._foreach_norm.Scalar,),
    }  # fmt: skip
    return {operation: rule for rule, operations in of.items() for operation in operations}


RULES: Mapping[Any, Rule] = MappingProxyType(_table())
"""Operation -> what it gives."""
