"""How torch lays out what an operation gives: strides, by those of its operands.

Source: the documented behaviour of torch 2.11 to 2.13; tests/memory/test_output_shapes.py holds it to torch's kernels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

Shape = tuple[int, ...]
Spec = tuple[Shape, Shape, torch.dtype]
"""Shape, strides and dtype of a result."""
Specs = Spec | None | tuple["Spec | None", ...] | list[Spec]
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
