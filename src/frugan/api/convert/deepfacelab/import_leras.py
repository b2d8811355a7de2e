"""A DeepFaceLab model becomes a run: networks, optimizer state, options, iteration and loss history."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frugan.api.convert.deepfacelab.leras_recipe import imported_recipe
from frugan.api.convert.deepfacelab.leras_state import Importer
from frugan.api.convert.overridden import overridden
from frugan.api.convert.written import free_for_a_run, write_run
from frugan.api.progress import Say
from frugan.data.wording import storable
from frugan.families.saehd.leras_files import LerasModel, read_model
from frugan.families.saehd.leras_options import LEGACY, ORDER
from frugan.recipe.recipe import Recipe
from frugan.recipe.toml import RECIPE_FILE


@dataclass(frozen=True)
class ImportedRun:
    """What `from_leras` made.

    Attributes:
        run: the run folder.
        recipe: the file to go on with.
        name: of the model.
        step: its iteration.
    """

    run: Path
    recipe: Path
    name: str
    step: int


def from_leras(
    source: str | Path,
    out: str | Path,
    *,
    name: str | None = None,
    overrides: Sequence[str] = (),
    say: Say = print,
) -> ImportedRun:
    """Make a run of a DeepFaceLab SAEHD model; `train` with the recipe in it goes on.

    Args:
        source: DeepFaceLab's folder for models.
        out: folder for the run; must not be there, or be empty.
        name: of the model, where the folder holds several.
        overrides: `key.sub=value` words for what the model has no option for, such as training.precision=fp32.
        say: is given a line for everything that does not simply go over.

    Raises:
        BadInput: files are missing, damaged or do not fit each other; nothing is written then.
        OSError: the disk is full or the folder cannot be written; nothing is left then.
    """
    run = free_for_a_run(out)
    model = read_model(Path(source), name)
    recipe = overridden(imported_recipe(model.name, model.iteration, model.options, Path(source)), overrides)
    say(f"model {model.name!r}: {recipe.about.summary}, iteration {model.iteration:,}")
    for option in sorted(model.options.keys() - {*ORDER, *LEGACY}):
        say(f"option {option}: unknown here; kept for the way back")
    _say_duration(model, recipe, say)
    state = Importer(Path(source), model, recipe, say).state()
    imported = {
        "format": "leras",
        "name": storable(model.name).replace("?", "_"),
        "options": model.options,
        "loss_sides": ["src", "dst"],
        "loss_history": model.loss_history,
    }
    write_run(run, recipe, state, imported)
    return ImportedRun(run.path, run.path / RECIPE_FILE, model.name, model.iteration)


def _say_duration(model: LerasModel, recipe: Recipe, say: Say) -> None:
    target = recipe.training.duration.known_steps(recipe.training.batch)
    if not model.options.get("target_iter"):
        say(f"target_iter 0: no end, which is training.duration = {recipe.training.duration} here")
    elif target is not None and target <= model.iteration:
        say(f"target_iter {target:,} is reached: raise training.duration to go on")
