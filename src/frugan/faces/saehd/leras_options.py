"""DeepFaceLab's options of face models, the values of a recipe that they stand for, and whether faces agree with them.

Source: DeepFaceLab's behaviour.

Most options are fields of the networks or the objective under their own names; the others are listed here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from frugan.contract.formats import Conversion, OurSide, RecipeValues, Say, Trained
from frugan.contract.settings import Settings
from frugan.errors import BadInput
from frugan.faces.data.face import FaceType
from frugan.faces.data.faceset import Faceset
from frugan.faces.data.needs import FaceNeeds
from frugan.faces.saehd.config import (
    BACKUPS_KEPT,
    CLIP_NORM,
    DROPOUT,
    PERIOD,
    PRETRAINING_ENDS,
    SAEHDObjective,
    stack_for,
    stacks,
)
from frugan.faces.saehd.family import SAEHDFamily
from frugan.faces.saehd.leras_files import DATA, file_name
from frugan.wording import family_name, shown_value

NETWORKS = ("resolution", "face_type", "archi", "ae_dims", "e_dims", "d_dims", "d_mask_dims")
"""Options that say what the arrays are; the others have defaults."""

ORDER = (
    *("resolution", "face_type", "models_opt_on_gpu", "archi", "ae_dims", "e_dims", "d_dims", "d_mask_dims"),
    *("masked_training", "eyes_mouth_prio", "uniform_yaw", "blur_out_mask", "adabelief", "lr_dropout"),
    *("random_warp", "random_hsv_power", "true_face_power", "face_style_power", "bg_style_power", "ct_mode"),
    *("clipgrad", "pretrain", "autobackup_hour", "write_preview_history", "target_iter"),
    *("random_src_flip", "random_dst_flip", "batch_size", "gan_power", "gan_patch_size", "gan_dims"),
)
"""Options in the order in which the original writes them."""

LEGACY = frozenset({"eyes_prio"})
"""Options that the original discards on reading."""

AUTOENCODER = "autoencoder"
HOUR_SECONDS = 3600
MOST_HOURS = 24

DEFAULT_BATCH = 8
LEARNING_RATE = 5e-5
FIXED = {"learning_rate": LEARNING_RATE, "eps": 1e-6, "decay": 0.9, "beta1": 0.9, "beta2": 0.999}
"""Settings of the optimizers that the original has no option for."""


def recipe_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """The sections `networks`, `objective`, `training`, `optimizers` and `saving` of a recipe.

    Args:
        options: plain values; those that are missing have the original's defaults.

    Raises:
        BadInput: an option without which nothing can be built is missing.
    """
    if missing := [name for name in NETWORKS if name not in options]:
        raise BadInput(f"option {missing[0]} is missing; without it nobody can tell what the arrays are")
    networks = {name: options[name] for name in (*NETWORKS, "gan_dims") if name in options}
    if (patch := patch_size(options)) is not None:
        networks["gan_patch_size"] = patch
    objective, _ = _objective(options)
    return {"networks": networks, "objective": objective, **training_values(options)}


def training_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """The sections `training`, `optimizers` and `saving` of a recipe, which are alike in all face models."""
    optimizer: dict[str, Any] = {
        "kind": "adabelief" if options.get("adabelief", True) else "rmsprop",
        "learning_rate": LEARNING_RATE,
    }
    if options.get("lr_dropout", "n") not in ("n", False):
        optimizer |= {"dropout": DROPOUT, "period": PERIOD}
    if options.get("clipgrad", False):
        optimizer["clip_norm"] = CLIP_NORM
    hours = options.get("autobackup_hour", 0)
    return {
        "training": {
            "batch": options.get("batch_size", DEFAULT_BATCH),
            "duration": f"{target} steps" if (target := options.get("target_iter")) else "endless",
        },
        "optimizers": {"default": optimizer},
        "saving": {"backup_every": f"{hours}h", "keep_backups": BACKUPS_KEPT} if hours else {},
    }


def _objective(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The section `objective`, and a line for every option with a value that only a fork knows.

    Powers beyond the limits come to these, as where the original asks for them; what is no value at all to the default.
    """
    objective = {name: options[name] for name in SAEHDObjective.model_fields if name in options}
    if not str(options["archi"]).startswith("df"):
        objective.pop("true_face_power", None)  # as the original does
    return objective, bring_within(objective, SAEHDObjective)


