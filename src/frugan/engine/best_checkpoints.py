"""Checkpoints kept for their score: the best few of a run, not the latest of those that were once the best."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from frugan.engine.checkpoint import UNFINISHED, checkpoint_name, list_checkpoints
from frugan.engine.tensor_files import write_json

SCORES = "scores.json"
LOWER_IS_BETTER = frozenset({"fid", "kid_mean", "intra_fid"})


@dataclass(frozen=True)
class BestCheckpoints:
    """The best checkpoints of a run.

    Attributes:
        folder: where they are.
        score: by which; a run that goes on by another one starts to compare anew.
        count: so many are kept.
    """

    folder: Path
    score: str
    count: int

    def wants(self, step: int, value: float) -> bool:
        """Whether a state would be among the best."""
        return step in self._with(step, value)

    def offer(self, step: int, value: float, save: Callable[[Path], object]) -> bool:
        """Save the present state if it is among the best, and delete what no longer is.

        Args:
            save: writes a checkpoint into a folder.
        """
        kept = self._with(step, value)
        if step not in kept:
            return False
        # what is there of this step is of another past, which the run has gone back behind
        shutil.rmtree(self.folder / checkpoint_name(step), ignore_errors=True)
        save(self.folder)
        write_json(self.folder / SCORES, {"score": self.score, "steps": {str(k): v for k, v in kept.items()}})
        for old in list_checkpoints(self.folder):
            if old.step not in kept:
                shutil.rmtree(old.path)
        return True

    def forget_after(self, step: int) -> list[Path]:
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

    def _with(self, step: int, value: float) -> dict[int, float]:
        """Steps and values of the best, should this one be offered."""
        known = self._known()
        if not math.isfinite(value) or not self.count:
            return {}
        ranked = sorted({**known, step: value}.items(), key=lambda item: (self._badness(item[1]), item[0]))
        return dict(ranked[: self.count])

    def _badness(self, value: float) -> float:
        return value if self.score in LOWER_IS_BETTER else -value

    def _known(self) -> dict[int, float]:
        """Steps and values of what is there."""
        try:
            values = json.loads((self.folder / SCORES).read_text("utf-8"))
            if values["score"] != self.score:
                return {}
            there = {checkpoint.step for checkpoint in list_checkpoints(self.folder)}
            return {int(step): float(value) for step, value in values["steps"].items() if int(step) in there}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
