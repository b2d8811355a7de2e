"""Processes that make face samples side by side, in memory that they share, for all sources of a training together."""

import pickle
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import prod
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.util import Finalize
from pathlib import Path
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput, TrainingFailed
from frugan.faces.data.faceset import Faceset
from frugan.faces.data.geometry import opencv
from frugan.faces.data.sample import Lost, Maker, Wanted
from frugan.wording import show_size

# Memory in which several processes fill one batch.
#
# Measured at R = 512, batch 8 (67 MB): 0.04 s a batch through this, 0.22 s with arrays sent back through pipes.

SYSTEM_FOLDER = Path("/dev/shm")  # Linux keeps shared memory there, and kills who writes more than it has room for
FLOAT_BYTES = 4

Shapes = Mapping[str, tuple[int, ...]]


class SampleBlock:
    """Float32 arrays of given shapes in shared memory, made by one process and opened by name in others.

    Args:
        shapes: of the arrays, by name.
        name: of a block that another process has made; None: make one.

    Attributes:
        name: of the block.
        shapes: as given.
        arrays: by name.

    Raises:
        BadInput: there is no room.
    """

    def __init__(self, shapes: Shapes, name: str | None = None) -> None:
        total_bytes = sum(map(prod, shapes.values())) * FLOAT_BYTES
        if name is None:
            _check_room(total_bytes)
        self._memory = SharedMemory(name, create=name is None, size=max(1, total_bytes))
        self._made_here = name is None
        self.name = self._memory.name
        self.shapes = shapes
        self.arrays: dict[str, NDArray[np.float32]] = {}
        offset = 0
        for part, shape in shapes.items():
            self.arrays[part] = np.ndarray(shape, np.float32, self._memory.buf, offset)
            offset += prod(shape) * FLOAT_BYTES

    def close(self) -> None:
        """Let go of the memory; where it was made, give it back."""
        self.arrays.clear()
        self._memory.close()
        if self._made_here:
            self._memory.unlink()


def _check_room(needed_bytes: int) -> None:
    free = shutil.disk_usage(SYSTEM_FOLDER).free if SYSTEM_FOLDER.is_dir() else needed_bytes
    if free < needed_bytes:
        raise BadInput(
            f"{SYSTEM_FOLDER} has room for {show_size(free, 1)} of shared memory, a batch of faces takes "
            f"{show_size(needed_bytes, 1)}. In a container, start it with more, for instance --shm-size=2g; else take "
            "smaller batches."
        )


Record = TypeVar("Record")


