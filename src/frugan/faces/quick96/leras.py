"""DeepFaceLab's Quick96 models: networks, optimizer state, iteration and loss history, in both directions.

Its one option is the batch; widths are read from the arrays. Files, keys and layouts are SAEHD's.

Source: DeepFaceLab's behaviour.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frugan.contract.formats import RecipeValues
from frugan.errors import BadInput
from frugan.faces.quick96.config import WIDTHS
from frugan.faces.quick96.family import Quick96Family
from frugan.faces.saehd.leras import Dialect, Leras
from frugan.faces.saehd.leras_files import DATA, LerasModel, ModelKind, file_name
from frugan.faces.saehd.leras_names import SCOPES, misfits
from frugan.faces.saehd.leras_options import unknown_lines

QUICK96 = ModelKind("Quick96", ("encoder", "inter", "decoder_src", "decoder_dst"), ("src_dst_opt",))
OPTIMIZER = {"kind": "rmsprop", "learning_rate": 2e-4, "dropout": 0.3}
DEFAULT_BATCH = 4
WHERE = {
    "e_dims": ("encoder", "down1/downs_0/conv1/weight:0", 1),
    "ae_dims": ("inter", "dense1/weight:0", 1),
    "d_dims": ("decoder_src", "upscale0/conv1/weight:0", 32),
    "d_mask_dims": ("decoder_src", "upscalem0/conv1/weight:0", 32),
}
"""Width -> the file and the array whose last dimension tells it, and by how much that is larger."""


def imported_recipe(name: str, iteration: int, options: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], str]:
    """Values of the recipe that the batch stands for, and where they come from, for messages."""
    values = {
        "family": Quick96Family.name,
        "about": {
            "summary": "Quick96 at 96 pixels, imported",
            "source": f"model {name!r} of DeepFaceLab at iteration {iteration:,}",
        },
        "training": {"batch": options.get("batch_size", DEFAULT_BATCH), "duration": "endless"},
        "optimizers": {"default": OPTIMIZER},
    }
    return values, str(folder / file_name(name, DATA, QUICK96))


def sizes_of(model: LerasModel, folder: Path) -> dict[str, Any]:
    """Widths of the networks.

    Raises:
        BadInput: an array that tells one is missing.
    """
    widths = {}
    for width, (stem, key, times) in WHERE.items():
        if stem not in model.networks:
            raise BadInput(f"{folder / model.file(stem)}: missing. Copy it from where the others came")
        array = model.networks[stem].get(key)
        if array is None or array.ndim < 2:
            raise BadInput(f"{folder / model.file(stem)}: has no array {key}; this is no Quick96")
        widths[width] = array.shape[-1] // times
    return widths


def options_of(
    recipe: RecipeValues, before: tuple[Mapping[str, Any], RecipeValues] | None
) -> tuple[dict[str, Any], list[str]]:
    """A model's options, and a line if DeepFaceLab has no networks of such widths."""
    options = {**(before[0] if before is not None else {}), "batch_size": recipe.values["training"]["batch"]}
    if all(getattr(recipe.networks, width) == expected for width, expected in WIDTHS.items()):
        return options, []
    return options, ["networks of other widths: DeepFaceLab has one size alone, and starts these afresh"]


class LerasQuick96(Leras):
    """DeepFaceLab's own files of Quick96."""

    program = "DeepFaceLab's Quick96"
    dialect = Dialect(
        format="leras-quick96",
        kind=QUICK96,
        family=Quick96Family,
        recipe=imported_recipe,
        untold=lambda options: unknown_lines(options, ("batch_size",)),
        options=options_of,
        misfits=misfits,
        scopes=SCOPES,
        sizes=sizes_of,
        optimizer="rmsprop",
    )
