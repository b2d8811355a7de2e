"""Host memory beside a card: pinned where the system lets, for optimizer state and recomputed blocks."""

import ctypes
import platform
import warnings
import weakref
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from frugan.accelerator.base import Event, Stream
from frugan.accelerator.choice import accelerator_of
from frugan.wording import MIB, first_line

ALIGNMENT_BYTES = 512
"""Alignment of tensors in a block, as in torch's allocator on cards."""
SMALLEST_BLOCK_BYTES = MIB
"""Smallest block, for the tensors left over at the end."""


@dataclass(frozen=True)
class PackedBlock:
    """One allocation that holds several tensors."""

    size_bytes: int
    numbers: tuple[int, ...]  # numbers of the tensors in it
    firsts: tuple[int, ...]  # byte at which each of them begins


def pack(sizes_bytes: Sequence[int], *, powers_of_two: bool) -> list[PackedBlock]:
    """Blocks that hold tensors of the given sizes.

    Torch rounds every pinned allocation up to a power of two, to use it again: 640 MiB take 1 GiB (torch 2.13,
    `ATen/core/CachingHostAllocator.h`; a setting that lifts it is younger than the oldest torch we run on). So tensors
    are packed into blocks whose sizes are powers of two already, each filled as well as it can be. A single block for
    all of them would be rounded up in its turn.

    Args:
        powers_of_two: sizes of blocks, so that nothing rounds them up; False: one block without waste.
    """
    waiting = sorted(range(len(sizes_bytes)), key=lambda i: -sizes_bytes[i])
    if not powers_of_two:
        return [_filled(sum(map(_aligned, sizes_bytes)), waiting, sizes_bytes)] if waiting else []
    blocks = []
    while waiting:
        rest = sum(_aligned(sizes_bytes[i]) for i in waiting)
        size, most = _power(_aligned(sizes_bytes[waiting[0]])), _power(rest)
        candidates = []
        while True:
            candidates.append(_filled(size, waiting, sizes_bytes))
            if size >= most:
                break
            size *= 2
        best = max(candidates, key=lambda block: (_used(block, sizes_bytes) / block.size_bytes, block.size_bytes))
        blocks.append(best)
        inside = set(best.numbers)
        waiting = [i for i in waiting if i not in inside]
    return blocks


def pinned_bytes(sizes_bytes: Sequence[int]) -> int:
    """Return the pinned memory of the blocks for tensors of these sizes."""
    return sum(block.size_bytes for block in pack(sizes_bytes, powers_of_two=True))


def rounded_bytes(size_bytes: int) -> int:
    """Return the size of a single pinned allocation, which torch rounds up to a power of two."""
    return 1 << (size_bytes - 1).bit_length() if size_bytes else 0


def _filled(size_bytes: int, waiting: Sequence[int], sizes_bytes: Sequence[int]) -> PackedBlock:
    """A block with the first of the waiting tensors that find room in it, largest first."""
    numbers, firsts, first = [], [], 0
    for i in waiting:
        if first + _aligned(sizes_bytes[i]) <= size_bytes:
            numbers.append(i)
            firsts.append(first)
            first += _aligned(sizes_bytes[i])
    return PackedBlock(size_bytes, tuple(numbers), tuple(firsts))


def _used(block: PackedBlock, sizes_bytes: Sequence[int]) -> int:
    return sum(sizes_bytes[i] for i in block.numbers)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _power(size_bytes: int) -> int:
    return max(SMALLEST_BLOCK_BYTES, rounded_bytes(size_bytes))


def zeros_for(parameter: Tensor, *, on_host: bool) -> Tensor:
    """A statistic of a parameter before its first update, in its layout; pinned where a card will copy it."""
    like = parameter.detach()
    if not on_host:
        return torch.zeros_like(like)
    return host_like(parameter, "optimizer state").zero_()


def host_like(tensor: Tensor, what: str) -> Tensor:
    """Host memory for a copy of a tensor, in its layout; pinned beside a card, as far as the system lets.

    Args:
        what: it is for, in the warning where nothing more can be pinned.
    """
    (copy,) = host_likes([tensor], what, packed=False)
    return copy


