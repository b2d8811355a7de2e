"""What a format may ask for of frugan's own, and runs and weights written of what it has read."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from frugan.api.convert.verification import verify_conversion
from frugan.api.data import open_sources
from frugan.api.networks import Weights, weights_metadata, weights_of_family
from frugan.api.progress import Say
from frugan.api.sample.networks import provenance
from frugan.api.setup import training_of
from frugan.api.train.observers import LossHistory
from frugan.contract.formats import (
    RECIPE_FILE,
    WEIGHTS_SUFFIX,
    Conversion,
    Converted,
    Imported,
    RecipeValues,
    Target,
    Trained,
)
from frugan.data.run_data import read_run_data
from frugan.engine.checkpoint import (
    EMA_FILE,
    MANIFEST_FILE,
    NETWORKS_FILE,
    OPTIMIZERS_FILE,
    Checkpoint,
    DamagedCheckpoint,
    load_networks,
    load_optimizers,
    newest_whole,
    refuse_others,
    save_checkpoint,
    step_in_name,
    verify,
)
from frugan.engine.events import Event, EventLog, read_events
from frugan.engine.plan import Plan
from frugan.engine.precision import resolve_precision
from frugan.engine.run_folder import RunFolder
from frugan.engine.state import TrainingState
from frugan.engine.tensor_files import read_tensors, write_json, write_tensors
from frugan.errors import BadInput
from frugan.files import atomic_file, atomic_folder, refuse_full
from frugan.recipe.loading import dump_recipe, load_recipe, parse_recipe, recipe_with
from frugan.recipe.recipe import Recipe
from frugan.recipes import built_in


class Ours:
    """See `frugan.contract.formats.OurSide`."""

    def __init__(self, asked: Conversion) -> None:
        self._asked = asked

    def recipe(self, values: Mapping[str, Any], where: str) -> RecipeValues:
        """See `OurSide`."""
        recipe = parse_recipe(values, where)
        if self._asked.overrides:
            recipe = recipe_with(recipe.model_dump(mode="json"), self._asked.overrides, f"recipe of {where}")
        return recipe_values(recipe)

    def shipped(self, name: str) -> RecipeValues | None:
        """See `OurSide`."""
        return recipe_values(load_recipe(name)) if name in built_in() else None

    def load(self, networks: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], where: str) -> None:
        """See `OurSide`."""
        load_networks(networks, tensors, where)

    def weights(self, family: str) -> Trained:
        """See `OurSide`."""
        source, say = self._asked.source, self._asked.say
        trained, averaged = weights_of_family(source, family, say)
        folders = (source, *trained.path.absolute().parents[:3])
        run = next((folder for folder in folders if RunFolder(folder).events.is_file()), trained.path.parent)
        return _trained(trained, averaged, trained.step, RunFolder(run), {})

    def checkpoint(self) -> Trained:
        """See `OurSide`."""
        run, checkpoint, saved = _checkpoint(self._asked.source, self._asked.say)
        trained = Weights.open(checkpoint.path / NETWORKS_FILE)
        averages = checkpoint.path / EMA_FILE
        averaged = Weights.open(averages) if averages.is_file() else trained
        return _trained(trained, averaged, checkpoint.step, run, saved)

    def write_tensors(self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """See `OurSide`."""
        write_whole(path, tensors, metadata)

    def is_run(self, folder: Path) -> bool:
        """See `OurSide`."""
        return RunFolder(folder).exists

    def data(self, trained: Trained) -> Mapping[str, Any]:
        """See `OurSide`."""
        recipe = parse_recipe(trained.recipe.values, str(trained.path))
        return open_sources(recipe, self._asked.data, self._asked.say, None)


def recipe_values(recipe: Recipe) -> RecipeValues:
    """A recipe as a format sees it."""
    batch, backup, phases = recipe.training.batch, recipe.saving.backup_every, training_of(recipe).phases
    return RecipeValues(
        values=recipe.model_dump(mode="json"),
        networks=recipe.networks,
        objective=recipe.objective,
        optimizers={name: of.model_dump() for name, of in recipe.optimizer_settings().items()},
        used=frozenset(name for phase in phases for name in phase.uses),
        optimizers_used=frozenset(phase.optimizer for phase in phases),
        steps=recipe.training.duration.known_steps(batch),
        averages_from=recipe.ema.start.steps(batch),
        backup_seconds=backup.amount if backup is not None and backup.unit == "seconds" else None,
    )


def _trained(trained: Weights, averaged: Weights, step: int, run: RunFolder, saved: Mapping[str, Any]) -> Trained:
    now, optimizers = trained.recipe.at_step(step), trained.path.parent / OPTIMIZERS_FILE
    return Trained(
        path=trained.path,
        averaged=averaged.path,
        run=run.path,
        recipe=recipe_values(now),
        networks=trained.tensors,
        averages=averaged.tensors,
        step=step,
        later_stages=[at for at in trained.recipe.stage_steps() if at > step],
        trained_on={name: data.digest for name, data in read_run_data(saved).items()},
        imported=lambda: next((event for event in _events(run) if event["event"] == "imported"), None),
        optimizers=(lambda: read_tensors(optimizers)[0]) if optimizers.is_file() else None,
        losses=lambda: _losses(run, step),
        note=provenance(now, step),
    )


def write_whole(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a tensor file, whole or not at all; its folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as beside:
        write_tensors(beside, tensors, metadata)


def _checkpoint(path: Path, say: Say) -> tuple[RunFolder, Checkpoint, dict[str, Any]]:
    """The newest whole checkpoint of a run, or the one that a path names; with its run and its JSON state.

    Raises:
        BadInput: nothing of that kind is there, or it is damaged.
    """
    run = RunFolder(path)
    if run.exists:
        newest = newest_whole(run.checkpoints)
        if newest is None:
            raise BadInput(f"{path}: the run has no checkpoint yet; train until its first one, or stop it once")
        checkpoint, saved, damage = newest
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


def _events(run: RunFolder) -> Iterator[Event]:
    """The run's events one by one: of a long run they are gigabytes."""
    return read_events(run.events) if run.events.is_file() else iter(())


