"""Work done by several threads, with results in order and bounded memory."""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

WAITING_PER_WORKER = 8


def in_order(function: Callable[[int], T], count: int, workers: int) -> Generator[T, None, None]:
    """Yield function(0), …, function(count - 1) in this order, computed by `workers` threads.

    At most `WAITING_PER_WORKER` results per worker are held. Closing the iterator, an exception and Ctrl-C cancel what
    has not begun and wait for what has.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="frugan-pictures")
    indices = iter(range(count))
    try:
        waiting: deque[Future[T]] = deque(
            pool.submit(function, index) for index in islice(indices, WAITING_PER_WORKER * workers)
        )
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(function, index) for index in islice(indices, 1))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
