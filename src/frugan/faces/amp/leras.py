"""DeepFaceLab's AMP models and runs: networks, optimizer state, options, iteration and losses, in both directions.

Files, keys and layouts are SAEHD's but for what stands here.

Source: DeepFaceLab's behaviour.
"""

from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np

from frugan.contract.formats import RecipeValues
from frugan.errors import BadInput
from frugan.faces.amp.config import AMPNetworks, AMPObjective
from frugan.faces.amp.family import AMPFamily
from frugan.faces.amp.networks import ARCHI, AUTOENCODER, INTERS
from frugan.faces.saehd.leras import PATCH_ORDER, Dialect, Leras
from frugan.faces.saehd.leras_files import DATA, ModelKind, file_name
from frugan.faces.saehd.leras_names import Arrays
from frugan.faces.saehd.leras_options import (
    bring_within,
    exported_options,
    patch_lines,
    patch_size,
    training_values,
    unknown_lines,
)

AMP = ModelKind("AMP", (*AUTOENCODER, "GAN"), ("src_dst_opt", "GAN_opt"))

REQUIRED = ("resolution", "face_type", "ae_dims", "inter_dims", "e_dims", "d_dims", "d_mask_dims")
"""Options that say what the arrays are; the others have defaults."""
WHOLE = frozenset({*REQUIRED, "gan_patch_size"}) - {"face_type"}
BROKEN = frozenset({"morph_factor", "gan_power"})
"""Options that the original keeps as NumPy's numbers, whole or broken."""
ORDER = (
    *("resolution", "face_type", "models_opt_on_gpu", "ae_dims", "inter_dims", "e_dims", "d_dims", "d_mask_dims"),
    *("morph_factor", "uniform_yaw", "blur_out_mask", "lr_dropout", "random_warp", "ct_mode", "clipgrad"),
    *("autobackup_hour", "write_preview_history", "target_iter", "random_src_flip", "random_dst_flip", "batch_size"),
    *("gan_power", "gan_patch_size", "gan_dims"),
)
"""Options in the order in which the original writes them."""
IN_FILES = {
    "decoder": ("upscale", "res", "upscalem", "out_convm", "out_conv"),
    "patch_discriminator": PATCH_ORDER,
}
"""Network -> its layers in the order of its file."""


def imported_recipe(name: str, iteration: int, options: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], str]:
    """Values of the recipe that a model's options stand for, and where they come from, for messages.

    Raises:
        BadInput: an option without which nothing can be built is missing.
    """
    where = str(folder / file_name(name, DATA, AMP))
    if missing := [option for option in REQUIRED if option not in options]:
        raise BadInput(
            f"{where}: option {missing[0]} is missing; without it nobody can tell what the arrays are. AMP of early "
            "versions of DeepFaceLab had other networks, which are not read: its last version trains anew"
        )
    networks = {option: options[option] for option in (*REQUIRED, "gan_dims") if option in options}
    if (patch := patch_size(options)) is not None:
        networks["gan_patch_size"] = patch
    objective, _ = _objective(options)
    about = {
        "summary": f"AMP at {options['resolution']} pixels, imported",
        "source": f"model {name!r} of DeepFaceLab at iteration {iteration:,}",
    }
    sections = {"networks": networks, "objective": objective, **training_values(options)}
    return {"family": AMPFamily.name, "about": about, **sections}, where


def _objective(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The section `objective`, and a line for every option with a value that is none here."""
    objective = {name: options[name] for name in AMPObjective.model_fields if name in options}
    return objective, bring_within(objective, AMPObjective)


def untold_options(options: Mapping[str, Any]) -> list[str]:
    """A line for every option of a model that no field of the recipe stands for, or another value."""
    return [*unknown_lines(options, ORDER), *patch_lines(options), *_objective(options)[1]]


def options_of(
    recipe: RecipeValues, before: tuple[Mapping[str, Any], RecipeValues] | None
) -> tuple[dict[str, Any], list[str]]:
    """A model's options, numbers as the original keeps them, and a line for every setting without a counterpart."""
    options, lines = exported_options(recipe, before, ORDER)
    if recipe.objective.train_inters:
        lines.append("train_inters: DeepFaceLab takes both inter networks as they are now, and trains them no further")
    if recipe.optimizers["autoencoder"]["kind"] == "rmsprop":
        lines.append("optimizer: DeepFaceLab's AMP has no RMSprop; it goes on with AdaBelief, from fresh statistics")
    kinds: dict[str, type[np.generic]] = dict.fromkeys(WHOLE, np.int64) | dict.fromkeys(BROKEN, np.float64)
    return {name: kinds[name](value) if name in kinds else value for name, value in options.items()}, lines


def misfits(networks: AMPNetworks, files: Mapping[str, Arrays]) -> list[str]:
    """A line for every option that is another than the one the arrays were made with, as far as these tell."""
    e_dims = _size(files, "encoder", "down1/conv1/weight:0", 3)
    vector, code = (_size(files, *at) for at in (("encoder", "dense1/weight:0", 0), ("inter_src", "dense2/bias:0", 0)))
    inter_dims = _size(files, "decoder", "upscale0/conv1/weight:0", 2)
    face, mask = (_size(files, "decoder", f"{name}/conv1/weight:0", 3) for name in ("upscale0", "upscalem0"))
    of_vector = isqrt(vector // (8 * e_dims)) * ARCHI.multiple if vector and e_dims else None
    of_code = isqrt(code // inter_dims) * ARCHI.multiple if code and inter_dims else None
    found = (
        ("e_dims", e_dims, "encoder"),
        ("ae_dims", _size(files, "encoder", "dense1/weight:0", 1), "encoder"),
        ("inter_dims", inter_dims, "decoder"),
        ("d_dims", None if face is None else face // 32, "decoder"),
        ("d_mask_dims", None if mask is None else mask // 32, "decoder"),
        ("resolution", of_vector, "encoder"),
        ("resolution", of_code, "inter_src"),
    )
    return [
        f"{option} is {getattr(networks, option)}, but {file}.npy is of {option} {value}"
        for option, value, file in found
        if value is not None and value != getattr(networks, option)
    ]


def _size(files: Mapping[str, Arrays], file: str, key: str, axis: int) -> int | None:
    """Length of an array along an axis; None if it is not there."""
    array = files.get(file, {}).get(key)
    return int(array.shape[axis]) if array is not None and array.ndim > axis else None


class LerasAMP(Leras):
    """DeepFaceLab's own files of AMP."""

    program = "DeepFaceLab's AMP"
    dialect = Dialect(
        format="leras-amp",
        kind=AMP,
        family=AMPFamily,
        recipe=imported_recipe,
        untold=untold_options,
        options=options_of,
        misfits=misfits,
        scopes={"patch_discriminator": "GAN"},
        resting=frozenset(INTERS),
        order=IN_FILES,
    )
