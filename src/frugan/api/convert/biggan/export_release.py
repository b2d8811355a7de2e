"""A run, or weights, as a checkpoint folder of BigGAN-PyTorch, which that program goes on with."""

import shutil
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import Tensor, nn

from frugan.api.progress import Say
from frugan.api.weights import Weights, weights_of_family
from frugan.engine.checkpoint import OPTIMIZERS_FILE
from frugan.engine.events import read_events
from frugan.engine.run_folder import RunFolder
from frugan.engine.tensor_files import read_tensors
from frugan.errors import BadInput
from frugan.families.biggan.files.recipe_options import options_of
from frugan.families.biggan.files.release_checkpoint import SLOTS, STATE, all_names, file_name
from frugan.families.biggan.files.release_defaults import DEFAULTS
from frugan.families.biggan.files.release_names import parameter_order, release_table
from frugan.families.biggan.files.release_options import network_values, training_values
from frugan.recipe.loading import parse_recipe
from frugan.recipe.recipe import Recipe

FIRST_COUNTERS: Mapping[str, Any] = {
    "itr": 0,
    "epoch": 0,
    "save_num": 0,
    "save_best_num": 0,
    "best_IS": 0,
    "best_FID": 999999,
}
"""As that program begins."""


@dataclass(frozen=True)
class ExportedCheckpoint:
    """What `to_biggan_pytorch` wrote.

    Attributes:
        folder: where.
        files: in it.
        step: iterations done.
    """

    folder: Path
    files: tuple[str, ...]
    step: int


def to_biggan_pytorch(
    source: str | Path, folder: str | Path, *, replace: bool = False, say: Say = print
) -> ExportedCheckpoint:
    """Write G.pth, D.pth, G_ema.pth, Adam's states and state_dict.pth, as far as there is something for them.

    Args:
        source: run, checkpoint or weights file.
        folder: becomes the experiment's folder.
        replace: such files may be there already; all of them go, also those that the new ones have none of.
        say: is given a line for everything that does not simply go over.

    Raises:
        BadInput: nothing to write, of another family, or files are there.
        OSError: the disk is full or the folder cannot be written.
    """
    source, folder = Path(source), Path(folder)
    trained, averaged = weights_of_family(source, "biggan", say)
    step = trained.step
    imported = _imported(source, trained.path)
    options, lines = _options(trained.recipe, step, imported.get("options"))
    for line in lines:
        say(line)
    files = _networks(trained, averaged, options)
    beside = trained.path.parent / OPTIMIZERS_FILE
    if beside.is_file() and step:
        files |= _optimizers(beside, files, trained.recipe, step)
    else:
        say(f"{trained.path}: no optimizer state beside it; that program begins with fresh statistics")
    counters = {**FIRST_COUNTERS, **imported.get("counters", {}), "itr": step}
    if imported and imported.get("counters", {}).get("itr") != step:
        say("epoch, best_IS and best_FID are those of the imported checkpoint")
    files[STATE] = {**counters, "config": options | _activations(options)}
    _write(folder, files, replace=replace)
    return ExportedCheckpoint(folder, tuple(file_name(name, "") for name in files), step)


def _imported(source: Path, weights: Path) -> dict[str, Any]:
    """What the run says of the checkpoint that it was made of; empty: it was made of none."""
    for folder in (source, *weights.parents[:3]):
        events = RunFolder(folder).events
        if events.is_file():
            found = [event for event in read_events(events) if event["event"] == "imported"]
            return dict(found[-1]) if found and found[-1].get("format") == "biggan-pytorch" else {}
    return {}


