"""Whether training is sound: how long every update has been finite, and which checkpoints are from before trouble."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frugan.engine.checkpoint import DIVERGED, STATE_FILE, Checkpoint, list_checkpoints, set_aside_newer
from frugan.errors import TrainingFailed

LONG = 100
"""Steps without a skipped update that make a checkpoint sound: fp16 skips one now and then, and goes on."""
MOST_SKIPS = 20
"""Updates of one phase skipped in a row before the run stops: halvings enough for any loss scale that fp16 reaches."""
FINITE_STEPS = "finite_steps"
"""Under this name a checkpoint keeps how many steps before it had no skipped update."""


class Diverged(TrainingFailed):
    """Updates were skipped too often in a row.

    Args:
        message: for people, with what to do.
        phase: whose updates.
        step: steps done.
        reason: what was not finite.
        out_of_range: whether fp16 overflowed though its loss scale was at its least.
    """

    def __init__(self, message: str, *, phase: str, step: int, reason: str, out_of_range: bool) -> None:
        super().__init__(message)
        self.phase = phase
        self.step = step
        self.reason = reason
        self.out_of_range = out_of_range


@dataclass
class Soundness:
    """What is known of the updates so far.

    Attributes:
        finite_steps: steps since an update was last skipped.
        in_a_row: phase -> updates skipped in a row.
        trouble: step at which updates began to be skipped; None: that is long past, or none was.
    """

    finite_steps: int = 0
    in_a_row: dict[str, int] = field(default_factory=dict)
    trouble: int | None = None

    @classmethod
    def of(cls, saved: Mapping[str, Any], step: int) -> "Soundness":
        """As a checkpoint's JSON state has it; of one that says nothing all steps are taken to be finite."""
        finite_steps = int(saved.get(FINITE_STEPS, step))
        return cls(finite_steps, trouble=None if finite_steps >= min(LONG, step) else step - finite_steps)

    def count(self, step: int, ran: Mapping[str, int], skipped: Mapping[str, int]) -> None:
        """Take in a step.

        Args:
            ran: phase -> its updates in this step.
            skipped: phase -> those that were skipped.
        """
        for phase, updates in ran.items():
            self.in_a_row[phase] = self.in_a_row.get(phase, 0) + updates if skipped[phase] == updates else 0
        if not any(skipped.values()):
            self.finite_steps += 1
            if self.finite_steps >= LONG:
                self.trouble = None
            return
        self.finite_steps = 0
        if self.trouble is None:
            self.trouble = step

    def kept(self, folder: Path, step: int) -> set[int]:
        """Steps of the checkpoints that are kept for what may come, besides the newest ones.

        The newest sound one that is long before the trouble, or before now; and the oldest sound one after it, which
        becomes that in time.
        """
        sound = [checkpoint.step for checkpoint in sound_checkpoints(folder)]
        until = (step if self.trouble is None else self.trouble) - LONG
        before = max((each for each in sound if each <= until), default=-1)
        after = min((each for each in sound if each > before), default=before)
        return {before, after}


def sound_checkpoints(folder: Path) -> list[Checkpoint]:
    """Checkpoints before which all updates were finite for long (or from the start), oldest first."""
    return [one for one in list_checkpoints(folder) if finite_steps(one) >= min(LONG, one.step)]


def finite_steps(checkpoint: Checkpoint) -> int:
    """Steps before a checkpoint without a skipped update, all of them where it does not say; -1: it is damaged."""
    try:
        state = json.loads((checkpoint.path / STATE_FILE).read_text("utf-8"))
        return int(state.get(FINITE_STEPS, checkpoint.step))
    except (OSError, ValueError, TypeError, AttributeError):
        return -1


def way_back(folder: Path, command: str | None, rates: Mapping[str, float], precision: str) -> str:
    """What to do once training has diverged, in words; checkpoints from within the trouble are set aside for it.

    Args:
        folder: of the checkpoints.
        command: that goes on with the run; None: there is none.
        rates: learning rates of the optimizers whose updates were skipped.
        precision: by name.
    """
    anew = "" if precision == "fp32" else "; or begin a new run with training.precision=fp32"
    sound = sound_checkpoints(folder)
    if not sound:
        return f"No checkpoint is older than that: begin a new run with a smaller learning rate{anew}"
    words = " ".join(f"optimizers.{name}.learning_rate={rate / 2:g}" for name, rate in rates.items())
    newest = sound[-1]
    aside = set_aside_newer(folder, newest, DIVERGED)
    lines = [
        f"{newest.path} is from before that, after {finite_steps(newest):,} good steps in a row"
        + (f" (newer ones were set aside: {', '.join(path.name for path in aside)})" if aside else "")
        + ". Resume from it with a smaller learning rate"
        + (f":\n  {command} {words}" if command else anew)
    ]
    if command:
        next_one = f"delete it, and the same command resumes from step {sound[-2].step:,}" if len(sound) > 1 else ""
        others = [part for part in (next_one, anew.removeprefix("; or ")) if part]
        lines += [f"If it diverges again: {', or '.join(others)}"] if others else []
    return "\n".join(lines)
