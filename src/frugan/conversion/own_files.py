"""Recipes, weights, checkpoints and data of frugan, for file formats that request them."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from frugan.contract.formats import Conversion, RecipeValues, Say, Trained
from frugan.conversion.written import write_whole
from frugan.data.run_data import read_run_data
from frugan.engine.run.checkpoint import (
    EMA_FILE,
    MANIFEST_FILE,
    NETWORKS_FILE,
    OPTIMIZERS_FILE,
    Checkpoint,
    DamagedCheckpoint,
    load_networks,
    newest_whole,
    step_in_name,
    verify,
)
from frugan.engine.run.events import Event, read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.run.tensor_files import read_tensors
from frugan.errors import BadInput
from frugan.recipe.loading import parse_recipe, recipe_with, shipped_recipe
from frugan.recipe.recipe import Recipe
from frugan.reporting.loss_history import LossHistory
from frugan.sampling.generators import provenance
from frugan.setup.networks import Weights, weights_of_family
from frugan.setup.recipe_setup import training_of
from frugan.setup.run_data_sources import open_sources


class Ours:
    """Implementation of `frugan.contract.formats.OurSide`."""

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion

    def recipe(self, values: Mapping[str, Any], where: str) -> RecipeValues:
        if self._conversion.overrides:  # a value that cannot be read may be given otherwise
            return recipe_values(recipe_with(deepcopy(dict(values)), self._conversion.overrides, f"recipe of {where}"))
        return recipe_values(parse_recipe(values, where))

    def shipped(self, name: str) -> RecipeValues | None:
        recipe = shipped_recipe(name)
        return None if recipe is None else recipe_values(recipe)

    def load(self, networks: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], where: str) -> None:
        load_networks(networks, tensors, where)

    def weights(self, *families: str) -> Trained:
        source, say = self._conversion.source, self._conversion.say
        trained, averaged = weights_of_family(source, families, say)
        folders = (source, *trained.path.absolute().parents[:3])
        run = next((folder for folder in folders if RunFolder(folder).events.is_file()), trained.path.parent)
        return _trained(trained, averaged, trained.step, RunFolder(run), {})

    def checkpoint(self) -> Trained:
        run, checkpoint, saved = _checkpoint(self._conversion.source, self._conversion.say)
        trained = Weights.open(checkpoint.path / NETWORKS_FILE)
        averages = checkpoint.path / EMA_FILE
        averaged = Weights.open(averages) if averages.is_file() else trained
        return _trained(trained, averaged, checkpoint.step, run, saved)

    def write_tensors(self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        write_whole(path, tensors, metadata)

    def is_run(self, folder: Path) -> bool:
        return RunFolder(folder).exists

    def data(self, trained: Trained) -> Mapping[str, Any]:
        recipe = parse_recipe(trained.recipe.values, str(trained.path))
        return open_sources(recipe, self._conversion.data, self._conversion.say, None)


def recipe_values(recipe: Recipe) -> RecipeValues:
    """A recipe as a format sees it."""
    batch, backup, phases = recipe.training.batch, recipe.saving.backup_every, training_of(recipe).phases
    return RecipeValues(
        values=recipe.model_dump(mode="json"),
        networks=recipe.networks,
        objective=recipe.objective,
        sources=recipe.sources,
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
        trained_on=read_run_data(saved),
        imported=lambda: _imported(run),
        optimizers=(lambda: read_tensors(optimizers)[0]) if optimizers.is_file() else None,
        losses=lambda: _losses(run, step),
        note=provenance(now, step),
    )


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


def _imported(run: RunFolder) -> Event | None:
    """The run's event `imported`; where its preliminary training is over since, its steps count no more."""
    imported: Event | None = None
    for event in _events(run):
        if event["event"] == "imported":
            imported = event
        elif imported is not None and event["event"] == "resume" and "over" in event:
            return {**imported, "step": 0}
    return imported


def _losses(run: RunFolder, step: int) -> dict[str, tuple[Sequence[int], Sequence[float]]]:
    """Side -> (step of each entry, loss), up to a step."""
    history = LossHistory()
    for event in _events(run):
        if event.get("step", 0) <= step:
            history.add(event)
    return {side: (history.steps[side], curve) for side, curve in history.curves.items()}
