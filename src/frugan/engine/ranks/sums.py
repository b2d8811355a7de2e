"""Sums over ranks of many tensors, in few messages: what is small travels together, what is large by itself."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

BUCKET_BYTES = 64 * 2**20
"""Tensors are copied together up to so much: on a card it is memory besides the gradients. What is larger travels from
where it lies."""


@torch.no_grad()
def add_up(tensors: Sequence[Tensor], all_reduce: Callable[[Tensor], None], bucket_bytes: int = BUCKET_BYTES) -> int:
    """Replace each tensor by its sum over all ranks, in place.

    Args:
        tensors: floating point, on one device; of the same shapes, layouts and order on every rank.
        all_reduce: replaces a one-dimensional tensor by its sum over all ranks.

    Returns:
        Bytes that were added up.
    """
    flat = [memory_of(tensor) for tensor in tensors]
    for bucket in _buckets(flat, bucket_bytes):
        if len(bucket) == 1:
            all_reduce(bucket[0])
            continue
        together = torch.cat(bucket)
        all_reduce(together)
        torch._foreach_copy_(bucket, list(together.split([one.numel() for one in bucket])))
    return sum(one.nbytes for one in flat)


def memory_of(tensor: Tensor) -> Tensor:
    """A tensor's elements as they lie in memory [numel].

    Raises:
        ValueError: they lie with gaps, or on top of each other.
    """
    if tensor.is_contiguous():
        return tensor.view(-1)
    by_stride = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in by_stride:
        if size != 1 and stride != expected:
            raise ValueError(f"a tensor {tuple(tensor.shape)} with strides {tensor.stride()} does not lie densely")
        expected *= size
    return tensor.as_strided((tensor.numel(),), (1,))


def _buckets(flat: Sequence[Tensor], bucket_bytes: int) -> Iterator[list[Tensor]]:
    for dtype in dict.fromkeys(one.dtype for one in flat):
        bucket: list[Tensor] = []
        room = bucket_bytes
        for one in flat:
            if one.dtype != dtype:
                continue
            if one.nbytes >= bucket_bytes:
                yield [one]
                continue
            if one.nbytes > room:
                yield bucket
                bucket, room = [], bucket_bytes
            bucket.append(one)
            room -= one.nbytes
        if bucket:
            yield bucket