def host_likes(tensors: Sequence[Tensor], what: str, *, packed: bool = True) -> list[Tensor]:
    """Host memory for copies of several tensors, in their layouts: views of as few allocations as waste little.

    Args:
        what: they are for, in the warning where nothing more can be pinned.
        packed: False: one allocation for each.
    """
    likes = [tensor.detach() for tensor in tensors]
    if not packed:
        return [_like(like, what, tensor.device) for tensor, like in zip(tensors, likes, strict=True)]
    device = next((tensor.device for tensor in tensors if accelerator_of(tensor.device).is_card), torch.device("cpu"))
    buffers: dict[int, Tensor] = {}
    for block in pack([like.nbytes for like in likes], powers_of_two=accelerator_of(device).is_card):
        buffers |= _views(
            block, likes, _like(torch.empty(block.size_bytes, dtype=torch.uint8, device="meta"), what, device)
        )
    return [buffers[i] for i in range(len(likes))]


def pinned_copy(tensor: Tensor, device: torch.device, what: str) -> Tensor:
    """A host tensor from where a card copies it by itself; as it is where there is no card, or nothing can be pinned.

    Args:
        what: it is, in the warning where nothing more can be pinned.
    """
    try:
        return accelerator_of(device).pin(tensor)
    except RuntimeError as error:
        _warn(error, what)
        return tensor


def beside(kept: Tensor, parameter: Tensor) -> Tensor:
    """A copy on a parameter's device, also where host and device are one; the host does not wait for it."""
    return torch.empty_like(kept, device=parameter.device, pin_memory=False).copy_(kept, non_blocking=True)


def copy_on_side_stream(side: Stream, device: torch.device, into: Sequence[Tensor], values: Sequence[Tensor]) -> Event:
    """Queue copies beside a device's computation, behind all that it was given so far.

    Args:
        side: the queue that they go to.

    Returns:
        An event behind them. Until the queue that computes has waited for it, memory of the device on either side of
        the copies is to be kept and left alone: it was not taken for the queue that uses it here.
    """
    accelerator = accelerator_of(device)
    side.wait_event(accelerator.queued_so_far())
    with accelerator.on(side):
        for target, value in zip(into, values, strict=True):
            target.copy_(value, non_blocking=True)
        return side.record_event()


def _like(like: Tensor, what: str, device: torch.device) -> Tensor:
    try:
        return accelerator_of(device).pinned_like(like)
    except RuntimeError as error:
        _warn(error, what)
        return torch.empty_like(like, device="cpu")


def _views(block: PackedBlock, likes: Sequence[Tensor], memory: Tensor) -> dict[int, Tensor]:
    """Tensors of a block, by number, in the layouts of those they are for."""
    views = {}
    for number, first in zip(block.numbers, block.firsts, strict=True):
        like = likes[number]
        flat = memory[first : first + like.nbytes].view(like.dtype)
        views[number] = flat.as_strided(like.shape, like.stride())
    return views


def _warn(error: RuntimeError, what: str) -> None:
    """Systems limit how much may be pinned; WSL2 to about a gigabyte, and calls it "out of memory"."""
    warnings.warn(
        f"no more host memory can be pinned ({first_line(error)}): {what} lies in pageable memory, and "
        "its way to the card takes about twice as long",
        stacklevel=4,
    )


SMALLEST_BYTES = MIB
"""Smaller tensors stay on the device: class embeddings and other conditions are not worth a copy."""


ON_THE_HOST = "what recomputed blocks are given"


Memory = TypeVar("Memory")


@dataclass
class Blocks(Generic[Memory]):
    """Blocks of host memory that are used again and again, each time the smallest that is large enough."""

    total_bytes: int = 0  # size of all blocks that were ever allocated
    _free: list[tuple[int, Memory]] = field(default_factory=list)  # with their sizes, smallest first
    _returned: list[tuple[int, Memory]] = field(default_factory=list)  # since a block was taken, in any order

    def take(self, size_bytes: int, make: Callable[[], Memory]) -> tuple[int, Memory]:
        """Return a block with its size, a new one where none is free."""
        while self._returned:
            insort(self._free, self._returned.pop(), key=lambda block: block[0])
        at = bisect_left(self._free, size_bytes, key=lambda block: block[0])
        if at < len(self._free):
            return self._free.pop(at)
        self.total_bytes += size_bytes
        return size_bytes, make()

    def give_back(self, block: tuple[int, Memory]) -> None:
        """Let a block be used again; whatever thread frees memory may call it, in the midst of `take` too."""
        self._returned.append(block)


