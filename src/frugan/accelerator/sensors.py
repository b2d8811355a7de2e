"""Load, temperature and power of a card by its driver, and a thread that reads them while steps run."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from types import TracebackType
from typing import Protocol, Self

SAMPLE_SECONDS = 1.0
"""Drivers average over a sixth of a second to a second; an answer takes them a millisecond or so."""


class NoSensors(Exception):
    """A card is not asked; the message says why, and what to do."""


@dataclass(frozen=True)
class CardReading:
    """Recent load and state of a card; None: its driver does not say."""

    busy: float | None = None  # share of the time, 0 to 1, in which it ran any kernel, whoever's
    others_busy: float | None = None  # share in which it ran kernels of other programs, added up over these
    others: int | None = None  # other programs that compute on it, or hold memory to
    used_bytes: int | None = None  # memory in use, by all programs
    temperature_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None  # clock of its processors


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a card."""

    card: str  # the card's UUID
    number: int  # the card's, in the driver's order
    process: int  # its number
    size_bytes: int | None  # memory that it holds; None: the driver does not say


class Sensors(Protocol):
    """Readings of one card and its processes."""

    def read(self) -> CardReading:
        """Return the card's present state."""

    def holders(self) -> Sequence[Holder]:
        """Processes that hold memory for computing, on every card of this machine."""

    def close(self) -> None:
        """Release the driver."""


def mean_reading(readings: Sequence[CardReading]) -> dict[str, float]:
    """Means of what some readings hold, by name, and how many there were."""
    values: dict[str, float] = {"samples": len(readings)}
    for name in (field.name for field in fields(CardReading)):
        if told := [value for reading in readings if (value := getattr(reading, name)) is not None]:
            values[name] = round(fmean(told), 3)
    return values


class CardWatch:
    """Asks a card's sensors every so often, from a thread of its own, inside a `with` statement.

    Steps are not touched: the driver is asked, and nothing is queued on the card or waited for.

    Args:
        sensors: of the card; None: nothing is asked.
        every_seconds: between two readings.
    """

    def __init__(self, sensors: Sensors | None = None, every_seconds: float = SAMPLE_SECONDS) -> None:
        self.sensors, self._every = sensors, every_seconds
        self._readings: list[CardReading] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def taken(self) -> Mapping[str, float] | None:
        """Means of the readings since the last call; None: there was none."""
        with self._lock:
            readings, self._readings = self._readings, []
        return mean_reading(readings) if readings else None

    def _watch(self, sensors: Sensors) -> None:
        while not self._over.wait(self._every):
            reading = sensors.read()
            with self._lock:
                self._readings.append(reading)

    def __enter__(self) -> Self:
        if self.sensors is not None:
            self._over.clear()
            self._thread = threading.Thread(
                target=self._watch, args=(self.sensors,), daemon=True, name="frugan-card-watch"
            )
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self.sensors is not None:
            self.sensors.close()