def bring_within(objective: dict[str, Any], kind: type[Settings]) -> list[str]:
    """Replace values that a recipe cannot have by the nearest that it can, and return a line for each."""
    lines = []
    try:
        kind.model_validate(objective)
    except ValidationError as error:
        for fault in error.errors():
            name, limits = str(fault["loc"][0]), fault.get("ctx", {})
            nearest = limits.get("le", limits.get("ge", kind.model_fields[name].default))
            lines.append(
                f"option {name}={shown_value(objective[name])}: unknown here; taken as {nearest} (to choose another: "
                f"objective.{name}=)"
            )
            objective[name] = nearest
    return lines


def unknown_lines(options: Mapping[str, Any], order: Sequence[str]) -> list[str]:
    """A line for every option that is none of those that the original writes."""
    return [
        f"option {name}={shown_value(options[name])}: unknown here; kept for the way back"
        for name in sorted(options.keys() - {*order, *LEGACY})
    ]


def untold_options(options: Mapping[str, Any]) -> list[str]:
    """A line for every option of a model that no field of the recipe stands for, or another value."""
    lines = unknown_lines(options, ORDER)
    lines += [f"option {name}: left out, as the original does" for name in sorted(LEGACY & options.keys())]
    if not str(options["archi"]).startswith("df") and options.get("true_face_power"):
        lines.append(f"option true_face_power={options['true_face_power']}: 0, as the original takes it for liae")
    return [*lines, *patch_lines(options), *_objective(options)[1]]


