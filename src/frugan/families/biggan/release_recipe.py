"""Recipes of what BigGAN-PyTorch's training program left, its options for our recipes, and what to type next."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from frugan.contract.formats import RECIPE_FILE, WEIGHTS_SUFFIX, OurSide, RecipeValues
from frugan.errors import BadInput
from frugan.families.biggan.release_options import (
    ADAM_FIELDS,
    ARCHITECTURES,
    DEEP_GENERATOR_DEPTH,
    DEFAULTS,
    INITIALISATIONS,
    NETWORK_FIELDS,
    OBJECTIVE_FIELDS,
    Options,
    Reader,
    network_values,
    training_values,
)

FINE_TUNING = "biggan-finetune-128"
"""Name of the recipe for fine-tuning converted networks."""
MOST_PIXELS = 256
"""Largest resolution of the program's discriminators."""
LAST_NORM_EPS = 1e-5
"""The program's eps of the generator's last normalisation, whatever BN_eps is."""


def _written(values: Mapping[str, Any], table: Mapping[str, tuple[str, Reader]]) -> dict[str, Any]:
    """Values of options, from a table's recipe fields."""
    return {name: values[field] for name, (field, _) in table.items()}


def options_of(
    recipe: Mapping[str, Any], optimizers: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Options for a recipe's fields, and a line for every field that the program has no option for.

    Args:
        recipe: recipe as a dict, as it is at the exported step.
        optimizers: settings of "D" and "G"; for kinds other than Adam the program's defaults are taken.

    Raises:
        BadInput: the program does not build such networks.
    """
    _check_networks(recipe["networks"])
    adam = {name: settings for name, settings in optimizers.items() if settings["kind"] == "adam"}
    networks, objective, training, ema = (recipe[name] for name in ("networks", "objective", "training", "ema"))
    deep = networks["architecture"] == "biggan-deep"
    batch = training["batch"]
    size = training["normalisation_batch"] or batch
    words = {"architecture": _inverse(ARCHITECTURES), "initialisation": _inverse(INITIALISATIONS)}
    averaging = ema["decay"] > 0
    options = {
        "dataset": _dataset(networks["resolution"], networks["classes"]),
        "model": words["architecture"][networks["architecture"]],
        **_written(networks, NETWORK_FIELDS),
        **_written(objective, OBJECTIVE_FIELDS),
        "G_depth": DEEP_GENERATOR_DEPTH if deep else 1,
        "D_depth": networks["blocks_per_stage"] if deep else 1,
        "G_shared": networks["shared_embedding"] is not None,
        "shared_dim": networks["shared_embedding"] or 0,
        "mybn": networks["running_variance"] == "biased",
        "G_attn": _sides(networks["generator_attention"]),
        "D_attn": _sides(networks["discriminator_attention"]),
        "G_init": words["initialisation"][networks["generator_initialisation"]],
        "D_init": words["initialisation"][networks["discriminator_initialisation"]],
        "num_D_SVs": networks["singular_values"],
        "num_D_SV_itrs": networks["power_iterations"],
        "seed": training["seed"],
        "batch_size": size,
        "num_G_accumulations": batch // size,
        "num_D_accumulations": batch // size,
        "adam_eps": adam["G"]["eps"] if "G" in adam else DEFAULTS["adam_eps"],
        "ema": averaging,
        "use_ema": averaging,
    }
    if averaging:
        options |= {"ema_decay": ema["decay"], "ema_start": ema["start"]}
    for name, settings in adam.items():
        options |= {f"{name}_{option}": settings[field] for option, field in ADAM_FIELDS.items()}
    lines = [
        f"optimizers.{name}: that program has Adam alone, no {settings['kind']}; it begins with fresh statistics"
        for name, settings in optimizers.items()
        if name not in adam
    ]
    return options, [*lines, *_without_counterpart(recipe, adam)]


KNOWN_SETS: Mapping[tuple[int, int], str] = MappingProxyType({(32, 10): "C10", (32, 100): "C100"})
IMAGENET_CLASSES = 1000


def _dataset(resolution: int, classes: int) -> str:
    """Name of pictures by which that program looks up the resolution and the classes of its networks."""
    return KNOWN_SETS.get((resolution, classes), f"I{resolution}_hdf5")


def _lines_of_dataset(options: Options) -> list[str]:
    name, classes = options["dataset"], options["n_classes"]
    if name != f"I{options['resolution']}_hdf5" or classes == IMAGENET_CLASSES:
        return []
    return [
        f"dataset {name}: that program takes it for {IMAGENET_CLASSES:,} classes and these networks have {classes:,}; "
        f"write {classes:,} beside it in the table of classes in its utils.py, or they cannot be loaded"
    ]


def _check_networks(networks: Mapping[str, Any]) -> None:
    at_32 = networks["resolution"] == 32 and networks["discriminator_attention"]
    if at_32 and not networks["reference_attention_at_32"]:
        raise BadInput(
            "networks.discriminator_attention at 32 pixels: BigGAN-PyTorch puts it after every block, and could not "
            "load these weights; networks.reference_attention_at_32=true trains such a discriminator"
        )
    if not networks["spectral_norm"]:
        raise BadInput("networks.spectral_norm false: BigGAN-PyTorch has no such discriminator")
    if networks["channels"] != 3:
        raise BadInput(f"networks.channels {networks['channels']}: BigGAN-PyTorch draws pictures in colour only")
    if networks["resolution"] > MOST_PIXELS:
        raise BadInput(f"networks.resolution {networks['resolution']}: BigGAN-PyTorch has no such discriminator")


def _without_counterpart(recipe: Mapping[str, Any], adam: Mapping[str, Mapping[str, Any]]) -> list[str]:
    networks, objective = recipe["networks"], recipe["objective"]
    odd = {
        "objective.loss": objective["loss"] != "hinge",
        "objective.r1_gamma": objective["r1_gamma"] != 0,
        "objective.r2_gamma": objective["r2_gamma"] != 0,
        "objective.augmentation": objective["augmentation"]["method"] is not None,
        "objective.generator_learns": not objective["generator_learns"],
        "networks.frozen_discriminator_blocks": networks["frozen_discriminator_blocks"] != 0,
        "networks.output_norm_eps": networks["output_norm_eps"] != LAST_NORM_EPS,
        "optimizers.D.eps": len({settings["eps"] for settings in adam.values()}) > 1,
        **{
            f"optimizers.*.{field}": any(settings.get(field) is not None for settings in adam.values())
            for field in ("final_learning_rate", "final_beta2")
        },
        "ema.schedule": recipe["ema"]["schedule"] != "constant",
    }
    return [f"{field}: that program has no option for it" for field, differs in odd.items() if differs]


def _sides(sides: Any) -> str:
    return "_".join(map(str, sides)) or "0"


def _inverse(words: Mapping[str, str]) -> dict[str, str]:
    """Our words -> the first of theirs that means the same."""
    inverse: dict[str, str] = {}
    for theirs, ours in words.items():
        inverse.setdefault(ours, theirs)
    return inverse


def release_recipe(
    options: Options,
    iteration: int,
    optimizers: Mapping[str, Mapping[str, Any]],
    where: str,
    ours: OurSide,
    *,
    trains: bool,
) -> RecipeValues:
    """Make a recipe of a checkpoint's options.

    Args:
        options: options of the checkpoint.
        iteration: iterations done.
        optimizers: Adam's settings of "G" and "D" in the optimizers' files, which training goes on with.
        where: source of the options, for messages.
        ours: checks the recipe.
        trains: whether training goes on by these options; else the recipe has the settings for fine-tuning.

    Raises:
        BadInput: it names an option that is missing, or has no counterpart here.
    """
    try:
        networks = network_values(options)
        training = training_values(options) if trains else {}
    except BadInput as error:
        hint = "" if not trains else "; weights to draw with or to fine-tune (OUT.safetensors) may still be had"
        raise BadInput(f"{where}: option {error}{hint if _of_training(options) else ''}") from error
    about = {
        "summary": f"{options['model']} at {networks['resolution']} pixels, imported",
        "source": f"checkpoint of BigGAN-PyTorch at iteration {iteration:,}",
    }
    if trains:
        training["optimizers"] |= optimizers
    rest = training if trains else fine_tuning(ours)
    return ours.recipe({"family": "biggan", "about": about, "networks": networks, **rest}, where)


def _of_training(options: Options) -> bool:
    """Whether the networks' options are fine, so that it is an option of the training that was refused."""
    try:
        network_values(options)
    except BadInput:
        return False
    return True


def lines_of_differences(recipe: RecipeValues, options: Options) -> Iterator[str]:
    """Lines for options of the training that do not simply go over."""
    if recipe.values["training"]["duration"] == "endless":
        yield f"num_epochs {options.get('num_epochs')}: counts passes over pictures; training.duration is endless here"
    if (parts := max(options["num_D_accumulations"], options["num_G_accumulations"])) > 1:
        yield (
            f"num_D_accumulations {options['num_D_accumulations']}, num_G_accumulations "
            f"{options['num_G_accumulations']}: singular vectors and batch norm's statistics moved up to {parts} times "
            "an update there, and move once here"
        )
    if options.get("parallel") is True:
        yield (
            f"parallel: how many cards shared a batch of {options['batch_size']} is not written down, and with it over "
            f"how many samples batches were normalised; training.normalisation_batch={options['batch_size']} is for "
            "one, a quarter of that for four"
        )
    if options.get("split_D") is True:
        yield "split_D: real and generated pictures are always judged apart here"
    if options.get("ema") is not True:
        yield "ema False: the average is a copy of the generator (ema.decay = 0)"


def exported_options(
    recipe: RecipeValues, before: Mapping[str, Any] | None, ours: OurSide
) -> tuple[dict[str, Any], list[str]]:
    """All options of the program, and a line for every recipe field that it has no option for.

    Args:
        recipe: recipe as it is at the exported step.
        before: options of the imported checkpoint, which stay unless the recipe has changed since; None: the run was
            not made of such a checkpoint.
        ours: checks the recipe of the options before.
    """
    now, lines = _stated(recipe)
    if before is None:
        options = {**DEFAULTS, **now}
        return options, [*lines, *_lines_of_dataset(options)]
    values = {"family": "biggan", "networks": network_values(before), **training_values(before)}
    then, _ = _stated(ours.recipe(values, "the imported options"))
    changed = {name: value for name, value in now.items() if value != then[name]}
    options = {**DEFAULTS, **before, **changed}
    return options, [*lines, *(_lines_of_dataset(options) if "n_classes" in changed else [])]


def _stated(recipe: RecipeValues) -> tuple[dict[str, Any], list[str]]:
    values = recipe.values | {"ema": recipe.values["ema"] | {"start": recipe.averages_from}}
    return options_of(values, recipe.optimizers)


def fine_tuning(ours: OurSide) -> dict[str, Any]:
    """Sections of the shipped recipe for fine-tuning, apart from its name and its networks."""
    values = _shipped(ours)
    return {name: value for name, value in values.items() if name not in ("family", "rule", "about", "networks")}


def next_lines(path: Path, recipe: RecipeValues, ours: OurSide, *, discriminator: bool) -> list[str]:
    """Lines that tell how to sample from converted weights, and how to fine-tune them.

    Args:
        path: file or folder of the weights.
        recipe: recipe of the weights.
        ours: has the recipe for fine-tuning.
        discriminator: whether the weights have a discriminator; an untrained one is not frozen.
    """
    lines = [f"Next: frugan sample {shlex.quote(str(path))} --out samples"]
    started = f"--init {shlex.quote(str(path))} --init-classes mean --data PICTURES --out RUN"
    if path.suffix != WEIGHTS_SUFFIX:
        return [*lines, f"Or: frugan train {shlex.quote(str(path / RECIPE_FILE))} networks.classes=N {started}"]
    differing = _differing_networks(recipe, ours, discriminator=discriminator)
    words = [f"networks.{name}={value}" for name, value in differing]
    return [*lines, f"Or: frugan train {shlex.join([FINE_TUNING, 'networks.classes=N', *words])} {started}"]


def _differing_networks(recipe: RecipeValues, ours: OurSide, *, discriminator: bool) -> list[tuple[str, str]]:
    """Fields of the networks, other than the number of classes, that differ from the recipe for fine-tuning."""
    networks, shipped = dict(recipe.values["networks"]), _shipped(ours)["networks"]
    frozen = "frozen_discriminator_blocks"
    if discriminator:
        networks[frozen] = shipped[frozen]
    values = {key: "none" if value is None else json.dumps(value) for key, value in networks.items()}
    return [(key, values[key]) for key, value in networks.items() if key != "classes" and shipped[key] != value]


def _shipped(ours: OurSide) -> dict[str, Any]:
    shipped = ours.shipped(FINE_TUNING)
    assert shipped is not None
    return shipped.values
