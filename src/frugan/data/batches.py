"""Batches as a pure function of position: to resume, a counter is enough. The next ones are read ahead."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from itertools import count as counting
from types import TracebackType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.contract.data import Reader
from frugan.data.formats.picture_set import PictureSet
from frugan.data.formats.source import refuse_many_lost
from frugan.errors import BadInput
from frugan.wording import first_line

# Named streams of random numbers: adding one consumer does not shift another.


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


# Batches of pictures.


class Batches:
    """An endless stream of the pictures of a set, each exactly once per epoch, in an order drawn per epoch.

    Position p counts pictures since the start of training: epoch p // N, place p % N in that epoch's permutation. What
    stands at a position depends on the set, `seed` and `name` alone, so any cutting into batches, micro-batches or
    ranks gives the same stream, and a batch may span epochs.

    Args:
        picture_set: N pictures.
        seed: the recipe's seed.
        name: of the data source ("images"), so that two sources differ in their order.
        flip: mirror about half of the pictures left to right, drawn anew each epoch.

    Raises:
        BadInput: the set is empty.
    """

    def __init__(self, picture_set: PictureSet, *, seed: int, name: str, flip: bool = False) -> None:
        if len(picture_set) == 0:
            raise BadInput(f"the data source {name!r} holds no pictures; expected at least one")
        self._set = picture_set
        self._seed = seed
        self._name = name
        self._flip = flip
        self._lost: dict[str, str] = {}
        self._epochs: dict[int, tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}

    def take(self, position: int, count: int) -> dict[str, torch.Tensor]:
        """Return the `count` pictures from `position` on.

        Args:
            position: of the first picture, counted since the start of training, from 0.
            count: how many.

        Returns:
            "pictures" uint8 [count, C, R, R], 0 to 255, C = `channels` of the set, and "labels" int64 [count].

        Raises:
            ValueError: a negative position or count.
            BadInput: as `PictureSet.__getitem__`.
        """
        indices, mirrored = self.places(position, count)
        indices, pictures = self._readable(indices)  # [count], [count, C, R, R]
        pictures[mirrored] = pictures[mirrored, :, :, ::-1]
        labels = self._set.labels[indices]  # [count]
        return {"pictures": torch.from_numpy(np.asarray(pictures)), "labels": torch.from_numpy(labels)}

    @property
    def passed_over(self) -> Mapping[str, str]:
        """Pictures that cannot be read any more -> why; others stand in their places."""
        return self._lost

    def _readable(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Read pictures [n]; those that cannot be read any more give way to the next that can, with its label.

        Raises:
            BadInput: too many cannot.
        """
        while True:
            there = np.array([self._standing_in(int(index)) for index in indices], np.int64) if self._lost else indices
            try:
                return there, self._set[there]  # a copy out of the memory map
            except BadInput:
                known = len(self._lost)
                for index in there:
                    self._look_at(int(index))
                if len(self._lost) == known:
                    raise

    def _standing_in(self, index: int) -> int:
        """The picture itself, or the next one that is not known to be lost."""
        while f"picture {index}" in self._lost:
            index = (index + 1) % len(self._set)
        return index

    def _look_at(self, index: int) -> None:
        try:
            self._set[np.array([index])]
        except BadInput as error:
            self._lost[f"picture {index}"] = str(error)
            refuse_many_lost(self._lost, len(self._set))

    def places(self, position: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return which pictures of the set `take` gives, int64 [count], and which of them mirrored, bool [count].

        Raises:
            ValueError: a negative position or count.
        """
        if position < 0 or count < 0:
            raise ValueError(f"position {position}, count {count}: expected both at least 0")
        indices = np.empty(count, np.int64)
        mirrored = np.empty(count, np.bool_)
        done = 0
        while done < count:
            epoch, start = divmod(position + done, len(self._set))
            order, flips = self._epoch(epoch)
            part = min(count - done, len(order) - start)
            indices[done : done + part] = order[start : start + part]
            mirrored[done : done + part] = flips[start : start + part]
            done += part
        return indices, mirrored

    def _epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return one epoch's order, int64 [N], and flips, bool [N]; the last two epochs asked for are kept."""
        known = self._epochs.get(epoch)
        if known is not None:
            return known
        number = len(self._set)
        order = random_order(f"{self._seed}/order/{self._name}/{epoch}", number)
        if self._flip:
            flips = (random_bits(f"{self._seed}/flip/{self._name}/{epoch}", number) >> np.uint64(63)).astype(np.bool_)
        else:
            flips = np.zeros(number, np.bool_)
        # replaced, not changed: a prefetching thread and its caller may both be here
        self._epochs = {**dict(list(self._epochs.items())[-1:]), epoch: (order, flips)}
        return order, flips


Request = tuple[int, int]  # position, count
Batch = dict[str, torch.Tensor]


class Pinning(Protocol):
    """A card, to whoever reads pictures for it."""

    def use(self) -> None:
        """Let it be this thread's: page-locked memory belongs to the thread's current card."""

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a tensor in page-locked memory; RuntimeError: the system gives no more."""


class Prefetcher:
    """Gives what `Batches.take` gives, read ahead by one thread, in a `with` statement.

    The next requests are taken to have the same size, and the same distance as the last two. A request that was not
    foreseen is read at once: foresight changes the time, never the result.

    Args:
        batches: where batches come from.
        depth: how many batches to hold ready.
        pinning: puts them into page-locked memory, for asynchronous copies to a card, as far as the system lets; None:
            they stay where they are.
        say: is told once where it does not: WSL2 gives about a gigabyte, and calls the end of it "out of memory".
    """

    def __init__(
        self,
        batches: Reader,
        *,
        depth: int = 2,
        pinning: Pinning | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._batches = batches
        self._depth = depth
        self._pinning = pinning
        self._say = say
        self._refusal: str | None = None
        # page-locked memory belongs to the thread's current card: without this always the first one
        self._pool = ThreadPoolExecutor(1, "frugan-prefetch", None if pinning is None else pinning.use)
        self._ready: deque[tuple[Request, Future[Batch]]] = deque()
        self._upcoming: Iterator[Request] | None = None
        self._last: Request | None = None

    def take(self, position: int, count: int) -> Batch:
        """Return `Batches.take(position, count)`, and see to the batches after it.

        Raises:
            ValueError: as `Batches.take`.
            RuntimeError: after `close`.
        """
        request = (position, count)
        if not self._ready or self._ready[0][0] != request:
            self._forget()
            self._upcoming = self._guess(request)
            self._ready.append((request, self._pool.submit(self._read, request)))
        _, batch = self._ready.popleft()
        self._last = request
        self._fill()
        result = batch.result()
        if self._refusal is not None:
            self._say(self._refusal)
            self._refusal = None
        return result

    def close(self) -> None:
        """Stop the thread; what it is reading is dropped."""
        self._forget()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _guess(self, request: Request) -> Iterator[Request]:
        """Yield what follows `request` if the distance from the last one to it is kept."""
        position, count = request
        stride = position - self._last[0] if self._last is not None and self._last[1] == count else count
        return ((position + step * stride, count) for step in counting(1)) if stride > 0 else iter(())

    def _fill(self) -> None:
        while self._upcoming is not None and len(self._ready) < self._depth:
            request = next(self._upcoming, None)
            if request is None:
                self._upcoming = None
            else:
                self._ready.append((request, self._pool.submit(self._read, request)))

    def _forget(self) -> None:
        for _, future in self._ready:
            future.cancel()
        self._ready.clear()
        self._upcoming = None

    def _read(self, request: Request) -> Batch:
        batch = self._batches.take(*request)
        if self._pinning is None:
            return batch
        try:
            return {name: self._pinning.pin(tensor) for name, tensor in batch.items()}
        except RuntimeError as error:
            self._pinning = None  # every further attempt would fail again, slowly
            self._refusal = (
                f"pictures go to the card from pageable memory, which takes about twice as long: this system pins no "
                f"more ({first_line(error)}). Training is the same"
            )
            return batch

    def __enter__(self) -> "Prefetcher":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