def imported_recipe(
    name: str, iteration: int, options: Mapping[str, Any], folder: Path = Path()
) -> tuple[dict[str, Any], str]:
    """Values of the recipe that a model's options stand for, and where they come from, for messages.

    Args:
        name: of the model.
        iteration: that it has reached.
        options: plain values.
        folder: that the model lies in.

    Raises:
        BadInput: an option without which nothing can be built is missing.
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
    return {"family": "saehd", "about": about, **values}, where


def exported_options(
    recipe: RecipeValues, before: tuple[Mapping[str, Any], RecipeValues] | None, order: Sequence[str] = ORDER
) -> tuple[dict[str, Any], list[str]]:
    """A model's options, and a line for every setting that has no counterpart among them.

    Args:
        recipe: as it is at the step of the export.
        before: options of the model that the run was made of, and their recipe; None: it was made of none.
        order: of the options, as the original writes them.
    """
    now = _stated(recipe, order)
    if before is not None:
        now = merged(now, _stated(before[1], order), before[0])
    settings = recipe.optimizers
    if (missing := {"adam": "Adam", "sgd": "SGD"}.get(settings[AUTOENCODER]["kind"])) is not None:
        return now, [f"optimizer: DeepFaceLab has no {missing}; it goes on with AdaBelief, from fresh statistics"]
    lines = [f"optimizer: {line}" for line in without_counterpart(settings[AUTOENCODER])]
    if others := [name for name, of in settings.items() if of != settings[AUTOENCODER]]:
        lines.append(f"optimizer: DeepFaceLab has one for all; the settings of {', '.join(others)} are lost")
    return now, lines


def _stated(recipe: RecipeValues, order: Sequence[str]) -> dict[str, Any]:
    hours = 0
    if recipe.backup_seconds is not None:
        hours = min(MOST_HOURS, max(1, round(recipe.backup_seconds / HOUR_SECONDS)))
    # the steps that a time comes to are nobody's target
    target_steps = recipe.steps if recipe.values["training"].get("time") is None else None
    return options_of(recipe.values, recipe.optimizers[AUTOENCODER], target_steps, hours, order)


def patch_lines(options: Mapping[str, Any]) -> list[str]:
    """Return a line where `patch_size` takes another than the option."""
    patch, taken = options.get("gan_patch_size"), patch_size(options)
    if patch is None or taken is None or taken == patch:
        return []
    return [f"option gan_patch_size={patch}: {taken}, the nearest that divides the resolution"]


def patch_size(options: Mapping[str, Any]) -> Any:
    """The patch size, or the nearest that divides the resolution: one that does not is no fault without a GAN term."""
    resolution = options["resolution"]
    if type(resolution) is not int:
        return None  # refused by the recipe
    patch = options.get("gan_patch_size", max(3, resolution // 8))
    if options.get("gan_power") or type(patch) is not int or resolution % stack_for(patch).total_stride == 0:
        return patch
    fitting = (
        field for field, stack in stacks().items() if resolution % stack.total_stride == 0 and field <= resolution
    )
    return min(fitting, key=lambda field: abs(field - patch), default=patch)  # none: refused by the recipe


def options_of(
    values: Mapping[str, Any],
    optimizer: Mapping[str, Any],
    target_steps: int | None,
    backup_hours: int,
    order: Sequence[str] = ORDER,
) -> dict[str, Any]:
    """The options that a recipe stands for, in the original's order.

    Args:
        values: the recipe as JSON values.
        optimizer: settings of the optimizer of the autoencoder.
        target_steps: how long it trains; None: without an end, or for a time.
        backup_hours: between backups; 0: none by the hour.
        order: names of the options.
    """
    options: dict[str, Any] = {**values["networks"], **values["objective"]}
    options |= {
        "models_opt_on_gpu": True,
        "adabelief": optimizer["kind"] != "rmsprop",
        "lr_dropout": "y" if _drops(optimizer) else "n",
        "clipgrad": optimizer["clip_norm"] is not None,
        "autobackup_hour": backup_hours,
        "write_preview_history": False,
        "target_iter": 0 if target_steps is None else target_steps,
        "batch_size": values["training"]["batch"],
    }
    return {name: options[name] for name in order}


def merged(now: Mapping[str, Any], as_imported: Mapping[str, Any], imported: Mapping[str, Any]) -> dict[str, Any]:
    """Options to write: what did not change here stays as the original had it, with what it alone knows.

    Args:
        now: of the recipe as it is now.
        as_imported: of the recipe as it was imported.
        imported: the options that were imported; none if nothing was.
    """
    kept = {k: v for k, v in imported.items() if k not in LEGACY and (k not in now or now[k] == as_imported[k])}
    return {**now, **kept}


def without_counterpart(optimizer: Mapping[str, Any]) -> list[str]:
    """A line for every setting of an optimizer that the original has fixed otherwise."""
    lines = [
        f"{name} is {optimizer[name]} here; DeepFaceLab goes on with {fixed}"
        for name, fixed in FIXED.items()
        if name in optimizer and optimizer[name] != fixed
    ]
    if (final := optimizer.get("final_learning_rate")) is not None:
        kept = f"DeepFaceLab has no such fall and goes on with a rate of {LEARNING_RATE}"
        lines.append(f"final_learning_rate is {final} here; {kept}")
    if _drops(optimizer) and (optimizer["dropout"], optimizer["period"]) != (DROPOUT, PERIOD):
        names = ("dropout", "period")
        terms = ", ".join(f"no {name}" if optimizer[name] is None else f"{name} {optimizer[name]}" for name in names)
        lines.append(f"{terms} here; DeepFaceLab goes on with lr_dropout y: {DROPOUT} and {PERIOD}")
    if optimizer["clip_norm"] not in (None, CLIP_NORM):
        lines.append(f"clip_norm is {optimizer['clip_norm']} here; DeepFaceLab goes on with clipgrad: {CLIP_NORM}")
    return lines


def _drops(optimizer: Mapping[str, Any]) -> bool:
    return optimizer.get("dropout") not in (None, 1) or optimizer.get("period") is not None


# The model that goes to another program, and whether faces agree with its options: what does not shows late.

UNALIGNED = (FaceType.FULL_NO_ALIGN, FaceType.HEAD_NO_ALIGN, FaceType.MARK_ONLY)


def open_faces(conversion: Conversion, ours: OurSide, *families: str) -> Trained:
    """Open a run or one of its checkpoints.

    Args:
        families: of which one it shall be; default: SAEHD's.

    Raises:
        BadInput: it is none, damaged, or of another family.
    """
    trained, wanted = ours.checkpoint(), families or (SAEHDFamily.name,)
    if (family := trained.recipe.values["family"]) not in wanted:
        raise other_family(conversion, family, " and ".join(map(family_name, wanted)))
    say_pretraining(trained, conversion)
    return trained


def other_family(conversion: Conversion, family: str, taken: str) -> BadInput:
    """Error for weights of a family that a format does not hold.

    Args:
        taken: families that it holds, as people write them.
    """
    return BadInput(
        f"{conversion.source}: weights of {family_name(family)}, and this format takes those of {taken} alone; "
        "`frugan export` writes any generator as ONNX, and other face models have formats of their own"
    )


def say_pretraining(trained: Trained, conversion: Conversion) -> None:
    """Tell of a model that has learned no swap yet."""
    if trained.recipe.values["objective"].get("pretrain"):
        conversion.say(
            f"{conversion.source}: still pretraining, on faces of many people: it swaps no face yet. It ends by "
            f"{PRETRAINING_ENDS} on resuming, and in DeepFaceLab by its option pretrain"
        )


def check_agreement(trained: Trained, ours: OurSide, say: Say) -> None:
    """Refuse faces that the options do not fit, and say what looks like a mistake.

    Raises:
        BadInput: they cannot be read, or show less of the head than the options say.
    """
    needs = trained.recipe.sources
    eyebrows: set[float] = set()
    for name, faces in ours.data(trained).items():
        if not isinstance(faces, Faceset):
            continue
        known = trained.trained_on.get(name)
        if known is not None and known.digest != faces.digest:
            changed = faces.label_digests.changed_since(known.labels) if faces.label_digests is not None else 0
            if changed:
                say(f"{name}: {changed:,} of {len(faces):,} faces have new masks or labels since the model was trained")
            else:
                say(f"{name}: these are not the faces that the model was last trained on")
        if isinstance(wanted := needs[name], FaceNeeds):
            _say_types(name, faces, wanted.samples.face_type, say)
        eyebrows |= {face.eyebrows_expand_mod for face in faces.faces}
    if len(eyebrows) > 1:
        modes = ", ".join(f"{value:g}" for value in sorted(eyebrows))
        say(
            f"the faces were extracted with several eyebrow settings (eyebrows_expand_mod {modes}): masks of one reach "
            "higher than those of the other, and merged foreheads show it; extract both sides with the same setting"
        )


def _say_types(name: str, faces: Faceset, wanted: FaceType, say: Say) -> None:
    total = len(faces.faces)
    if loose := sum(face.face_type in UNALIGNED for face in faces.faces):
        say(f"{name}: {loose:,} of {total:,} faces were extracted without turning them upright; the model expects it")
    other = {face.face_type for face in faces.faces} - {wanted, *UNALIGNED}
    if other:
        count = sum(face.face_type in other for face in faces.faces)
        words = ", ".join(kind.in_files for kind in sorted(other))
        say(f"{name}: {count:,} of {total:,} faces are {words}; the model sees them cut to {wanted.in_files}")
