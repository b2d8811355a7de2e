"""Losses of a run by side, read from its events."""

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frugan.engine.run.events import read_events


@dataclass
class LossHistory:
    """Losses by side, in the order of steps."""

    # side -> loss of every step; the losses that an imported model brought stand first
    curves: "dict[str, array[float]]" = field(default_factory=dict)
    # side -> the step of each entry of its curve; 0 for those that were imported
    steps: "dict[str, array[int]]" = field(default_factory=dict)

    @classmethod
    def of(cls, events: Path) -> "LossHistory":
        """From an event file, which may not be there yet."""
        history = cls()
        if events.is_file():
            for event in read_events(events):
                with suppress(LookupError, TypeError, ValueError, AttributeError, OverflowError):  # of another version
                    history.add(event)
        return history

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in one event; only steps and imports count, and where training went back to go on from."""
        kind = event["event"]
        if kind == "imported":
            for losses in event.get("loss_history", []):
                for side, value in zip(event["loss_sides"], losses, strict=True):
                    self._append(str(side), 0, float(value))
        elif kind == "step":
            for side, value in sides_of(event).items():
                self._append(side, event["step"], value)
        elif kind == "resume" and "over" in event:  # what came before was another training
            self.steps.clear()
            self.curves.clear()
        elif kind in ("start", "resume"):
            for side, steps in self.steps.items():
                kept = bisect_right(steps, event["step"])
                del steps[kept:], self.curves[side][kept:]

    def _append(self, side: str, step: int, value: float) -> None:
        self.curves.setdefault(side, array("d")).append(value)  # a million steps are 8 MB, not 32 as a list
        self.steps.setdefault(side, array("q")).append(step)


def sides_of(event: Mapping[str, Any]) -> dict[str, float]:
    """Loss of each side in a step event: the sum of the terms named "side/...", over all phases; empty for families
    without sides."""
    losses: dict[str, float] = {}
    for phase in event["phases"].values():
        for name, value in phase["terms"].items():
            side, slash, _ = name.partition("/")
            if slash:
                losses[side] = losses.get(side, 0.0) + float(value)
    return losses
