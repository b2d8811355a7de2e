"""Which face stands where in a side's endless stream: a pure function of the position."""

from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

from frugan.data.streams import random_order

YAW_BINS = 128
MOST_YAW = 1.2  # radians; faces turned further stand with those
SEEDS = 1 << 31

Order = NDArray[np.int64]


def yaw_bins(yaws: ArrayLike) -> Order:
    """Return in which of 128 equal ranges of -yaw over ±1.2 each face lies, int64 [N] (as DeepFaceLab does).

    Args:
        yaws: in radians, [N].
    """
    turned = -np.asarray(yaws, np.float64)
    return np.floor((turned + MOST_YAW) * (YAW_BINS / (2 * MOST_YAW))).clip(0, YAW_BINS - 1).astype(np.int64)


class FaceOrder:
    """Gives the face at every position, from `number` of them.

    Each face stands in each epoch once, in an order drawn per epoch. With yaws, epochs give way to rounds: a round
    visits every range of yaw that has faces once, in an order drawn per round, and takes the next face of each, which
    go round in an order of their own. So a face among few of its direction is seen as much oftener.

    Args:
        number: of faces, N, at least 1.
        seed: the recipe's seed.
        name: of the stream ("src"), so that two differ in their order.
        yaws: of the faces in radians, finite, [N], to show every direction as often.
    """

    def __init__(self, number: int, *, seed: int, name: str, yaws: ArrayLike | None = None) -> None:
        self._seed = seed
        self._name = name
        bins = np.zeros(number, np.int64) if yaws is None else yaw_bins(yaws)
        self._bins = [(int(which), np.flatnonzero(bins == which)) for which in np.unique(bins)]
        self._round: tuple[int, Order] | None = None  # the last one asked for
        self._epochs: dict[int, tuple[int, Order]] = {}  # of each bin, likewise

    def places(self, position: int, count: int) -> tuple[Order, Order]:
        """Return the faces from `position` on, int64 [count], and the seeds of their samples, int64 [count] below 2^31.

        Raises:
            ValueError: a negative position or count.
        """
        positions = self._positions(position, count)
        faces = np.array([self._face(p) for p in positions], np.int64)
        return faces, np.array([self._word("sample", p) % SEEDS for p in positions], np.int64)

    def partners(self, position: int, count: int, number: int) -> Order:
        """Return for each sample from `position` on one of `number` other faces, int64 [count].

        Raises:
            ValueError: a negative position or count.
        """
        return np.array([self._word("partner", p) % number for p in self._positions(position, count)], np.int64)

    def _positions(self, position: int, count: int) -> range:
        if position < 0 or count < 0:
            raise ValueError(f"position {position}, count {count}: expected both at least 0")
        return range(position, position + count)

    def _word(self, purpose: str, position: int) -> int:
        text = f"{self._seed}/{purpose}/{self._name}/{position}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")

    def _face(self, position: int) -> int:
        visit, place = divmod(position, len(self._bins))
        which, members = self._bins[self._round_order(visit)[place]]
        epoch, place = divmod(visit, len(members))  # a round visits each bin once
        return int(members[self._epoch_order(which, epoch, len(members))[place]])

    # What is known is replaced, not changed: a prefetching thread and its caller may both be here.

    def _round_order(self, number: int) -> Order:
        known = self._round
        if known is None or known[0] != number:
            known = number, random_order(f"{self._seed}/round/{self._name}/{number}", len(self._bins))
            self._round = known
        return known[1]

    def _epoch_order(self, which: int, epoch: int, faces: int) -> Order:
        known = self._epochs.get(which)
        if known is None or known[0] != epoch:
            known = epoch, random_order(f"{self._seed}/order/{self._name}/{which}/{epoch}", faces)
            self._epochs[which] = known
        return known[1]
