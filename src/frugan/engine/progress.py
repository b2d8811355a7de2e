"""Durations with a unit, so that a schedule survives a change of batch."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, GetCoreSchemaHandler
from pydantic_core import core_schema

Unit = Literal["steps", "images", "seconds", "endless"]

_FORM = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kM]?)\s*(steps?|images?|h|min|s)\s*$")
_SECONDS = (("h", 3600), ("min", 60), ("s", 1))
MOST = 10**15
"""Steps, images or seconds: beyond all training, and exact as a float."""


@dataclass(frozen=True)
class Duration:
    """So many steps, images or seconds.

    Written `150k steps`, `25M images`, `6h`, `90min` or `30s`.

    Attributes:
        amount: a whole number of steps or images; seconds may be a fraction; infinite without an end.
        unit: what is counted.
        text: as it was written.
    """

    amount: float
    unit: Unit
    text: str

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """Read a duration.

        Raises:
            ValueError: not in one of the forms above.
        """
        found = _FORM.match(text)
        if not found:
            raise ValueError(
                f"duration {text!r}: expected a number with a unit, such as '150k steps', '25M images' or '6h'"
            )
        number, prefix, unit = found.groups()
        amount = float(number) * {"": 1, "k": 1_000, "M": 1_000_000}[prefix]
        if amount > MOST:
            raise ValueError(f"duration {text[:40]!r}: expected at most 1e15")
        for name, seconds in _SECONDS:
            if unit == name:
                return cls(amount * seconds, "seconds", text)
        if amount != int(amount):
            raise ValueError(f"duration {text!r}: expected a whole number of {unit}")
        return cls(amount, "steps" if unit.startswith("step") else "images", text)

    def __str__(self) -> str:
        return self.text

    def steps(self, batch: int) -> int:
        """Whole steps, rounded up, at `batch` images a step.

        Raises:
            ValueError: the duration is in seconds or has no end.
        """
        if (steps := self.known_steps(batch)) is None:
            raise ValueError(f"{self.text} has no number of steps")
        return steps

    def known_steps(self, batch: int) -> int | None:
        """As `steps`, but None where there is no such number."""
        if self.unit in ("seconds", "endless"):
            return None
        return int(self.amount) if self.unit == "steps" else -(-int(self.amount) // batch)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def read(value: Any) -> Duration:
            if isinstance(value, cls):
                return value
            if isinstance(value, str):
                return cls.parse(value)
            raise ValueError(f"duration {value!r}: expected text with a unit, such as '150k steps'")

        return core_schema.no_info_plain_validator_function(read, serialization=core_schema.to_string_ser_schema())


ENDLESS = Duration(math.inf, "endless", "endless")
"""Of a training that only a person stops; of nothing else, so that `parse` does not know it."""


def _above_nothing(duration: Duration) -> Duration:
    if duration.amount <= 0:
        raise ValueError(f"{str(duration)!r}: expected more than nothing, such as '1k steps'")
    return duration


Interval = Annotated[Duration, AfterValidator(_above_nothing)]
"""A duration that is longer than nothing: how long, or how often."""
