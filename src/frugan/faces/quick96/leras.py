"""DeepFaceLab's Quick96 models: networks, optimizer state, iteration and loss history, in both directions.

Its one option is the batch; widths are read from the arrays. Files are laid out and written as SAEHD's are.

Source: DeepFaceLab's behaviour.
"""

import shlex
from pathlib import Path
from typing import Any

from frugan.contract.formats import RECIPE_FILE, Conversion, Converted, FileFormat, Imported, OurSide
from frugan.errors import BadInput
from frugan.faces.quick96.config import WIDTHS
from frugan.faces.quick96.family import Quick96Family
from frugan.faces.saehd.leras import Exporter, Importer, exported_name, loss_history
from frugan.faces.saehd.leras_files import LerasModel, check_free, read_model, write_model
from frugan.wording import family_name, storable

FORMAT = "leras-quick96"
KIND = "Quick96"
KIND_OF_OPTIMIZER = "rmsprop"
OPTIMIZER = {"kind": KIND_OF_OPTIMIZER, "learning_rate": 2e-4, "dropout": 0.3}
DEFAULT_BATCH = 4
WHERE = {
    "e_dims": ("encoder", "down1/downs_0/conv1/weight:0", 1),
    "ae_dims": ("inter", "dense1/weight:0", 1),
    "d_dims": ("decoder_src", "upscale0/conv1/weight:0", 32),
    "d_mask_dims": ("decoder_src", "upscalem0/conv1/weight:0", 32),
}
"""Width -> the file and the array whose last dimension tells it, and by how much that is larger."""


class LerasQuick96(FileFormat):
    """DeepFaceLab's own files of Quick96."""

    program = "DeepFaceLab's Quick96"
    reads = frozenset({"overrides", "name"})
    writes = frozenset({"name", "replace"})
    makes = frozenset({"run"})

    def read(self, conversion: Conversion, ours: OurSide) -> Imported:
        """Read a model of a folder.

        Raises:
            BadInput: none or several are there, or a file is missing, damaged or not Quick96's.
        """
        folder = conversion.source
        model = read_model(folder, conversion.name, KIND)
        recipe = ours.recipe(_recipe(model, folder), str(folder))
        conversion.say(f"model {model.name!r}: {recipe.summary}, iteration {model.iteration:,}")
        built = Quick96Family().build(recipe.networks, "meta")
        networks, optimizers = Importer(conversion, model, recipe, built).tensors()
        recipe_file, run = (shlex.quote(str(path)) for path in (conversion.out / RECIPE_FILE, conversion.out))
        return Imported(
            recipe,
            networks,
            {"run": str(conversion.out), "name": model.name, "iteration": model.iteration},
            [
                f"{conversion.out}: model {model.name!r} at iteration {model.iteration:,}",
                f"Next: frugan train {recipe_file} --data WORKSPACE --out {run}",
            ],
            optimizers=optimizers,
            step=model.iteration,
            event={
                "format": FORMAT,
                "name": storable(model.name).replace("?", "_"),
                "options": model.options,
                "loss_sides": ["src", "dst"],
                "loss_history": model.loss_history,
            },
            name=model.name,
        )

    def write(self, conversion: Conversion, ours: OurSide) -> Converted:
        """Write a run as a model, which DeepFaceLab goes on with.

        Raises:
            BadInput: it is of another family, or the folder holds such a model.
        """
        trained, folder = ours.checkpoint(), conversion.out
        if (family := trained.recipe.values["family"]) != Quick96Family.name:
            raise BadInput(f"{conversion.source}: weights of {family_name(family)}; expected those of Quick96")
        if ours.is_run(folder):
            raise BadInput(f"{folder}: is a run; expected DeepFaceLab's folder for models, or a new one")
        imported = trained.imported()
        if imported is not None and (imported.get("format") != FORMAT or imported["step"] > trained.step):
            imported = None
        name = exported_name(conversion.name, imported, trained)
        check_free(folder, name, KIND, replace=conversion.replace)
        sizes = trained.recipe.networks
        if any(getattr(sizes, width) != expected for width, expected in WIDTHS.items()):
            conversion.say("networks of other widths: DeepFaceLab has one size alone, and starts these afresh")
        options = {
            **(imported["options"] if imported else {}),
            "batch_size": trained.recipe.values["training"]["batch"],
        }
        history = loss_history(trained, imported["step"] if imported else 0, conversion.say)
        model = LerasModel(name, trained.step, options, history, kind=KIND)
        built = Quick96Family().build(sizes, "meta")
        exporter = Exporter(trained, KIND_OF_OPTIMIZER, conversion.say, built)
        model.networks = exporter.networks()
        model.optimizers = exporter.optimizers()
        backup = write_model(folder, model, replace=conversion.replace)
        replaced = str(backup) if backup else None
        facts = {"folder": str(folder), "name": name, "iteration": trained.step, "replaced": replaced}
        lines = [f"{folder}: model {name!r} at iteration {trained.step:,}"]
        lines += [f"The files that it replaced: {replaced}"] if replaced else []
        return Converted(folder, facts, lines, name=name, step=trained.step, backup=backup)


def _recipe(model: LerasModel, folder: Path) -> dict[str, Any]:
    """Values of the recipe that the arrays and the batch stand for.

    Raises:
        BadInput: an array that tells a width is missing.
    """
    widths = {}
    for width, (stem, key, times) in WHERE.items():
        if stem not in model.networks:
            raise BadInput(f"{folder / model.file(stem)}: missing. Copy it from where the others came")
        array = model.networks[stem].get(key)
        if array is None or array.ndim < 2:
            raise BadInput(f"{folder / model.file(stem)}: has no array {key}; this is no Quick96")
        widths[width] = array.shape[-1] // times
    return {
        "family": Quick96Family.name,
        "about": {
            "summary": "Quick96 at 96 pixels, imported",
            "source": f"model {model.name!r} of DeepFaceLab at iteration {model.iteration:,}",
        },
        "networks": widths,
        "training": {"batch": model.options.get("batch_size", DEFAULT_BATCH), "duration": "endless"},
        "optimizers": {"default": OPTIMIZER},
    }
