"""NVIDIA's cards as their driver's management library (NVML) tells of them, by the package nvidia-ml-py, an extra.

Source: the functions' names and units are those of the NVML API reference.
"""

import os
from collections.abc import Callable
from statistics import fmean
from typing import Any

from frugan.accelerator.sensors import CardReading, Holder, NoSensors

KINDS = ("GPU-", "MIG-")
"""Prefixes of UUIDs in the driver's library: of a whole card, and of an instance that a card is divided into."""


def nvml_sensors(uuid: str, library: Any = None) -> "NvmlSensors":
    """Sensors of one card.

    Args:
        uuid: as torch has it, without the "GPU-" of a whole card or the "MIG-" of a part; or with either.
        library: that asks; None: the package `pynvml`, which nvidia-ml-py installs.

    Raises:
        NoSensors: the package is not there, or the driver does not answer or does not know the card.
    """
    if library is None:
        try:
            import pynvml  # noqa: PLC0415  (an extra)
        except ImportError as error:
            raise NoSensors("nvidia-ml-py is not installed: pip install 'frugan[nvml]'") from error
        library = pynvml
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise NoSensors(f"the driver's library does not answer: {error}") from error
    for name in (uuid,) if uuid.startswith(KINDS) else [f"{kind}{uuid}" for kind in KINDS]:
        try:
            return NvmlSensors(library, library.nvmlDeviceGetHandleByUUID(name), os.getpid())
        except library.NVMLError as error:
            reason = error
    library.nvmlShutdown()
    raise NoSensors(f"the driver's library does not know {uuid}: {reason}") from reason


class NvmlSensors:
    """Asks about one card.

    Args:
        library: `pynvml`, set up.
        handle: the card's in it.
        process: number of this process.
    """

    def __init__(self, library: Any, handle: Any, process: int) -> None:
        self._library, self._handle, self._process = library, handle, process
        self._seen = 0  # time of the newest sample of a process that was read, in the driver's microseconds

    def read(self) -> CardReading:
        library, handle = self._library, self._handle
        rates = self._told(library.nvmlDeviceGetUtilizationRates, handle)
        memory = self._told(library.nvmlDeviceGetMemoryInfo, handle)
        power = self._told(library.nvmlDeviceGetPowerUsage, handle)  # mW
        others = self._others()
        return CardReading(
            busy=None if rates is None else rates.gpu / 100,
            others_busy=self._others_busy(others),
            others=None if others is None else len(others),
            used_bytes=None if memory is None else memory.used,
            temperature_c=self._told(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU),
            power_w=None if power is None else power / 1000,
            clock_mhz=self._told(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM),
        )

    def holders(self) -> tuple[Holder, ...]:
        library = self._library
        found: list[Holder] = []
        for number in range(self._told(library.nvmlDeviceGetCount) or 0):
            card = self._told(library.nvmlDeviceGetHandleByIndex, number)
            uuid = None if card is None else self._told(library.nvmlDeviceGetUUID, card)
            if uuid is None:
                continue  # a card that fell off, or that this user may not see
            processes = self._told(library.nvmlDeviceGetComputeRunningProcesses, card) or ()
            found += [Holder(str(uuid), number, int(process.pid), process.usedGpuMemory) for process in processes]
        return tuple(found)

    def close(self) -> None:
        self._told(self._library.nvmlShutdown)

    def _told(self, ask: Callable[..., Any], *about: object) -> Any:
        """An answer; None: this card or driver has none."""
        try:
            return ask(*about)
        except self._library.NVMLError:
            return None

    def _others(self) -> set[int] | None:
        """Other processes that compute on the card; None: unknown.

        In a container processes have other numbers than the driver's: then this one is not among them, and nobody can
        say which are others.
        """
        computing = self._told(self._library.nvmlDeviceGetComputeRunningProcesses, self._handle)
        if computing is None:
            return None
        numbers = {int(process.pid) for process in computing}
        return numbers - {self._process} if self._process in numbers else None

    def _others_busy(self, others: set[int] | None) -> float | None:
        if others is None:
            return None
        samples = self._told(self._library.nvmlDeviceGetProcessUtilization, self._handle, self._seen)
        if samples is None:  # also where none ran anything since; Windows and MIG never say
            return 0.0 if not others else None
        by_process: dict[int, list[float]] = {}
        for sample in samples:
            self._seen = max(self._seen, int(sample.timeStamp))
            if int(sample.pid) in others:
                by_process.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
        return min(1.0, sum(map(fmean, by_process.values())))
