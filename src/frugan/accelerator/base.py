"""All that differs between devices, as one interface: what one is, its memory, its queue of work, its host copies.

A processor has no memory and no queue of its own: the defaults here are a processor's. A card answers for itself, in
one file beside this one (`cuda.py`, which is ROCm's too) or in another package, by an entry point (see
`registry.ACCELERATORS`).
"""

import platform
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from frugan.accelerator.sensors import NoSensors, Sensors
from frugan.torch_internals import has_amx, has_avx512_bf16


class Event(Protocol):
    """A place in a queue of work."""

    def synchronize(self) -> None:
        """Let the host sleep until all that was queued before it is done."""


class Stream(Protocol):
    """A queue of a device's work, done in its order; beside it other queues go on."""

    def record_event(self) -> Event:
        """Return an event behind all that was queued here."""

    def wait_event(self, event: Event) -> None:
        """Let what is queued here from now on begin after an event, of whichever queue. The host does not wait."""


@dataclass(frozen=True)
class Done:
    """An event of a device that is never behind."""

    def synchronize(self) -> None:
        """Nothing is waited for."""


@dataclass(frozen=True)
class Immediate:
    """The queue of a device that does everything at once."""

    def record_event(self) -> Event:
        return Done()

    def wait_event(self, event: Event) -> None:
        """See `Stream`."""


def card_has_bf16_units(capability: tuple[int, int]) -> bool:
    """Return whether a card of a compute capability multiplies bf16 matrices in hardware."""
    return capability >= (8, 0)


def card_has_tf32(capability: tuple[int, int] | None) -> bool:
    """Return whether a card of a compute capability can multiply fp32 numbers by their first three digits (TF32)."""
    return capability is not None and capability >= (8, 0)


