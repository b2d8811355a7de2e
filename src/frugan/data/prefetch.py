"""Read the next batches while the current one is trained on."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count as counting
from types import TracebackType

import torch

from frugan.contract.data import Reader

Request = tuple[int, int]  # position, count
Batch = dict[str, torch.Tensor]


class Prefetcher:
    """Gives what `Batches.take` gives, read ahead by one thread, in a `with` statement.

    The next requests are taken to have the same size, and the same distance as the last two. A request that was not
    foreseen is read at once: foresight changes the time, never the result.

    Args:
        batches: where batches come from.
        depth: how many batches to hold ready.
        pin_memory: put them into page-locked memory, for asynchronous copies to a GPU, as far as the system lets.
        say: is told once where it does not: WSL2 gives about a gigabyte, and calls the end of it "out of memory".
    """

    def __init__(
        self, batches: Reader, *, depth: int = 2, pin_memory: bool = False, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._batches = batches
        self._depth = depth
        self._pin_memory = pin_memory
        self._say = say
        self._refusal: str | None = None
        # page-locked memory belongs to the thread's current card: without this always the first one
        card = (torch.cuda.set_device, (torch.cuda.current_device(),)) if pin_memory else (None, ())
        self._pool = ThreadPoolExecutor(1, "frugan-prefetch", *card)
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
        found = batch.result()
        if self._refusal is not None:
            self._say(self._refusal)
            self._refusal = None
        return found

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
        if not self._pin_memory:
            return batch
        try:
            return {name: tensor.pin_memory() for name, tensor in batch.items()}
        except RuntimeError as error:
            self._pin_memory = False  # every further attempt would fail again, slowly
            self._refusal = (
                f"pictures go to the card from pageable memory, which takes about twice as long: this system pins no "
                f"more ({str(error).partition(chr(10))[0]}). Training is the same"
            )
            return batch

    def __enter__(self) -> "Prefetcher":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
