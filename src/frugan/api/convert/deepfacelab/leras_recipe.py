"""Between a recipe and the options of a DeepFaceLab model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frugan.errors import BadInput
from frugan.families.saehd.leras_files import DATA, file_name
from frugan.families.saehd.leras_options import merged, options_of, recipe_values, without_counterpart
from frugan.recipe.loading import parse_recipe
from frugan.recipe.recipe import Recipe

AUTOENCODER = "autoencoder"
HOUR_SECONDS = 3600
MOST_HOURS = 24


def imported_recipe(name: str, iteration: int, options: Mapping[str, Any], folder: Path) -> Recipe:
    """The recipe that a model's options stand for.

    Args:
        name: of the model.
        iteration: that it has reached.
        options: plain values.
        folder: that the model lies in, for messages.

    Raises:
        BadInput: an option is missing or out of range.
    """
    where = str(folder / file_name(name, DATA))
    try:
        values = recipe_values(options)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error
    about = {
        "summary": f"SAEHD {options['archi']} at {options['resolution']} pixels, imported",
        "source": f"model {name!r} of DeepFaceLab at iteration {iteration:,}",
    }
    return parse_recipe({"family": "saehd", "about": about, **values}, where)


def exported_options(recipe: Recipe, imported: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """A model's options, and a line for every setting that has no counterpart among them.

    Args:
        recipe: as it is at the step of the export.
        imported: options of the model that the run was made of; None: of none.
    """
    now = _options(recipe)
    if imported is not None:
        now = merged(now, _options(imported_recipe("", 0, imported, Path())), imported)
    settings = {name: of.model_dump() for name, of in recipe.optimizer_settings().items()}
    if settings[AUTOENCODER]["kind"] == "adam":
        return now, ["optimizer: DeepFaceLab has no Adam; it goes on with AdaBelief, from fresh statistics"]
    lines = [f"optimizer: {line}" for line in without_counterpart(settings[AUTOENCODER])]
    if others := [name for name, of in settings.items() if of != settings[AUTOENCODER]]:
        lines.append(f"optimizer: DeepFaceLab has one for all; the settings of {', '.join(others)} are lost")
    return now, lines


def _options(recipe: Recipe) -> dict[str, Any]:
    settings = recipe.optimizer_settings()[AUTOENCODER].model_dump()
    steps, backup = recipe.training.duration.known_steps(recipe.training.batch), recipe.saving.backup_every
    hours = 0
    if backup is not None and backup.unit == "seconds":
        hours = min(MOST_HOURS, max(1, round(backup.amount / HOUR_SECONDS)))
    return options_of(recipe.model_dump(mode="json"), settings, steps, hours)
