"""Runs and weights written of what a format has read."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frugan.accelerator.precision import resolve_precision
from frugan.contract.formats import (
    RECIPE_FILE,
    WEIGHTS_SUFFIX,
    Conversion,
    Converted,
    Imported,
    Target,
)
from frugan.conversion.verification import verify_conversion
from frugan.engine.plan import Plan
from frugan.engine.run.checkpoint import (
    EMA_FILE,
    NETWORKS_FILE,
    load_networks,
    load_optimizers,
    refuse_others,
    save_checkpoint,
)
from frugan.engine.run.events import EventLog
from frugan.engine.run.run_folder import RunFolder, checkpoint_bytes
from frugan.engine.run.tensor_files import write_json, write_tensors
from frugan.engine.state.state import TrainingState
from frugan.errors import BadInput
from frugan.files import atomic_file, atomic_folder, refuse_full, refuse_lack_of_room
from frugan.recipe.loading import dump_recipe, parse_recipe
from frugan.recipe.recipe import Recipe
from frugan.setup.networks import weights_metadata
from frugan.setup.recipe_setup import training_of


def write_whole(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a tensor file, whole or not at all; its folder is made if it is missing.

    Raises:
        BadInput: the disk has no room for it.
    """
    refuse_lack_of_room(path, sum(tensor.nbytes for tensor in tensors.values()), "the weights", "choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as beside:
        write_tensors(beside, tensors, metadata)


CPU = torch.device("cpu")


def target_of(out: Path, makes: Collection[Target]) -> Target:
    """Return the kind of target that an output path stands for, among those that a reader makes."""
    if "file" in makes and (out.suffix == WEIGHTS_SUFFIX or len(makes) == 1):
        return "file"
    return "run" if "run" in makes else "folder"


def check_target(conversion: Conversion, makes: Collection[Target]) -> None:
    """Refuse what cannot be written, before anything is read.

    Raises:
        BadInput: something is there, or it is another kind of target than the options are for.
    """
    out, target = conversion.out, target_of(conversion.out, makes)
    if target != "run" and out.exists():
        folder = ", or a new folder" if "folder" in makes else ""
        raise BadInput(f"{out}: is there already; choose a new file ending in {WEIGHTS_SUFFIX}{folder}")
    if conversion.raw and target != "file":
        both = "the generator and its average" if target == "run" else "as trained and averaged"
        raise BadInput(f"--raw is for a file ending in {WEIGHTS_SUFFIX}; a {target} has both, {both}")
    if target == "run":
        refuse_full(out, "the run")


def write_imported(conversion: Conversion, imported: Imported, makes: Collection[Target]) -> Converted:
    """Write what a format has read, as a run, a file or a folder.

    Raises:
        BadInput: its networks are not the recipe's, or do not draw what the source's do.
        OSError: the disk is full or the target cannot be written; nothing is left then.
    """
    source, target = conversion.source, target_of(conversion.out, makes)
    recipe = parse_recipe(imported.recipe.values, str(source))
    for tensors in (imported.networks, imported.averages):
        _check_networks(recipe, tensors, str(source))
    facts, lines, difference = dict(imported.facts), list(imported.lines), None
    if conversion.verify:
        checked = verify_conversion(
            recipe, imported.networks | imported.averages, source if source.is_dir() else source.parent
        )
        facts["difference"] = difference = checked.difference
        lines.insert(1, checked.line)
    if target == "run":
        write_run(RunFolder(conversion.out), recipe, _state(recipe, imported, conversion), imported.event)
    elif target == "file":
        write_whole(conversion.out, imported.networks, weights_metadata(recipe))
    else:
        _write_folder(conversion.out, imported.networks, imported.averages, recipe)
    return Converted(
        conversion.out, facts, lines, recipe, imported.name, imported.step, imported.parts, difference=difference
    )


def _check_networks(recipe: Recipe, tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse tensors that are not those of the recipe's networks, before anything takes memory for them."""
    built = recipe.kind.build(recipe.networks, "meta")
    there = {key.partition(".")[0] for key in tensors}
    refuse_others({name: network for name, network in built.items() if name in there}, tensors, where)


def _state(recipe: Recipe, imported: Imported, conversion: Conversion) -> TrainingState:
    """The training state after the model's updates; its tensors are taken out of it, being perhaps gigabytes.

    What it has no tensors of starts fresh; what no phase uses at present is parked, as the engine does itself.
    """
    training, where = training_of(recipe), str(conversion.source)
    state = training.state(Plan(training.batch, resolve_precision("fp32", CPU)), CPU)
    state.step = imported.step
    state.loss_scales.clear()  # the precision, and with it the scale, is chosen where training goes on
    there = {key.partition(".")[0] for key in imported.networks}
    averaged = {name: network for name, network in state.ema.networks.items() if name in there}
    load_networks(averaged, imported.averages or _of(averaged, imported.networks), where)
    taken = {name: network for name, network in state.networks.items() if name in there}
    load_networks(taken, _of(taken, imported.networks), where)
    for key in _of(taken, imported.networks):
        del imported.networks[key]
    state.parked[NETWORKS_FILE] = imported.networks
    for line in load_optimizers(imported.optimizers, state, (), where):
        conversion.say(line)
    return state


def _of(networks: Collection[str], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of some networks."""
    return {key: value for key, value in tensors.items() if key.partition(".")[0] in networks}


def _write_folder(path: Path, trained: Mapping[str, Tensor], averaged: Mapping[str, Tensor], recipe: Recipe) -> None:
    """Write networks as they were trained, their averages, and the recipe to fine-tune them by."""
    needed = sum(tensor.nbytes for tensors in (trained, averaged) for tensor in tensors.values())
    refuse_lack_of_room(path, needed, "the weights", "choose another name")
    with atomic_folder(path.absolute()) as beside:
        write_tensors(beside / NETWORKS_FILE, trained, weights_metadata(recipe))
        write_tensors(beside / EMA_FILE, averaged, weights_metadata(recipe))
        (beside / RECIPE_FILE).write_text(dump_recipe(recipe), "utf-8", newline="\n")


def write_run(run: RunFolder, recipe: Recipe, state: TrainingState, imported: Mapping[str, Any]) -> None:
    """Write a run with one checkpoint.

    Args:
        imported: of the event that says where it came from.
    """
    extra = {"seconds": 0, "plan": {"precision": "auto"}, "data": {}}
    refuse_lack_of_room(run.path, checkpoint_bytes(state), "its checkpoint", "choose another name")
    with atomic_folder(run.path.absolute()) as folder:  # "." could neither be removed nor replaced
        beside = RunFolder(folder)
        save_checkpoint(beside.checkpoints, state, weights_metadata(recipe), extra)
        (beside.path / RECIPE_FILE).write_text(dump_recipe(recipe), "utf-8", newline="\n")
        with EventLog(beside.events) as log:
            log.write("imported", step=state.step, **imported)
        write_json(beside.recipe, recipe.model_dump(mode="json"))
