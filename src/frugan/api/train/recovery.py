"""A run that has diverged goes back to its last sound checkpoint, by itself, as often as the recipe lets it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from frugan.api.train.run import TrainRun
from frugan.engine.checkpoint import (
    DIVERGED,
    EMA_FILE,
    NETWORKS_FILE,
    OPTIMIZERS_FILE,
    Checkpoint,
    list_checkpoints,
    newest_whole,
    set_aside,
)
from frugan.engine.precision import Precision, wider_precision
from frugan.engine.step_log import Diverged, sound_checkpoints
from frugan.engine.streams import derive_seed
from frugan.engine.tensor_files import read_tensors
from frugan.errors import BadInput

ROLLBACKS = "rollbacks"
"""Under this name a checkpoint keeps how often its run went back: the order of data goes by it."""


@dataclass(frozen=True)
class Recovery:
    """What became of a run in this process so far."""

    rollbacks: int = 0  # how often it went back, over all resumptions
    precision: Precision | None = None  # that it goes on in; None: as it did


NOTHING_HAPPENED = Recovery()


def rolled_back(saved: Mapping[str, Any]) -> int:
    """How often a run had gone back when a checkpoint was written, by its JSON state."""
    number = saved.get(ROLLBACKS, 0)
    return number if isinstance(number, int) else 0


def seed_after(seed: int, rollbacks: int) -> int:
    """The seed that order of data and draws go by after so many rollbacks."""
    return derive_seed(seed, "rollback", rollbacks) if rollbacks else seed


def recover(run: TrainRun, error: Diverged, before: Recovery, device: torch.device) -> Recovery:
    """Decide how a run that has diverged goes on, say so, and keep it among the events.

    Where fp16 has not the range and the recipe leaves the precision open, in a wider one; else in another order of
    data. Checkpoints from within the trouble have been set aside already; those with values that are not finite are
    set aside here.

    Raises:
        Diverged: as given: no sound checkpoint is left, or the recipe lets it go back no more.
    """
    newest = _newest_finite(run.folder.checkpoints)
    if newest is None:
        run.log.write("diverged", step=error.step, phase=error.phase, reason=error.reason, rollbacks=before.rollbacks)
        raise error
    checkpoint, saved = newest
    facts = {"phase": error.phase, "reason": error.reason, "to": checkpoint.step}
    if error.out_of_range and before.precision is None and run.recipe.training.precision == "auto":
        wider = wider_precision(device)
        run.log.write("precision", step=error.step, before="fp16", now=wider.name, **facts)
        run.warn(
            error.step,
            f"phase {error.phase}: fp16 overflows even at its least loss scale ({error.reason}); the run goes on in "
            f"{wider.name} from step {checkpoint.step:,}, as training.precision is auto",
        )
        return replace(before, precision=wider)
    done, most = max(before.rollbacks, rolled_back(saved)), run.recipe.training.rollbacks
    if done >= most:
        run.log.write("diverged", step=error.step, rollbacks=done, **facts)
        raise error
    run.log.write("rollback", step=error.step, number=done + 1, most=most, **facts)
    run.warn(
        error.step,
        f"phase {error.phase}: updates stay not finite ({error.reason}); back to step {checkpoint.step:,} and on in "
        f"another order of data ({done + 1} of training.rollbacks={most})",
    )
    return replace(before, rollbacks=done + 1)


def _newest_finite(folder: Path) -> tuple[Checkpoint, dict[str, Any]] | None:
    """The newest whole checkpoint, if it is sound and every number in it is finite; others are set aside until it is.

    A weight that went bad in memory is in the next checkpoint before the update that it spoils is known.
    """
    while list_checkpoints(folder):
        try:
            newest = newest_whole(folder)
        except BadInput:  # none is
            return None
        if newest is None or newest[0].step not in {each.step for each in sound_checkpoints(folder)}:
            return None
        if _finite(newest[0].path):
            return newest[0], newest[1]
        set_aside(newest[0], DIVERGED)
    return None


def _finite(path: Path) -> bool:
    files = [path / name for name in (NETWORKS_FILE, EMA_FILE, OPTIMIZERS_FILE) if (path / name).is_file()]
    return all(
        bool(torch.isfinite(tensor).all())
        for file in files
        for tensor in read_tensors(file)[0].values()
        if tensor.is_floating_point()
    )
