"""CUDA cards, and AMD's, which torch calls by the same name."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from frugan.accelerator.base import Accelerator, Event, Stream
from frugan.accelerator.nvml import nvml_sensors
from frugan.accelerator.sensors import NoSensors, Sensors
from frugan.wording import MIB

_CERTAIN = (
    "CUDA out of memory",  # torch's own error, in the words of another that wraps it
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DEVICE_ALLOCATION_FAILED",  # the end of what cuDNN 9 says: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
)
_WHERE_LITTLE_IS_FREE = (
    "CUBLAS_STATUS_NOT_INITIALIZED",  # its handle is made at the first product, outside torch's allocator
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "unable to find an engine",  # no algorithm of a convolution whose workspace could be had
)
"""Messages of libraries that got no memory, which may have other causes as well."""

LITTLE_BYTES = 512 * MIB
"""More than a library takes for its handle, or a convolution of the networks that ship for its workspace."""
LITTLE_SHARE = 0.05


@dataclass(frozen=True)
class CudaStream:
    """A queue of a card's work."""

    stream: torch.cuda.Stream

    def record_event(self) -> Event:
        """See `Stream`.

        Torch's own events keep a processor busy while one waits, which the threads that read pictures could use.
        """
        event = torch.cuda.Event(blocking=True)
        event.record(self.stream)
        return event

    def wait_event(self, event: Event) -> None:
        if isinstance(event, torch.cuda.Event):  # else of a processor, which is never behind
            self.stream.wait_event(event)


@dataclass(frozen=True)
class Cuda(Accelerator):
    """One CUDA or ROCm card."""

    kind: ClassVar[str] = "cuda"
    is_card: ClassVar[bool] = True
    collectives: ClassVar[str] = "nccl"
    fp32_channels_last: ClassVar[bool] = False

    @classmethod
    def count(cls) -> int:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    @classmethod
    def current(cls) -> int:
        return torch.cuda.current_device()

    @classmethod
    def trouble(cls) -> str | None:
        """Return torch's message if CUDA cannot be set up; None: it can.

        Its own question whether a card is there keeps the reason to itself, or warns of it once in a process.
        """
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
            return " ".join(str(error).split())
        return None

    def use(self) -> None:
        torch.cuda.set_device(self.device)

    @property
    def name(self) -> str:
        return str(torch.cuda.get_device_name(self.device))

    @property
    def capability(self) -> tuple[int, int]:
        return torch.cuda.get_device_capability(self.device)

    @property
    def uuid(self) -> str | None:
        """See `Accelerator`. Torch's for AMD's cards have none."""
        uuid = getattr(torch.cuda.get_device_properties(self.device), "uuid", None)
        return None if uuid is None else str(uuid)

    def sensors(self) -> Sensors:
        """See `Accelerator`. Of NVIDIA's cards."""
        uuid = self.uuid
        if uuid is None or torch.version.hip is not None:
            raise NoSensors("AMD's cards are not asked")
        return nvml_sensors(uuid)

    @classmethod
    def built_for(cls) -> Sequence[str]:
        return torch.cuda.get_arch_list()

    @property
    def total_bytes(self) -> int:
        return int(torch.cuda.get_device_properties(self.device).total_memory)

    @property
    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        return free

    @property
    def live_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.device)

    @property
    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved(self.device)

    @property
    def peak_live_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    @property
    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_reserved(self.device)

    def reset_peaks(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    @property
    def limit_bytes(self) -> int:
        return int(torch.cuda.get_per_process_memory_fraction(self.device) * self.total_bytes)

    def limit(self, limit_bytes: int | None) -> None:
        share = 1.0 if limit_bytes is None else min(1.0, max(0.0, limit_bytes / self.total_bytes))
        torch.cuda.set_per_process_memory_fraction(share, self.device)

    def give_back(self) -> None:
        torch.cuda.empty_cache()

    @classmethod
    def is_out_of_memory(cls, message: str) -> bool:
        """See `Accelerator`. One that may mean it does where little is free on the current card."""
        return any(word in message for word in _CERTAIN) or (
            any(word in message for word in _WHERE_LITTLE_IS_FREE) and cls._little_is_free()
        )

    @classmethod
    def _little_is_free(cls) -> bool:
        """Return whether the current card has little memory left for this process, or for its cap."""
        if not cls.count():
            return False
        try:
            card = cls(torch.device(cls.kind, cls.current()))
            whole, reserved = card.total_bytes, card.reserved_bytes
            usable = min(card.free_bytes, card.limit_bytes - reserved) + reserved - card.live_bytes
        except RuntimeError:  # a card that has failed for good answers nothing any more
            return False
        return usable < max(LITTLE_BYTES, int(LITTLE_SHARE * whole))

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    @property
    def current_stream(self) -> Stream:
        return CudaStream(torch.cuda.current_stream(self.device))

    def side_stream(self) -> Stream:
        return CudaStream(torch.cuda.Stream(self.device))

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        assert isinstance(stream, CudaStream)
        return torch.cuda.stream(stream.stream)

    def queued_so_far(self) -> Event:
        return self.current_stream.record_event()

    @contextmanager
    def refusing_to_wait(self) -> Iterator[None]:
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def pinned_like(self, like: Tensor) -> Tensor:
        return torch.empty_like(like, device="cpu", pin_memory=True)

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()