@dataclass(eq=False)
class Away:
    """A tensor that was offloaded to host memory."""

    there: Tensor  # in host memory
    device: torch.device  # where it belongs
    computing: Stream  # the queue that uses it there
    copied: Event  # behind the last copy of it
    here: Tensor | None  # on its device, while that copy is under way

    def take(self) -> Tensor | None:
        """Give away the tensor on its device, if it is there; work queued from now on waits for the copy."""
        here, self.here = self.here, None
        if here is not None:
            self.computing.wait_event(self.copied)
        return here

    def __del__(self) -> None:
        """Wait for the copy, so that its memory is not reused before."""
        self.take()


@dataclass(eq=False)
class _BlockInputs:
    """Inputs of one block that were sent to the host."""

    before: Self | None  # inputs of the block before it
    sent: list[weakref.ref[Away]] = field(default_factory=list)

    @property
    def left(self) -> list[Away]:
        """Tensors that backward may still need."""
        return [away for reference in self.sent if (away := reference()) is not None]

    def earlier(self) -> list[Away]:
        """Return `left` of the nearest earlier block that has any."""
        while self.before is not None and not self.before.left:
            self.before = self.before.before
        return [] if self.before is None else self.before.left


class HostCopies:
    """Offloads the inputs of recomputed blocks to host memory, and brings them back for backward.

    A step that recomputes its blocks keeps little else, and each tensor is needed once in a backward, of which a
    penalty on gradients takes two: its way to the host and back is the price. Beside a card the copies have a queue of
    their own, and nobody waits for them but the card. What a block is given leaves while that block runs, and is let go
    when the next one begins. It comes back when backward asks for it, or ahead, while that is at the block after it:
    then a card holds one block's inputs more than it works on.
    They are not handed to torch's `record_stream`: memory would be free at some later time, which no plan knows.

    Memory of the host that is needed no more is used again at once: all copies are on one queue, so what is written
    next comes after what was read last. Torch itself would wait for the card to have read it, and the host is many
    copies ahead: it would pin two or three times as much.
    """

    def send(self, tensor: Tensor) -> Away:
        """Start copying a tensor to host memory, pinned beside a card; the host does not wait for it."""
        accelerator = accelerator_of(tensor.device)
        there = self._borrowed(tensor) if accelerator.is_card else host_like(tensor, ON_THE_HOST)
        copied = self._copied(tensor.device, there, tensor)
        here = tensor if self.has_queue(tensor.device) else None
        return Away(there, tensor.device, accelerator.current_stream, copied, here)

    def bring(self, away: Away) -> None:
        """Start copying it back."""
        away.here = torch.empty_like(away.there, device=away.device, pin_memory=False)
        away.copied = self._copied(away.device, away.here, away.there)

    def bring_ahead(self, away: Away) -> None:
        """Start copying it back before it is needed."""
        self.bring(away)

    def has_queue(self, device: torch.device) -> bool:
        """Return whether copies run while the device computes."""
        return accelerator_of(device).is_card

    def let_go(self) -> None:
        """Wait for pending copies to the host; their memory on the card is free then."""
        for away in () if self._latest is None else self._latest.left:
            away.take()

    def _copied(self, device: torch.device, into: Tensor, value: Tensor) -> Event:
        if self._side is None:
            self._side = accelerator_of(device).side_stream()
        return copy_on_side_stream(self._side, device, [into], [value])

    _side: Stream | None = None
    _ahead = False
    _latest: _BlockInputs | None = None  # sent last
    _requested: _BlockInputs | None = None  # requested last by backward

    @cached_property
    def _blocks(self) -> Blocks[Tensor]:
        return Blocks()

    def _borrowed(self, tensor: Tensor) -> Tensor:
        """Host memory in a tensor's layout, which comes back when nobody holds it any more."""
        size_bytes = rounded_bytes(tensor.nbytes)
        like = torch.empty(size_bytes, dtype=torch.uint8, device="meta")
        block = self._blocks.take(size_bytes, lambda: self._pinned(like, tensor.device))
        there = block[1][: tensor.nbytes].view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        weakref.finalize(there, self._blocks.give_back, block)
        return there

    def _pinned(self, like: Tensor, device: torch.device) -> Tensor:
        """New memory, pinned unless that was refused once: each further attempt would fail again, slowly."""
        if not self._refused:
            try:
                return accelerator_of(device).pinned_like(like)
            except RuntimeError as error:
                _warn(error, ON_THE_HOST)
                self._refused = True
        return torch.empty_like(like, device="cpu")

    _refused = False

    def is_worth_it(self, tensor: Tensor) -> bool:
        """Return whether a tensor is large enough to offload."""
        return tensor.nbytes >= SMALLEST_BYTES

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Offload the tensors that autograd saves inside, if they are large and no weights."""
        self.let_go()
        inputs = self._latest = _BlockInputs(self._latest)

        def pack(tensor: Tensor) -> Tensor | Away:
            kept = tensor.detach()  # the tensor itself would keep its graph
            if isinstance(tensor, nn.Parameter) or not self.is_worth_it(tensor):
                return kept
            away = self.send(self._dense(kept) if self.has_queue(kept.device) else kept)
            inputs.sent.append(weakref.ref(away))
            return away

        def unpack(kept: Tensor | Away) -> Any:
            return self._back(kept, inputs) if isinstance(kept, Away) else kept

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield

    @contextmanager
    def until_done(self, *, bring_ahead: bool) -> Iterator[None]:
        """Finish all copies to the host at the end of the block.

        Args:
            bring_ahead: bring a block's inputs back while backward is at the block after it.
        """
        self._ahead = bring_ahead
        try:
            yield
        finally:
            self.let_go()
            self._latest = self._requested = None

    def _dense(self, tensor: Tensor) -> Tensor:
        """Return a dense tensor: else each copy takes temporary memory of its queue.

        A part of a larger tensor, such as noise images drawn at once, has that one's strides, and only its own bytes.
        """
        reached = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor if reached == tensor.numel() else tensor.clone()

    def _back(self, away: Away, inputs: _BlockInputs) -> Tensor | None:
        """Return a tensor on its device; one whose copy to the host is still pending is returned as it is."""
        if inputs is not self._requested and self.has_queue(away.device):
            self._requested = inputs
            if inputs is not self._latest:
                self.let_go()
            for tensor in inputs.left:
                if tensor.here is None:
                    self.bring(tensor)
            for tensor in inputs.earlier() if self._ahead else ():
                if tensor.here is None:
                    self.bring_ahead(tensor)
        elif away.here is None:
            self.bring(away)
        return away.take()


# `mallopt`'s numbers of settings, from glibc's malloc.h
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
MMAP_MOST = -4
NEVER = -1
# the C library's values, initially or after a process has used large blocks
OWN_MMAP_MOST = 65536
OWN_MMAP_THRESHOLD = 32 * MIB
OWN_TRIM_THRESHOLD = 64 * MIB


@contextmanager
def keep_freed_memory(on_cpu: bool) -> Iterator[None]:
    """Keep freed memory in the process for reuse; at the end it goes back to the system.

    The C library of most Linux systems gives blocks of many megabytes back as soon as they are free. Every step then
    asks for them again, and the system clears them again, 4 KiB at a time.

    Args:
        on_cpu: whether steps run on the CPU. Otherwise, and where the C library is another one than glibc, nothing
            changes.
    """
    library = ctypes.CDLL(None) if on_cpu and platform.libc_ver()[0] == "glibc" else None
    if library is None:
        yield
        return
    library.mallopt(MMAP_MOST, 0)
    library.mallopt(TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        library.mallopt(MMAP_MOST, OWN_MMAP_MOST)
        library.mallopt(MMAP_THRESHOLD, OWN_MMAP_THRESHOLD)
        library.mallopt(TRIM_THRESHOLD, OWN_TRIM_THRESHOLD)
        library.malloc_trim(0)