class SharedRecords(Sequence[Record], Generic[Record]):
    """Records in memory that all processes share, each unpickled when it is asked for.

    With a copy of its own, every process would take 4 KB a face, which is what large sets fail by in the original.
    Pickled, it is a name.

    Attributes:
        name: of the memory.

    Raises:
        BadInput: there is no room.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        pieces = [pickle.dumps(one) for one in records]
        ends = np.cumsum([(len(pieces) + 1) * np.int64().nbytes, *map(len, pieces)], dtype=np.int64)
        _check_room(int(ends[-1]))
        self._memory = SharedMemory(create=True, size=int(ends[-1]))
        self._number, self._made_here, self.name = len(pieces), True, self._memory.name
        self._ends()[:] = ends
        self._bytes()[ends[0] : ends[-1]] = b"".join(pieces)

    def __getstate__(self) -> tuple[str, int]:
        return self.name, self._number

    def __setstate__(self, state: tuple[str, int]) -> None:
        self.name, self._number = state
        self._memory, self._made_here = SharedMemory(self.name), False

    def _ends(self) -> NDArray[np.int64]:
        """Where records end in the memory, after where the first begins, [n + 1]."""
        return np.ndarray(self._number + 1, np.int64, self._memory.buf)

    def _bytes(self) -> memoryview:
        assert self._memory.buf is not None, "the records are closed"
        return self._memory.buf

    def __len__(self) -> int:
        return self._number

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(self._number))]
        place = range(self._number)[index]
        begin, end = self._ends()[place : place + 2].tolist()
        record: Record = pickle.loads(self._bytes()[begin:end])
        return record

    def close(self) -> None:
        """Let go of the memory; where it was made, give it back."""
        self._memory.close()
        if self._made_here:
            self._memory.unlink()


class MakerPickler(pickle.Pickler):
    """Pickles makers with facesets whose records are shared; `sets` keeps those that were met, by identity."""

    def __init__(self, file: BytesIO, sets: dict[int, tuple[Faceset, Faceset]]) -> None:
        super().__init__(file)
        self._sets = sets

    def reducer_override(self, value: object) -> Any:
        if not isinstance(value, Faceset) or isinstance(value.faces, SharedRecords):
            return NotImplemented
        if id(value) not in self._sets:
            shared = Faceset(SharedRecords(value.faces), value.digest, value.path, SharedRecords(value.places))
            self._sets[id(value)] = value, shared
        return self._sets[id(value)][1].__reduce_ex__(pickle.HIGHEST_PROTOCOL)


# Processes that make face samples side by side, for all sources of a training together.
#
# They know only what they are sent, leave Ctrl-C and its like to the trainer, and end when their pipe closes, even if
# the trainer was killed. (A `ProcessPoolExecutor` keeps both ends of its pipes open in every process, so that orphans
# stay.) They need numpy and OpenCV: 67 MiB each, of which half is shared. What this module imports may not import
# torch, which takes 245 MiB.

ENDING_SECONDS = 10.0
LEFT_TO_THE_TRAINER = tuple(
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)
"""Signals that terminals and batch systems send to a whole group: the trainer still needs samples to end its step."""


class _Maker(NamedTuple):
    """Sample maker of a source with the number that jobs name it by."""

    number: int
    maker: Maker


class _Job(NamedTuple):
    """One sample, the number of its maker, and where in which block to put it."""

    wanted: Wanted
    maker: int
    place: int
    block: str
    shapes: Shapes


class SampleProcesses:
    """Fill blocks with samples, each made by whichever process is free; what is made does not depend on that.

    Several threads may ask at the same time: one block is filled after the other, by all processes.

    Args:
        workers: how many processes, at least 1.
    """

    def __init__(self, workers: int) -> None:
        context = get_context("spawn")  # a forked copy of a program with threads and a GPU may hang
        self._lock = Lock()
        self._makers = 0
        self._unsent: list[bytes] = []
        self._sets: dict[int, tuple[Faceset, Faceset]] = {}
        self._lost: Exception | None = None
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        with _interrupts_held_back():
            for number in range(workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs,), name=f"faces-{number}", daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes.append(ours)
        # A program that ends without `close` would wait for them for ever: they do not listen to being terminated.
        Finalize(self, _close_pipes, (self._pipes,), exitpriority=1)

    def add(self, maker: Maker) -> int:
        """Take up what makes the samples of a source, and return its number."""
        with self._lock:
            number, self._makers = self._makers, self._makers + 1
            # sent later: now, each process would be waited for until it has begun
            pickled = BytesIO()
            MakerPickler(pickled, self._sets).dump(_Maker(number, maker))
            self._unsent.append(pickled.getvalue())
            return number

    def fill(self, maker: int, block: SampleBlock, wanted: Sequence[Wanted]) -> Lost:
        """Make samples and put them into a block.

        Args:
            maker: the number of what makes them.
            block: arrays [n, C, R, R].
            wanted: the n samples.

        Returns:
            Faces that cannot be read any more, and gave way to others.

        Raises:
            BadInput: a face cannot be read or used.
            TrainingFailed: a process has ended by itself.
            RuntimeError: after `close`.
        """
        jobs = iter([_Job(one, maker, place, block.name, block.shapes) for place, one in enumerate(wanted)])
        with self._lock:
            self._check_open()
            try:
                self._send_makers()
                refusals, lost = self._distribute(jobs)
            except (EOFError, ConnectionError) as error:
                self._lost = error
                self.close()
                raise _loss() from error
        if refusals:
            raise min(refusals, key=lambda refusal: refusal[0])[1]
        return lost

    def close(self) -> None:
        _close_pipes(self._pipes)
        for process in self._processes:
            process.join(ENDING_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._processes = []
        for _, shared in self._sets.values():
            for records in (shared.faces, shared.places):
                cast(SharedRecords[object], records).close()
        self._sets = {}

    def _check_open(self) -> None:
        if self._lost is not None:
            raise _loss() from self._lost
        if not self._pipes:
            raise RuntimeError("the processes that make face samples are closed")

    def _send_makers(self) -> None:
        while self._unsent:
            pickled = self._unsent.pop(0)
            for pipe in self._pipes:
                pipe.send_bytes(pickled)

    def _distribute(self, jobs: Iterator[_Job]) -> tuple[list[tuple[int, BadInput]], Lost]:
        """Have all jobs done; return the places of those refused, with the reasons, and the faces that gave way."""
        refusals: list[tuple[int, BadInput]] = []
        lost: dict[str, str] = {}
        busy: set[Connection] = set()
        idle = self._pipes
        while True:
            for pipe, job in zip(idle, jobs):  # noqa: B905  (what is shorter ends it; no job is lost: pipes come first)
                pipe.send(job)
                busy.add(pipe)
            if not busy:
                return refusals, lost
            idle = cast(list[Connection], wait(busy))
            for pipe in idle:
                busy.remove(pipe)
                answer: Lost | tuple[int, BadInput] = pipe.recv()
                if isinstance(answer, tuple):
                    refusals.append(answer)
                else:
                    lost |= answer


def _loss() -> TrainingFailed:
    return TrainingFailed(
        "a process that makes face samples has ended by itself: for lack of memory, or as it says above. A script that "
        "trains needs its training under `if __name__ == '__main__':`."
    )


def _close_pipes(pipes: list[Connection]) -> None:
    while pipes:
        pipes.pop().close()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold these signals back in this thread and in the processes it starts, until they have learnt to ignore them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(LEFT_TO_THE_TRAINER))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection) -> None:
    """Do jobs until the pipe closes; what goes wrong but bad input ends the process, with a traceback."""
    for number in LEFT_TO_THE_TRAINER:
        signal.signal(number, signal.SIG_IGN)
    makers: dict[int, Maker] = {}
    blocks: dict[int, SampleBlock] = {}  # of each maker, the last one
    try:
        opencv().setNumThreads(0)
        while True:
            job: _Maker | _Job = pipe.recv()
            if isinstance(job, _Maker):
                makers[job.number] = job.maker
                continue
            block = _opened(blocks, job)
            try:
                answer: object = makers[job.maker].make(job.wanted, block.arrays, job.place)
            except BadInput as refusal:
                answer = (job.place, refusal)
            pipe.send(answer)
    except (EOFError, ConnectionError):  # the trainer has closed its end, or is no more
        pass
    finally:
        for block in blocks.values():
            block.close()


def _opened(blocks: dict[int, SampleBlock], job: _Job) -> SampleBlock:
    """Return the block that a job is for; it takes the place of the last one of the same maker."""
    known = blocks.get(job.maker)
    if known is None or known.name != job.block:
        if known is not None:
            known.close()
        blocks[job.maker] = SampleBlock(job.shapes, job.block)
    return blocks[job.maker]