@dataclass(frozen=True)
class Accelerator(ABC):
    """One device, by torch's functions for its kind."""

    device: torch.device  # with its number, if its kind is counted

    kind: ClassVar[str]  # torch's word for it, as in "cuda:1"
    is_card: ClassVar[bool]  # has memory and a queue of its own
    collectives: ClassVar[str]  # torch's name of what adds up over ranks
    fp32_channels_last: ClassVar[bool]  # whether convolutions in fp32 are the faster so; in half precision all are

    # which there are

    @classmethod
    @abstractmethod
    def count(cls) -> int:
        """How many this process sees; 0 where torch cannot use them."""

    @classmethod
    def current(cls) -> int:
        """Number of the one that torch uses where nothing is said."""
        return 0

    def use(self) -> None:  # noqa: B027  (a processor does nothing)
        """Let it be the one that torch uses where nothing is said, in this thread."""

    # what it is

    @property
    @abstractmethod
    def name(self) -> str:
        """The maker's name for it."""

    @property
    def capability(self) -> tuple[int, int] | None:
        """A card's compute capability; None: no card."""
        return None

    @property
    def uuid(self) -> str | None:
        """Identifier that no other device has; None: there is none."""
        return None

    @property
    def has_bf16_units(self) -> bool:
        """Return whether it multiplies bf16 matrices in hardware."""
        return self.capability is not None and card_has_bf16_units(self.capability)

    @classmethod
    def built_for(cls) -> Sequence[str]:
        """Architectures that this torch has kernels for ("sm_80", "compute_90", ...); empty: it does not say."""
        return ()

    def sensors(self) -> Sensors:
        """Open the sensors for load, temperature and other programs on it.

        Raises:
            NoSensors: it has none.
        """
        raise NoSensors(f"nothing tells of {self.device}")

    # memory, of cards alone but for its peak

    @property
    def total_bytes(self) -> int:
        """Total memory."""
        raise self._has_no_memory

    @property
    def free_bytes(self) -> int:
        """Memory that no process has taken."""
        raise self._has_no_memory

    @property
    def live_bytes(self) -> int:
        """Memory of this process's tensors."""
        raise self._has_no_memory

    @property
    def reserved_bytes(self) -> int:
        """Memory that torch's allocator holds for this process."""
        raise self._has_no_memory

    @property
    def peak_live_bytes(self) -> int:
        """Most that lived since `reset_peaks`."""
        raise self._has_no_memory

    @property
    @abstractmethod
    def peak_bytes(self) -> int | None:
        """Most that was held since `reset_peaks`: by torch's allocator, or on a processor by the process, ever."""

    def reset_peaks(self) -> None:
        """Forget peaks before now."""
        raise self._has_no_memory

    @property
    def limit_bytes(self) -> int:
        """Most that torch's allocator may come to hold."""
        raise self._has_no_memory

    def limit(self, limit_bytes: int | None) -> None:
        """Let torch's allocator hold no more; None: as much as there is."""
        raise self._has_no_memory

    def give_back(self) -> None:  # noqa: B027  (a processor has nothing)
        """Give memory back that the allocator holds and no tensor has."""

    @classmethod
    def is_out_of_memory(cls, message: str) -> bool:
        """Return whether the message of a RuntimeError other than `torch.OutOfMemoryError` says that memory ran out."""
        return False

    @property
    def _has_no_memory(self) -> NotImplementedError:
        return NotImplementedError(f"{self.device} has no memory of its own; only cards are asked for it")

    # its queue

    def synchronize(self) -> None:  # noqa: B027  (a processor is never behind)
        """Let the host wait until all that was queued is done."""

    @property
    def current_stream(self) -> Stream:
        """The queue that work goes to now."""
        return Immediate()

    def side_stream(self) -> Stream:
        """Make another queue."""
        return Immediate()

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """Inside, work goes to a queue that `side_stream` made."""
        return nullcontext()

    def queued_so_far(self) -> Event:
        """Return an event behind everything in the current queue; who waits for it sleeps."""
        return Done()

    def refusing_to_wait(self) -> AbstractContextManager[None]:
        """Let whatever makes the host wait for a card raise RuntimeError."""
        return nullcontext()

    # copies to and from the host

    def pinned_like(self, like: Tensor) -> Tensor:
        """Return uninitialised host memory in a tensor's layout, which the device copies to and from by itself.

        Raises:
            RuntimeError: the system lets no more be pinned.
        """
        return torch.empty_like(like, device="cpu")

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a host tensor from where the device copies by itself; a processor takes it as it is.

        Raises:
            RuntimeError: the system lets no more be pinned.
        """
        return tensor


@dataclass(frozen=True)
class Processor(Accelerator):
    """The computer's CPU."""

    kind: ClassVar[str] = "cpu"
    is_card: ClassVar[bool] = False
    collectives: ClassVar[str] = "gloo"
    fp32_channels_last: ClassVar[bool] = True

    @classmethod
    def count(cls) -> int:
        return 1

    @property
    def name(self) -> str:
        return platform.processor() or platform.machine() or "CPU"

    @property
    def has_bf16_units(self) -> bool:
        """Return whether bf16 is faster than fp32 here; False for tensors without data.

        With AMX it is. AVX512-BF16 alone says nothing: with it a product of an AMD EPYC (Zen 4) in bf16 is 2.2 times as
        fast as in fp32, that of an Intel Xeon whose AMX a virtual machine hides half as fast. So that one is timed.
        """
        if self.device.type != "cpu":
            return False
        return bool(has_amx()) or (bool(has_avx512_bf16()) and multiplies_faster(torch.bfloat16, torch.float32))

    @property
    def peak_bytes(self) -> int | None:
        """Most that this process ever held; None where the system does not say (Windows)."""
        try:
            import resource  # noqa: PLC0415  (not on Windows)
        except ImportError:
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


PRODUCT_SIDE = 256
"""Side of the timed matrices; one product takes less than a time slice of a busy processor."""
PRODUCTS = 64
"""Number of products that are timed, some 50 milliseconds in all."""
CLEARLY = 1.2
"""Ratio of times from which on one way counts as faster."""


@cache
def multiplies_faster(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Return whether this CPU multiplies matrices of a dtype faster than those of another; timed once.

    The types take turns, on one thread, and the best of each counts, so that who else is at work does not decide: of
    products that took longer, on two threads of a busy machine, once the slower type's was the luckier.
    """
    least = dict.fromkeys((dtype, other), float("inf"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(PRODUCTS):
            for timed in least:
                matrix = torch.ones(PRODUCT_SIDE, PRODUCT_SIDE, dtype=timed)
                began = time.perf_counter()
                torch.mm(matrix, matrix)
                least[timed] = min(least[timed], time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return CLEARLY * least[dtype] < least[other]
