"""How long steps take of late: for the time that is left, and to notice when something slows them down."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

WINDOW = 100
"""Steps that the time left is reckoned from."""
RECENT = 8
"""Steps whose median is compared with what was usual: phases that are due now and then do not move it."""
SLOWED = 3.0
"""Times the usual: from here on it is worth asking why."""
LEAST_SECONDS = 5.0
"""That recent steps take together, before slowness matters."""
FIRST_WAIT_SECONDS = 60.0
"""Between two looks at what slows steps down; twice as long after each."""


@dataclass
class Pace:
    """Times of the steps of one stage, from the beginning of each to that of the next.

    The very first is forgotten once there is another: it makes what later ones find ready.
    """

    _times: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _steps: int = 0
    _usual: float = float("inf")
    _looks: int = 0
    _since_look: float = 0.0

    def add(self, seconds: float) -> None:
        """Take the time of the next step."""
        if self._steps == 1:
            self._times.clear()
        self._steps += 1
        self._times.append(seconds)
        self._since_look += seconds
        if len(self._times) >= RECENT:
            self._usual = min(self._usual, self._recent())

    @property
    def seconds_per_step(self) -> float | None:
        """Mean of the last steps, with what was written between them; None: the very first alone says too little."""
        return sum(self._times) / len(self._times) if self._steps > 1 else None

    def slowed(self) -> float | None:
        """How many times as long as usual steps take now; None: not many, or it was looked into a short while ago."""
        if len(self._times) < RECENT or RECENT * self._recent() < LEAST_SECONDS:
            return None
        if self._looks and self._since_look < FIRST_WAIT_SECONDS * 2 ** (self._looks - 1):
            return None
        factor = self._recent() / self._usual
        return factor if factor >= SLOWED else None

    def looked(self) -> None:
        """It was looked into: what comes now is the usual."""
        self._times.clear()
        self._usual, self._since_look = float("inf"), 0.0
        self._looks += 1

    def _recent(self) -> float:
        return median(list(self._times)[-RECENT:])