def _losses(run: RunFolder, step: int) -> dict[str, tuple[Sequence[int], Sequence[float]]]:
    """Side -> (step of each entry, loss), up to a step."""
    history = LossHistory()
    for event in _events(run):
        if event.get("step", 0) <= step:
            history.add(event)
    return {side: (history.steps[side], curve) for side, curve in history.curves.items()}


CPU = torch.device("cpu")


def target_of(out: Path, makes: Collection[Target]) -> Target:
    """What a model that is read becomes, by the name that was given for it."""
    if "file" in makes and (out.suffix == WEIGHTS_SUFFIX or len(makes) == 1):
        return "file"
    return "run" if "run" in makes else "folder"


def check_target(asked: Conversion, makes: Collection[Target]) -> None:
    """Refuse what cannot be written, before anything is read.

    Raises:
        BadInput: something is there, or it is another kind of target than the options are for.
    """
    out, target = asked.out, target_of(asked.out, makes)
    if target != "run" and out.exists():
        folder = ", or a new folder" if "folder" in makes else ""
        raise BadInput(f"{out}: is there already; choose a new file ending in {WEIGHTS_SUFFIX}{folder}")
    if asked.raw and target != "file":
        both = "the generator and its average" if target == "run" else "as trained and averaged"
        raise BadInput(f"--raw is for a file ending in {WEIGHTS_SUFFIX}; a {target} has both, {both}")
    if target == "run":
        refuse_full(out, "the run")


def write_imported(asked: Conversion, made: Imported, makes: Collection[Target]) -> Converted:
    """Write what a format has read, as a run, a file or a folder.

    Raises:
        BadInput: its networks are not the recipe's, or do not draw what the source's do.
        OSError: the disk is full or the target cannot be written; nothing is left then.
    """
    source, target = asked.source, target_of(asked.out, makes)
    recipe = parse_recipe(made.recipe.values, str(source))
    for tensors in (made.networks, made.averages):
        _check_networks(recipe, tensors, str(source))
    facts, lines, difference = dict(made.facts), list(made.lines), None
    if asked.verify:
        checked = verify_conversion(recipe, made.networks | made.averages, source if source.is_dir() else source.parent)
        facts["difference"] = difference = checked.difference
        lines.insert(1, checked.line)
    if target == "run":
        write_run(RunFolder(asked.out), recipe, _state(recipe, made, asked), made.event)
    elif target == "file":
        write_whole(asked.out, made.networks, weights_metadata(recipe))
    else:
        _write_folder(asked.out, made.networks, made.averages, recipe)
    return Converted(asked.out, facts, lines, recipe, made.name, made.step, made.parts, difference=difference)


def _check_networks(recipe: Recipe, tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse tensors that are not those of the recipe's networks, before anything takes memory for them."""
    built = recipe.kind.build(recipe.networks, "meta")
    there = {key.partition(".")[0] for key in tensors}
    refuse_others({name: network for name, network in built.items() if name in there}, tensors, where)


def _state(recipe: Recipe, made: Imported, asked: Conversion) -> TrainingState:
    """The training state after the model's updates; its tensors are taken out of it, being perhaps gigabytes.

    What it has no tensors of starts fresh; what no phase uses at present is parked, as the engine does itself.
    """
    training, where = training_of(recipe), str(asked.source)
    state = training.state(Plan(training.batch, resolve_precision("fp32", CPU)), CPU)
    state.step = made.step
    state.loss_scales.clear()  # the precision, and with it the scale, is chosen where training goes on
    there = {key.partition(".")[0] for key in made.networks}
    averaged = {name: network for name, network in state.ema.networks.items() if name in there}
    load_networks(averaged, made.averages or _of(averaged, made.networks), where)
    taken = {name: network for name, network in state.networks.items() if name in there}
    load_networks(taken, _of(taken, made.networks), where)
    for key in _of(taken, made.networks):
        del made.networks[key]
    state.parked[NETWORKS_FILE] = made.networks
    for line in load_optimizers(made.optimizers, state, (), where):
        asked.say(line)
    return state


def _of(networks: Collection[str], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of some networks."""
    return {key: value for key, value in tensors.items() if key.partition(".")[0] in networks}


def _write_folder(path: Path, trained: Mapping[str, Tensor], averaged: Mapping[str, Tensor], recipe: Recipe) -> None:
    """Write networks as they were trained, their averages, and the recipe to fine-tune them by."""
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
    with atomic_folder(run.path.absolute()) as folder:  # "." could neither be removed nor replaced
        beside = RunFolder(folder)
        save_checkpoint(beside.checkpoints, state, weights_metadata(recipe), extra)
        (beside.path / RECIPE_FILE).write_text(dump_recipe(recipe), "utf-8", newline="\n")
        with EventLog(beside.events) as log:
            log.write("imported", step=state.step, **imported)
        write_json(beside.recipe, recipe.model_dump(mode="json"))
