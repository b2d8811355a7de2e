"""The loss of each side at every step of a run, out of its events."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frugan.engine.events import current_history


def sides_of(event: Mapping[str, Any]) -> dict[str, float]:
    """Loss of each side in a step event: the sum of the terms named "side/...", over all phases; empty for families
    without sides."""
    found: dict[str, float] = {}
    for phase in event["phases"].values():
        for name, value in phase["terms"].items():
            side, slash, _ = name.partition("/")
            if slash:
                found[side] = found.get(side, 0.0) + float(value)
    return found


@dataclass
class LossHistory:
    """Losses by side, in the order of steps.

    Attributes:
        curves: side -> loss of every step; the losses that an imported model brought stand first.
    """

    curves: "dict[str, array[float]]" = field(default_factory=dict)

    @classmethod
    def of(cls, events: Path) -> "LossHistory":
        """From an event file, which may not be there yet."""
        history = cls()
        if events.is_file():
            for event in current_history(events):
                history.add(event)
        return history

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in one event; only steps and imports count."""
        if event["event"] == "imported":
            for source, destination in event.get("loss_history", []):
                self._curve("src").append(float(source))
                self._curve("dst").append(float(destination))
        elif event["event"] == "step":
            for side, value in sides_of(event).items():
                self._curve(side).append(value)

    def _curve(self, side: str) -> "array[float]":
        return self.curves.setdefault(side, array("d"))  # a million steps are 8 MB, not 32 as a list
