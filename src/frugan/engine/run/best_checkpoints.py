"""The checkpoints of a run with the best scores, and which scores compare."""

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frugan.engine.run.checkpoint import EARLIER, UNFINISHED, checkpoint_name, list_checkpoints, set_aside
from frugan.engine.run.tensor_files import write_json
from frugan.files import read_json
from frugan.wording import BY_NEIGHBOURS

SCORES = "scores.json"
LOWER_IS_BETTER = frozenset({"fid", "kid_mean", "intra_fid", "cmmd"})
GUESSED = 0.5
"""Two-sample score of a judge that can only guess; a lower one is luck, and does not rank as better."""
MEASURED_ALIKE = ("data_digest", "split", "classes", "truncation", "psi", "psi_layers", "noise", "ema")
"""Settings of a measurement that must be equal for scores to compare."""
FEATURES_ALIKE = ("network_digest", "resizer", "samples", "rows", "reference_digest")
"""Further ones of scores that use a feature network."""
NEIGHBOURS_ALIKE = ("neighbours",)
"""Further ones of precision and recall; left out where it is 0: older versions took those scores in the same way."""
JUDGED_ALIKE = ("judge",)
"""Further ones of `two_sample`, whose judge tells how many pictures it saw."""


def comparable(score: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a measurement that a score depends on."""
    names = (*MEASURED_ALIKE, *(JUDGED_ALIKE if score == "two_sample" else FEATURES_ALIKE))
    settings = {name: measured[name] for name in names if name in measured}
    if score in BY_NEIGHBOURS["pr"] or score == "f_score":
        settings |= {name: measured[name] for name in NEIGHBOURS_ALIKE if measured.get(name)}
    return settings


@dataclass(frozen=True)
class BestCheckpoints:
    """Keeps the checkpoints of a run that have the best scores."""

    folder: Path  # where they are kept
    score: str  # name of the score; a run that continues with another one starts the comparison over
    count: int  # how many are kept

    def wants(self, step: int, value: float, by: Mapping[str, Any]) -> bool:
        """Return whether a state would be among the best; takes the arguments of `offer`."""
        return step in self._with(step, value, by)

    def offer(self, step: int, value: float, by: Mapping[str, Any], save: Callable[[Path], object]) -> bool:
        """Save the present state if it is among the best, and delete what no longer is.

        Args:
            by: how the score was measured, as JSON: those measured otherwise do not compare, and are set aside.
            save: writes a checkpoint into a folder.
        """
        kept, known = self._with(step, value, by), self._known(by)
        if step not in kept:
            return False
        # a checkpoint of this step is from before the run went back, and is replaced
        shutil.rmtree(self.folder / checkpoint_name(step), ignore_errors=True)
        save(self.folder)
        steps = {str(k): v for k, v in kept.items()}
        write_json(self.folder / SCORES, {"score": self.score, "by": comparable(self.score, by), "steps": steps})
        for old in list_checkpoints(self.folder):
            if old.step in known and old.step not in kept:
                shutil.rmtree(old.path)
            elif old.step not in kept:
                set_aside(old, EARLIER)
        return True

    def delete_after(self, step: int) -> list[Path]:
        """Delete checkpoints of later steps than a run goes on from: their training has been given up.

        Returns:
            What was deleted.
        """
        later = [checkpoint.path for checkpoint in list_checkpoints(self.folder) if checkpoint.step > step]
        for path in later:
            shutil.rmtree(path)
        for left in self.folder.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        return later

    def _with(self, step: int, value: float, by: Mapping[str, Any]) -> dict[int, float]:
        """Steps and values of the best, should this one be offered."""
        known = self._known(by)
        if not math.isfinite(value) or not self.count:
            return {}
        # of equal ones the later: it has learned longer
        ranked = sorted({**known, step: value}.items(), key=lambda item: (self._badness(item[1]), -item[0]))
        return dict(ranked[: self.count])

    def _badness(self, value: float) -> float:
        if self.score == "two_sample":
            return max(value, GUESSED)
        return value if self.score in LOWER_IS_BETTER else -value

    def _known(self, by: Mapping[str, Any]) -> dict[int, float]:
        """Steps and values of what is there, if they were measured in the same way."""
        values = read_json(self.folder / SCORES)
        now = comparable(self.score, by)
        kept = values.get("by", now)  # an older version did not keep it, and another keeps more
        if values.get("score") != self.score or not isinstance(kept, Mapping) or comparable(self.score, kept) != now:
            return {}
        there = {checkpoint.step for checkpoint in list_checkpoints(self.folder)}
        try:
            return {int(step): float(value) for step, value in values["steps"].items() if int(step) in there}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}