def _options(recipe: Recipe, step: int, before: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """All options: as they were imported, or the defaults; with those in force that the recipe has changed since."""
    now, lines = _stated(recipe.at_step(step))
    if before is None:
        return {**DEFAULTS, **now}, lines
    values = {"family": "biggan", "networks": network_values(before), **training_values(before)}
    then, _ = _stated(parse_recipe(values, "the imported options"))
    return {**DEFAULTS, **before, **{k: v for k, v in now.items() if v != then[k]}}, lines


def _stated(recipe: Recipe) -> tuple[dict[str, Any], list[str]]:
    values = recipe.model_dump(mode="json")
    start = recipe.ema.start.steps(recipe.training.batch)
    values["ema"]["start"] = start
    adam = {name: of.model_dump() for name, of in recipe.optimizer_settings().items()}
    return options_of(values, adam)


def _activations(options: Mapping[str, Any]) -> dict[str, nn.Module]:
    """That program keeps the layers themselves among its options."""
    return {f"{name}_activation": nn.ReLU(inplace=options[f"{name}_nl"] != "relu") for name in ("G", "D")}


def _networks(trained: Weights, averaged: Weights, options: Mapping[str, Any]) -> dict[str, Any]:
    own_norm = options["mybn"] is True
    built = trained.recipe.kind.build(trained.recipe.networks, "meta")
    files: dict[str, Any] = {}
    for name, weights, ours in (("G", trained, "G"), ("D", trained, "D"), ("G_ema", averaged, "G")):
        tensors = {key.removeprefix(f"{ours}."): value for key, value in weights.of([ours]).items()}
        if not tensors or (name == "G_ema" and not options["ema"]):
            continue
        ordered = {key: tensors[key] for key in built[ours].state_dict()}
        found = release_table(own_batch_norm=own_norm).to_theirs(ordered).tensors
        if own_norm:
            found = _with_counters(found)
        files[name] = OrderedDict(found)
    if "G" not in files:
        raise BadInput(f"{trained.path}: holds no generator")
    return files


def _with_counters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict with the counts of accumulated batches that `mybn` keeps: 0, because its statistics are no sums."""
    found: dict[str, Tensor] = {}
    for key, value in tensors.items():
        found[key] = value
        if key.endswith(".bn.stored_var"):
            found[key.removesuffix("stored_var") + "accumulation_counter"] = torch.zeros(1)
    return found


def _optimizers(path: Path, files: Mapping[str, Any], recipe: Recipe, step: int) -> dict[str, Any]:
    tensors, _ = read_tensors(path)
    settings = recipe.at_step(step).optimizer_settings()
    table = release_table(own_batch_norm=False)  # of parameters, which are named alike
    found: dict[str, Any] = {}
    for name in ("G", "D"):
        if name not in files:
            continue
        of = settings[name].model_dump()
        order = parameter_order(files[name])
        state = {}
        for index, key in enumerate(order):
            (ours,) = table.to_ours({key: files[name][key]}).tensors
            slots = {slot: tensors.get(f"{name}/{name}.{ours}/{slot}") for slot in ("step", *SLOTS)}
            if all(value is not None for value in slots.values()):
                state[index] = slots
        betas = (of["beta1"], of["beta2"])
        adam = torch.optim.Adam([torch.zeros(())], lr=of["learning_rate"], betas=betas, eps=of["eps"])
        (group,) = adam.state_dict()["param_groups"]  # with all that torch keeps there
        found[f"{name}_optim"] = {"state": state, "param_groups": [group | {"params": list(range(len(order)))}]}
    return found


def _write(folder: Path, files: Mapping[str, Any], *, replace: bool) -> None:
    there = [name for name in (file_name(each, "") for each in all_names()) if (folder / name).exists()]
    if there and not replace:
        raise BadInput(f"{folder / there[0]}: is there already; choose another folder, or add --replace")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder}: is no folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(mkdtemp(prefix=f".{folder.name}.unfinished-", dir=folder.parent))
    try:
        for name, content in files.items():
            torch.save(content, beside / file_name(name, ""))
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            (beside / file_name(name, "")).replace(folder / file_name(name, ""))
        for name in there:
            if not any(name == file_name(each, "") for each in files):
                (folder / name).unlink()  # of another state, which that program would go on with
    finally:
        shutil.rmtree(beside, ignore_errors=True)
