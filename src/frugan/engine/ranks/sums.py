"""Sums over ranks of many tensors, in few messages: what is small travels together, what is large by itself."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from frugan.engine.layout import memory_of

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
