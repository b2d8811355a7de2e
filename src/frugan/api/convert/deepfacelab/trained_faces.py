"""A trained face model in a run: its newest whole checkpoint, and the recipe as it was there."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frugan.api.progress import Say
from frugan.api.weights import Weights
from frugan.data.run_data import read_run_data
from frugan.engine.checkpoint import (
    MANIFEST_FILE,
    NETWORKS_FILE,
    Checkpoint,
    DamagedCheckpoint,
    newest_whole,
    step_in_name,
    verify,
)
from frugan.engine.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.families.saehd import SAEHDFamily
from frugan.recipe.recipe import Recipe


@dataclass(frozen=True)
class TrainedFaces:
    """What is to be given to another program.

    Attributes:
        run: the run folder that the checkpoint lies in; it need not be there any more.
        checkpoint: its files have been verified.
        saved: its JSON state.
        weights: of its networks, with the whole recipe.
        recipe: as it is after the checkpoint's steps.
    """

    run: RunFolder
    checkpoint: Checkpoint
    saved: Mapping[str, Any]
    weights: Weights
    recipe: Recipe

    @property
    def step(self) -> int:
        """Steps done."""
        return self.checkpoint.step

    @property
    def trained_on(self) -> dict[str, str]:
        """Source -> digest of the faces that it was last trained on."""
        return {name: data.digest for name, data in read_run_data(self.saved).items()}


def find_trained_faces(path: Path, say: Say) -> TrainedFaces:
    """Find the newest whole checkpoint of a run, or the one that a path names.

    Raises:
        BadInput: nothing of that kind is there, it is damaged, or of another family.
    """
    run, checkpoint, saved = _find(path, say)
    weights = Weights.open(checkpoint.path / NETWORKS_FILE)
    family = weights.recipe.family
    if family != SAEHDFamily.name:
        raise BadInput(f"{path}: a {family} model; DeepFaceLab and DeepFaceLive take {SAEHDFamily.name} only")
    return TrainedFaces(run, checkpoint, saved, weights, weights.recipe.at_step(checkpoint.step))


def _find(path: Path, say: Say) -> tuple[RunFolder, Checkpoint, dict[str, Any]]:
    run = RunFolder(path)
    if run.exists:
        found = newest_whole(run.checkpoints)
        if found is None:
            raise BadInput(f"{path}: the run has no checkpoint yet; train until its first one, or stop it once")
        checkpoint, saved, damage = found
        for line in damage:
            say(f"damaged checkpoint skipped: {line}")
        return run, checkpoint, saved
    step = step_in_name(path)
    if not (path / MANIFEST_FILE).is_file() or step is None:
        raise BadInput(f"{path}: expected a run folder, or one of its checkpoints: RUN/checkpoints/step-...")
    checkpoint = Checkpoint(path, step)
    try:
        return RunFolder(path.absolute().parent.parent), checkpoint, verify(checkpoint)
    except DamagedCheckpoint as error:
        raise BadInput(f"{error}; take another checkpoint, or the run, which passes over damaged ones") from error
