"""What the operations of layers give, products, pools, norms and attention: shape, strides and dtype.

Source: the documented behaviour of torch 2.11 to 2.13; tests/memory/test_output_shapes.py holds every rule to torch's
own kernels.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from frugan.memory.element_shapes import promoted
from frugan.memory.strides import (
    Shape,
    Spec,
    Specs,
    as_preferred,
    channels_last,
    contiguous,
    elementwise,
    prefers_channels_last,
)


def convolution(
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
    """Convolutions, transposed ones too."""
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
    found: list[Spec | None] = []
    for wanted, of in zip(mask, (x, weight), strict=False):
        shape = tuple(of.shape)
        found.append((shape, _convolved_strides(shape, x, weight), gradient.dtype) if wanted else None)
    channels = (gradient.shape[1],)
    found.append((channels, (1,), gradient.dtype) if mask[2] else None)
    return tuple(found)


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
    own = ((x.shape[1],), (1,), x.dtype if weight is None else weight.dtype)
    picture = (shape, elementwise(shape, (x,)), x.dtype)
    return picture if mask[0] else None, own if mask[1] else None, own if mask[2] else None


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


def attention(query: Tensor, *_: Any, **__: Any) -> Specs:
    """Fused attention, with its sums kept for backward."""
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
