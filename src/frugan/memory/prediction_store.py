"""Predictions that were made before, kept in files beside what they depend on."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frugan.engine.plan import Plan
from frugan.memory.prediction import Prediction, Target, predict
from frugan.memory.task import Stage, Task

FORMAT = 1


@dataclass
class PredictionStore:
    """Runs plans of one task without data, once each.

    Attributes:
        task, target: what is predicted.
        subject: the recipe's fields that a step depends on.
        fingerprint: of code and torch: what a file has that was made by others does not count.
        files: read in this order, as far as they exist and agree with the fingerprint.
        tell: is told what is run: how many so far.
        ran: how many were run and not found.
    """

    task: Task
    target: Target
    subject: Mapping[str, Any]
    fingerprint: str
    files: tuple[Path, ...] = ()
    tell: Callable[[int], None] = lambda _: None
    ran: int = 0
    _known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for file in self.files:
            self._known |= _read(file, self.fingerprint)

    def __call__(self, plan: Plan, stage: Stage, *, rough: bool) -> Prediction:
        """A plan's prediction for a stage.

        Raises:
            RuntimeError: torch refuses the plan.
        """
        key = self._key(plan, stage, rough=rough)
        if key not in self._known:
            self.ran += 1
            self.tell(self.ran)
            try:
                found = predict(self.task, plan, self.target, stage, rough=rough)
            except RuntimeError as error:
                self._known[key] = {"refused": str(error).partition("\n")[0]}
            else:
                self._known[key] = found.as_json()
        kept = self._known[key]
        if "refused" in kept:
            raise RuntimeError(kept["refused"])
        return Prediction.from_json(kept)

    def save(self, file: Path) -> None:
        """Add what is known to a file; one of another fingerprint is replaced."""
        known = _read(file, self.fingerprint) | self._known
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f"{file.name}.unfinished")
        values = {"format": FORMAT, "fingerprint": self.fingerprint, "predictions": dict(sorted(known.items()))}
        beside.write_text(json.dumps(values, separators=(",", ":")) + "\n", "utf-8")
        beside.replace(file)

    def _key(self, plan: Plan, stage: Stage, *, rough: bool) -> str:
        what = {
            "subject": self.subject,
            "plan": plan.as_json(),
            "stage": stage.name,
            "rough": rough,
            "target": self.target,
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def _read(file: Path, fingerprint: str) -> dict[str, dict[str, Any]]:
    """A file's predictions; none if it is missing, of another fingerprint, or damaged: they can be made again."""
    try:
        values = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict) or (values.get("format"), values.get("fingerprint")) != (FORMAT, fingerprint):
        return {}
    return dict(values["predictions"])
