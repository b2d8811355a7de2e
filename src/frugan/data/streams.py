"""Named streams of random numbers: adding one consumer does not shift another."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


def random_bits(stream: str, count: int) -> NDArray[np.uint64]:
    """Return the first `count` 64-bit words of the stream of that name, uint64 [count].

    They are PCG64's own words: numpy keeps those the same in all versions, which it does not promise for shuffling
    (NEP 19), so that a run resumed under a newer numpy sees the same order.
    """
    seed = int.from_bytes(blake2b(stream.encode(), digest_size=32).digest(), "big")
    return np.random.PCG64(seed).random_raw(count)


def random_order(stream: str, count: int) -> NDArray[np.int64]:
    """Return a permutation of 0 … count - 1 drawn from the stream of that name, int64 [count]."""
    return np.argsort(random_bits(stream, count), kind="stable").astype(np.int64, copy=False)
