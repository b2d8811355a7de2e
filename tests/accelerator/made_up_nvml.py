"""An NVML without a card: the functions of `pynvml` that are asked, with what a machine's driver would answer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As the package's."""


@dataclass
class MadeUpNvml:
    """Stands in for the module `pynvml`."""

    cards: dict[str, list[SimpleNamespace]] = field(default_factory=dict)  # UUID -> processes that compute on it
    samples: list[SimpleNamespace] = field(default_factory=list)  # of processes, on any card
    answers: dict[str, Any] = field(default_factory=dict)  # function's end -> its answer; missing: not supported
    refuses_to_begin: bool = False
    open: int = 0  # how often it was set up and not shut down

    NVMLError: type[Exception] = NVMLError
    NVML_TEMPERATURE_GPU: int = 0
    NVML_CLOCK_SM: int = 1

    def nvmlInit(self) -> None:
        if self.refuses_to_begin:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.cards:
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return list(self.cards)[index]

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return self.cards[handle]

    def nvmlDeviceGetProcessUtilization(self, handle: str, since: int) -> list[SimpleNamespace]:
        newer = [sample for sample in self.samples if sample.timeStamp > since]
        if not newer:
            raise NVMLError("Not Found")
        return newer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*_: object) -> Any:
            try:
                return self.answers[name.removeprefix("nvmlDeviceGet")]
            except KeyError as error:
                raise NVMLError("Not Supported") from error

        return ask


def usual(*processes: int, **changes: Any) -> MadeUpNvml:
    """One card, "GPU-a", at work, and another, "GPU-b"; these processes compute on the first one."""
    answers = {
        "UtilizationRates": SimpleNamespace(gpu=45, memory=20),
        "MemoryInfo": SimpleNamespace(used=6 << 30, total=12 << 30, free=6 << 30),
        "Temperature": 71,
        "PowerUsage": 285_400,
        "ClockInfo": 1410,
    }
    cards = {"GPU-a": [SimpleNamespace(pid=each, usedGpuMemory=1 << 30) for each in processes], "GPU-b": []}
    return MadeUpNvml(cards=cards, answers=answers | changes)
