"""Host memory beside a card: pinned where the system lets, for optimizer state and recomputed blocks."""

import ctypes
import platform
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from frugan.engine.accelerator.choice import accelerator_of
from frugan.wording import MIB, first_line

ALIGNMENT_BYTES = 512
"""Where tensors begin: as in torch's allocator on cards."""
SMALLEST_BLOCK_BYTES = MIB
"""What is left over in the end goes into one block of this size or the next."""


@dataclass(frozen=True)
class PackedBlock:
    """One allocation."""

    size_bytes: int
    numbers: tuple[int, ...]  # of the tensors in it
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
    """What the blocks for tensors of the given sizes take in pinned memory."""
    return sum(block.size_bytes for block in pack(sizes_bytes, powers_of_two=True))


def rounded_bytes(size_bytes: int) -> int:
    """What a single pinned allocation takes."""
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
    (made,) = host_likes([tensor], what, packed=False)
    return made


def host_likes(tensors: Sequence[Tensor], what: str, *, packed: bool = True) -> list[Tensor]:
    """Host memory for copies of several tensors, in their layouts: views of as few allocations as waste little.

    Args:
        what: they are for, in the warning where nothing more can be pinned.
        packed: False: one allocation for each.
    """
    likes = [tensor.detach() for tensor in tensors]
    if not packed:
        return [_like(like, what, tensor.device) for tensor, like in zip(tensors, likes, strict=True)]
    device = next((each.device for each in tensors if accelerator_of(each.device).is_card), torch.device("cpu"))
    made: dict[int, Tensor] = {}
    for block in pack([like.nbytes for like in likes], powers_of_two=accelerator_of(device).is_card):
        made |= _views(
            block, likes, _like(torch.empty(block.size_bytes, dtype=torch.uint8, device="meta"), what, device)
        )
    return [made[i] for i in range(len(likes))]


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
"""What is smaller stays: class embeddings and other conditions are not worth a copy."""


ON_THE_HOST = "what recomputed blocks are given"


class HostCopies:
    """Sends what recomputed blocks are given to host memory, and brings it back for backward.

    A step that recomputes its blocks keeps little else, and each tensor is needed once: its way to the host and back is
    the price. Copies are queued on the stream that computes, so that nobody waits for them but the card itself.

    Beside a card, memory of what is needed no more is used again at once: all copies are on one stream, so what is
    written next comes after what was read last. Torch itself would wait for the card to have read it, and the host is
    many copies ahead: it would pin two or three times as much.
    """

    def send(self, tensor: Tensor) -> Tensor:
        """A copy in host memory, pinned beside a card; the host does not wait for it."""
        is_on_card = accelerator_of(tensor.device).is_card
        there = self._borrowed(tensor) if is_on_card else host_like(tensor, ON_THE_HOST)
        return there.copy_(tensor, non_blocking=True)

    @cached_property
    def _free(self) -> dict[int, list[Tensor]]:
        """Blocks of host memory that nothing is kept in, by their sizes."""
        return {}

    def _borrowed(self, tensor: Tensor) -> Tensor:
        """Host memory in a tensor's layout, which comes back when nobody holds it any more."""
        size_bytes = rounded_bytes(tensor.nbytes)
        free = self._free.setdefault(size_bytes, [])
        like = torch.empty(size_bytes, dtype=torch.uint8, device="meta")
        block = free.pop() if free else self._pinned(like, tensor.device)
        # a part of a larger tensor, such as noise images drawn at once, has that one's strides, and only its own bytes
        stride = torch.empty_like(tensor, device="meta").stride()
        there = block[: tensor.nbytes].view(tensor.dtype).as_strided(tensor.shape, stride)
        weakref.finalize(there, free.append, block)
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

    def bring(self, there: Tensor, device: torch.device) -> Tensor:
        """A copy of what was sent, on its device again, also where host and device are one."""
        return torch.empty_like(there, device=device, pin_memory=False).copy_(there, non_blocking=True)

    def is_worth_it(self, tensor: Tensor) -> bool:
        """Whether a tensor is large enough to go."""
        return tensor.nbytes >= SMALLEST_BYTES

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """What autograd keeps of what is called inside goes to the host, if it is large and no weight."""

        def pack(tensor: Tensor) -> tuple[Tensor, torch.device | None]:
            kept = tensor.detach()  # the tensor itself would keep its graph
            if isinstance(tensor, nn.Parameter) or not self.is_worth_it(tensor):
                return kept, None
            return self.send(kept), tensor.device

        def unpack(packed: tuple[Tensor, torch.device | None]) -> Any:
            kept, device = packed
            return kept if device is None else self.bring(kept, device)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield


TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MOST = -1, -3, -4
"""Numbers of `mallopt`'s settings, from glibc's malloc.h."""
NEVER = -1
OWN_MMAP_MOST, OWN_MMAP_THRESHOLD, OWN_TRIM_THRESHOLD = 65536, 32 * MIB, 64 * MIB
"""What the C library has, or comes to by itself in a process that uses large blocks."""


@contextmanager
def freed_memory_kept(on_cpu: bool) -> Iterator[None]:
    """Inside, freed memory stays with the process, for its next block; afterwards it goes back to the system.

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
