"""When something is due between steps: by steps, images or seconds of training."""

from dataclasses import dataclass, field

from frugan.engine.progress import Duration

FIRST_WAIT_SECONDS = 300.0
"""Without new sheets at the start of a training, however long its steps are; later a tenth of the time so far."""
LEAST_SHARE = 50
"""Sheets that the clock asks for take at most one in so many parts of the time."""


@dataclass
class Clock:
    """Says when something is due, in steps, images or seconds of training.

    Attributes:
        every: the interval.
        batch: images per step.
        last: seconds of training at which it was last due; only intervals in seconds need it.
    """

    every: Duration
    batch: int
    last: float = 0.0

    def due(self, step: int, seconds: float) -> bool:
        """Whether it is due after `step` steps and `seconds` of training; asked once a step."""
        if self.every.unit == "seconds":
            if seconds - self.last < self.every.amount:
                return False
            self.last = seconds
            return True
        if self.every.unit == "steps":
            return step % int(self.every.amount) == 0
        images = int(self.every.amount)
        return step * self.batch // images > (step - 1) * self.batch // images


@dataclass
class SheetClock(Clock):
    """Says when sheets are due: at the interval, after 1, 10, 100 ... steps, and when none was drawn for long.

    A thousand steps are minutes of one training and days of another, and whoever begins one wants to see something.

    Attributes:
        took_seconds: that the last sheets took; None: none were drawn yet.
    """

    took_seconds: float | None = None
    _drawn: float = field(init=False)

    def __post_init__(self) -> None:
        self._drawn = self.last

    def due(self, step: int, seconds: float) -> bool:
        """Whether sheets are due after `step` steps and `seconds` of training; asked once a step."""
        wait = max(FIRST_WAIT_SECONDS, seconds / 10, LEAST_SHARE * (self.took_seconds or 0.0))
        is_first = str(step).rstrip("0") == "1"
        return super().due(step, seconds) or is_first or seconds - self._drawn >= wait

    def took_at_most(self, seconds: float) -> bool:
        """Whether sheets were drawn, the last ones in so many seconds."""
        return self.took_seconds is not None and self.took_seconds <= seconds

    def drew(self, seconds: float, took_seconds: float) -> None:
        """Take note of sheets that were drawn after `seconds` of training."""
        self._drawn, self.took_seconds = seconds, took_seconds
