"""Digests of a prepared set's pictures by blocks: a byte that flips on the disk is noticed when it is first read."""

from collections.abc import Callable, Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput

BLOCK_BYTES = 1 << 20
"""About so much is read to check one picture. Less would make more digests than there are names in `set.json`, more
would slow the first batches of a large set on a slow disk."""


def pictures_per_block(resolution: int) -> int:
    """Return how many pictures of side `resolution` a block holds; the last one may hold fewer."""
    return max(1, BLOCK_BYTES // (3 * resolution**2))


def block_digest(pictures: NDArray[np.uint8]) -> str:
    """Return the digest of a block of pictures [n, 3, R, R]: 16 hexadecimal digits, enough against accidents."""
    return sha256(np.ascontiguousarray(pictures).data).hexdigest()[:16]


class Blocks:
    """Checks the blocks of a mapped set, each once in this process. Usable from several threads.

    Args:
        pictures: the map, uint8 [N, 3, R, R].
        digests: of its blocks, in order.
        damaged: is called with the number of a block that does not agree: mends the file, or raises.
    """

    def __init__(self, pictures: NDArray[np.uint8], digests: Sequence[str], damaged: Callable[[int], None]) -> None:
        self._pictures = pictures
        self._digests = digests
        self._damaged = damaged
        self._size = pictures_per_block(pictures.shape[-1])
        self._agreed = np.zeros(len(digests), np.bool_)
        self._refused: dict[int, BadInput] = {}

    def check(self, indices: NDArray[np.int64]) -> None:
        """Check every block that holds one of these pictures, int64 [n], and has not been checked.

        Raises:
            BadInput: as `damaged` does.
        """
        blocks = np.unique(indices // self._size)
        for block in blocks[~self._agreed[blocks]].tolist():
            if block in self._refused:  # what could not be mended once is not tried again
                raise self._refused[block]
            if not self._agrees(block):
                try:
                    self._damaged(block)
                except BadInput as error:
                    self._refused[block] = error
                    raise
            self._agreed[block] = True

    def _agrees(self, block: int) -> bool:
        return block_digest(self._pictures[block * self._size : (block + 1) * self._size]) == self._digests[block]
