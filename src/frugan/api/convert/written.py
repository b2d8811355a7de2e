"""What conversions write: weights in a file or a folder, or a run; each whole or not at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from frugan.api.weights import weights_metadata
from frugan.data.unfinished import unfinished_folder
from frugan.engine.checkpoint import EMA_FILE, NETWORKS_FILE, save_checkpoint
from frugan.engine.events import EventLog
from frugan.engine.run_folder import RunFolder
from frugan.engine.state import TrainingState
from frugan.engine.tensor_files import write_json, write_tensors
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe
from frugan.recipe.toml import RECIPE_FILE, dump_recipe
from frugan.whole_files import whole_file

WEIGHTS_SUFFIX = ".safetensors"


def write_weights_file(path: Path, tensors: Mapping[str, Tensor], recipe: Recipe) -> None:
    """Write "network.parameter" tensors as a file that needs nothing else to be loaded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as beside:
        write_tensors(beside, tensors, weights_metadata(recipe))


def write_weights_folder(
    path: Path, trained: Mapping[str, Tensor], averaged: Mapping[str, Tensor], recipe: Recipe
) -> None:
    """Write networks as they were trained, their averages, and the recipe to fine-tune them by."""
    with unfinished_folder(path.absolute()) as beside:
        write_tensors(beside / NETWORKS_FILE, trained, weights_metadata(recipe))
        write_tensors(beside / EMA_FILE, averaged, weights_metadata(recipe))
        (beside / RECIPE_FILE).write_text(dump_recipe(recipe), "utf-8", newline="\n")


def free_for_a_run(out: str | Path) -> RunFolder:
    """The folder that a run may be written to.

    Raises:
        BadInput: something is there.
    """
    run = RunFolder(Path(out))
    if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
        raise BadInput(f"{run.path}: is there already; choose a new or empty folder for the run")
    return run


def write_run(run: RunFolder, recipe: Recipe, state: TrainingState, imported: Mapping[str, Any]) -> None:
    """Write a run with one checkpoint.

    Args:
        imported: of the event that says where it came from.
    """
    extra = {"seconds": 0, "plan": {"precision": "auto"}, "data": {}}
    with unfinished_folder(run.path.absolute()) as folder:  # "." could neither be removed nor replaced
        beside = RunFolder(folder)
        save_checkpoint(beside.checkpoints, state, weights_metadata(recipe), extra)
        (beside.path / RECIPE_FILE).write_text(dump_recipe(recipe), "utf-8", newline="\n")
        with EventLog(beside.events) as log:
            log.write("imported", step=state.step, **imported)
        write_json(beside.recipe, recipe.model_dump(mode="json"))
