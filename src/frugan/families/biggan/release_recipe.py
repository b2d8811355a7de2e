"""Options of BigGAN-PyTorch's training program, as a checkpoint keeps them, and the recipe fields that they stand for.

Options that change networks or training in a way that no recipe field describes are refused by their names. Some of
them matter only where training goes on: weights to draw pictures with can be read all the same.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from frugan.contract.formats import RECIPE_FILE, WEIGHTS_SUFFIX, OurSide, RecipeValues
from frugan.errors import BadInput
from frugan.families.biggan.config import discriminator_channels_at, generator_channels_at
from frugan.wording import shown_value

FINE_TUNING = "biggan-finetune-128"
"""Name of the recipe for fine-tuning converted networks."""

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "dataset": "I128_hdf5",
        "augment": False,
        "num_workers": 8,
        "pin_memory": True,
        "shuffle": False,
        "load_in_mem": False,
        "use_multiepoch_sampler": False,
        "model": "BigGAN",
        "G_param": "SN",
        "D_param": "SN",
        "G_ch": 64,
        "D_ch": 64,
        "G_depth": 1,
        "D_depth": 1,
        "D_wide": True,
        "G_shared": False,
        "shared_dim": 0,
        "dim_z": 128,
        "z_var": 1.0,
        "hier": False,
        "cross_replica": False,
        "mybn": False,
        "G_nl": "relu",
        "D_nl": "relu",
        "G_attn": "64",
        "D_attn": "64",
        "norm_style": "bn",
        "seed": 0,
        "G_init": "ortho",
        "D_init": "ortho",
        "skip_init": False,
        "G_lr": 5e-5,
        "D_lr": 2e-4,
        "G_B1": 0.0,
        "D_B1": 0.0,
        "G_B2": 0.999,
        "D_B2": 0.999,
        "batch_size": 64,
        "G_batch_size": 0,
        "num_G_accumulations": 1,
        "num_D_steps": 2,
        "num_D_accumulations": 1,
        "split_D": False,
        "num_epochs": 100,
        "parallel": False,
        "G_fp16": False,
        "D_fp16": False,
        "D_mixed_precision": False,
        "G_mixed_precision": False,
        "accumulate_stats": False,
        "num_standing_accumulations": 16,
        "G_eval_mode": False,
        "save_every": 2000,
        "num_save_copies": 2,
        "num_best_copies": 2,
        "which_best": "IS",
        "no_fid": False,
        "test_every": 5000,
        "num_inception_images": 50000,
        "hashname": False,
        "base_root": "",
        "data_root": "data",
        "weights_root": "weights",
        "logs_root": "logs",
        "samples_root": "samples",
        "pbar": "mine",
        "name_suffix": "",
        "experiment_name": "",
        "config_from_name": False,
        "ema": False,
        "ema_decay": 0.9999,
        "use_ema": False,
        "ema_start": 0,
        "adam_eps": 1e-8,
        "BN_eps": 1e-5,
        "SN_eps": 1e-8,
        "num_G_SVs": 1,
        "num_D_SVs": 1,
        "num_G_SV_itrs": 1,
        "num_D_SV_itrs": 1,
        "G_ortho": 0.0,
        "D_ortho": 0.0,
        "toggle_grads": True,
        "which_train_fn": "GAN",
        "load_weights": "",
        "resume": False,
        "logstyle": "%3.3e",
        "log_G_spectra": False,
        "log_D_spectra": False,
        "sv_log_interval": 10,
    }
)
"""Default of each option."""

Options = Mapping[str, Any]

ARCHITECTURES = MappingProxyType({"BigGAN": "biggan", "BigGANdeep": "biggan-deep"})
INITIALISATIONS = MappingProxyType({"ortho": "orthogonal", "N02": "normal", "xavier": "xavier", "glorot": "xavier"})
ACTIVATIONS = frozenset({"relu", "inplace_relu", "ir"})
DEEP_GENERATOR_DEPTH = 2


def _only(options: Options, name: str, allowed: tuple[Any, ...], why: str) -> None:
    value = _option(options, name)
    if not any(type(value) is type(other) and value == other for other in allowed):
        expected = " or ".join(map(str, allowed))
        raise BadInput(f"{name} {shown_value(value)}: {why}; expected {expected}")


def _word(options: Options, name: str, known: Mapping[str, str]) -> str:
    value = _option(options, name)
    if not isinstance(value, str) or value not in known:
        raise BadInput(f"{name} {shown_value(value)}: expected one of {', '.join(known)}")
    return known[value]


def _number(options: Options, name: str) -> int:
    value = _option(options, name)
    if type(value) is not int or value < 0:
        raise BadInput(f"{name} {shown_value(value)}: expected a whole number")
    return value


def _float(options: Options, name: str) -> float:
    value = _option(options, name)
    if type(value) not in (int, float):
        raise BadInput(f"{name} {shown_value(value)}: expected a number")
    return float(value)


def _flag(options: Options, name: str) -> bool:
    value = _option(options, name)
    if type(value) is not bool:
        raise BadInput(f"{name} {shown_value(value)}: expected True or False")
    return value


def _option(options: Options, name: str) -> Any:
    if name not in options:
        raise BadInput(f"option {name} is missing; expected all options of BigGAN-PyTorch's train.py")
    return options[name]


# Options that have the same values as recipe fields, for both directions.

_Read = Callable[[Options, str], Any]
NETWORK_FIELDS: Mapping[str, tuple[str, _Read]] = MappingProxyType(
    {
        "resolution": ("resolution", _number),
        "n_classes": ("classes", _number),
        "G_ch": ("generator_channels", _number),
        "D_ch": ("discriminator_channels", _number),
        "D_wide": ("discriminator_wide", _flag),
        "dim_z": ("latent_size", _number),
        "hier": ("hierarchical_latent", _flag),
        "BN_eps": ("batch_norm_eps", _float),
        "SN_eps": ("spectral_norm_eps", _float),
        "num_G_SVs": ("singular_values", _number),
        "num_G_SV_itrs": ("power_iterations", _number),
    }
)
OBJECTIVE_FIELDS: Mapping[str, tuple[str, _Read]] = MappingProxyType(
    {
        "num_D_steps": ("discriminator_steps", _number),
        "G_ortho": ("generator_orthogonality", _float),
        "D_ortho": ("discriminator_orthogonality", _float),
    }
)
ADAM_FIELDS: Mapping[str, str] = MappingProxyType({"lr": "learning_rate", "B1": "beta1", "B2": "beta2"})
"""Option, after "D_" or "G_" -> field of an optimizer."""


def _read(options: Options, table: Mapping[str, tuple[str, _Read]]) -> dict[str, Any]:
    """Values of recipe fields, from a table's options."""
    return {field: read(options, name) for name, (field, read) in table.items()}


def _written(values: Mapping[str, Any], table: Mapping[str, tuple[str, _Read]]) -> dict[str, Any]:
    """Values of options, from a table's recipe fields."""
    return {name: values[field] for name, (field, _) in table.items()}


def network_values(options: Options) -> dict[str, Any]:
    """Values of a recipe's section `networks`.

    Raises:
        BadInput: an option is missing, of another type, or of networks that are not built here.
    """
    _only(options, "norm_style", ("bn",), "instance, group, layer or no normalisation is not built here")
    _only(options, "G_param", ("SN",), "a generator without spectral norm is not built here")
    _only(options, "D_param", ("SN",), "a discriminator without spectral norm is not built here")
    _only(options, "cross_replica", (False,), "its statistics are not those that its networks were trained with")
    for name in ("G_nl", "D_nl"):
        _only(options, name, tuple(sorted(ACTIVATIONS)), "other activations are not built here")
    architecture = _word(options, "model", ARCHITECTURES)
    deep = architecture == "biggan-deep"
    resolution = _number(options, "resolution")
    for one, other in (("num_G_SVs", "num_D_SVs"), ("num_G_SV_itrs", "num_D_SV_itrs")):
        if _number(options, one) != _number(options, other):
            raise BadInput(
                f"{one} {options[one]}, {other} {options[other]}: both networks have the same number here, so these "
                "cannot be carried over"
            )
    shared = _flag(options, "G_shared")
    attention = {name: _attention(options, name, resolution, deep=deep) for name in ("G_attn", "D_attn")}
    if deep and _number(options, "G_depth") != DEEP_GENERATOR_DEPTH:
        raise BadInput(f"G_depth {options['G_depth']}: expected {DEEP_GENERATOR_DEPTH}, the depth of its tables")
    return {
        **_read(options, NETWORK_FIELDS),
        "architecture": architecture,
        "shared_embedding": (_number(options, "shared_dim") or _number(options, "dim_z")) if shared else None,
        "generator_attention": attention["G_attn"],
        "discriminator_attention": attention["D_attn"],
        "blocks_per_stage": _number(options, "D_depth") if deep else 2,
        "generator_initialisation": _word(options, "G_init", INITIALISATIONS),
        "discriminator_initialisation": _word(options, "D_init", INITIALISATIONS),
        "running_variance": "biased" if _flag(options, "mybn") else "unbiased",
        # the program's table for 32 pixels is wrong, and so is the place of attention
        "reference_attention_at_32": bool(resolution == 32 and attention["D_attn"]),
    }


def training_values(options: Options) -> dict[str, Any]:
    """Values of a recipe's sections about training.

    Raises:
        BadInput: an option is missing, of another type, or of a kind of training that is not done here.
    """
    _only(options, "which_train_fn", ("GAN",), "that program then trains nothing")
    for name in ("G_fp16", "D_fp16", "G_mixed_precision", "D_mixed_precision"):
        _only(options, name, (False,), "its half-precision weights and optimizer state are not read")
    size, generator_size = _number(options, "batch_size"), _number(options, "G_batch_size")
    batch = size * _number(options, "num_D_accumulations")
    generated = max(size, generator_size) * _number(options, "num_G_accumulations")
    if generator_size > size:
        raise BadInput(
            f"G_batch_size {generator_size}: the generator is updated on batches of another size than the "
            f"discriminator's {size}, which no recipe field has"
        )
    if generated != batch:
        raise BadInput(
            f"num_G_accumulations {options['num_G_accumulations']}, num_D_accumulations "
            f"{options['num_D_accumulations']}: the generator is updated on {generated:,} samples and the "
            f"discriminator on {batch:,}, which no recipe field has"
        )
    return {
        "objective": {"loss": "hinge", **_read(options, OBJECTIVE_FIELDS)},
        "data": {"flip": _flag(options, "augment") and not str(options.get("dataset", "")).endswith("_hdf5")},
        "training": {
            "batch": batch,
            "normalisation_batch": size,
            "duration": "endless",
            "seed": _number(options, "seed"),
        },
        "optimizers": {name: _adam(options, name) for name in ("D", "G")},
        "ema": {
            "decay": _float(options, "ema_decay") if _flag(options, "ema") else 0.0,
            "start": f"{_number(options, 'ema_start') if _flag(options, 'ema') else 0} steps",
        },
        "saving": {
            "checkpoint_every": f"{max(1, _number(options, 'save_every'))} steps",
            "snapshot_every": f"{max(1, _number(options, 'save_every'))} steps",
            "keep_checkpoints": max(1, _number(options, "num_save_copies")),
        },
        "evaluation": _scoring(options),
    }


LEAST_SCORED = 10
"""Smallest number of pictures for a score here."""


def _scoring(options: Options) -> dict[str, Any]:
    """Section `evaluation` for scores as that program takes them in training, with torchvision's Inception."""
    if not (every := _number(options, "test_every")):
        return {}
    metrics = ["is"] if _flag(options, "no_fid") else ["is", "fid"]
    by_score = _word(options, "which_best", {"IS": "is_mean", "FID": "fid"})
    standing, running = _flag(options, "accumulate_stats"), _flag(options, "G_eval_mode")
    values = {
        "every": f"{every} steps",
        "metrics": metrics,
        "samples": max(LEAST_SCORED, _number(options, "num_inception_images")),
        "network": "inception-torchvision",
        "statistics": "standing" if standing else "running" if running else "batch",
        "best_by": by_score if by_score == "is_mean" or "fid" in metrics else "is_mean",
        "keep_best": _number(options, "num_best_copies"),
    }
    batches = {"standing_batches": max(1, _number(options, "num_standing_accumulations"))} if standing else {}
    return values | batches


def _adam(options: Options, network: str) -> dict[str, Any]:
    rates = {field: _float(options, f"{network}_{name}") for name, field in ADAM_FIELDS.items()}
    return {**rates, "eps": _float(options, "adam_eps")}


def _attention(options: Options, name: str, resolution: int, *, deep: bool) -> list[int]:
    """Sides with attention; sides at which a network has no block are ignored, as by that program."""
    text = _option(options, name)
    if not isinstance(text, str) or not all(part.isdigit() and len(part) < 5 for part in text.split("_")):
        raise BadInput(f"{name} {shown_value(text)}: expected sides such as 64 or 32_64, or 0")
    try:
        sides: Mapping[int, int]
        if name == "G_attn":
            sides = generator_channels_at(resolution)
        else:
            sides = discriminator_channels_at(resolution, deep=deep, reference_at_32=resolution == 32)
    except KeyError:
        return []  # the resolution is refused elsewhere
    return sorted({int(part) for part in text.split("_")} & set(sides))


MOST_PIXELS = 256
"""Largest resolution of the program's discriminators."""
LAST_NORM_EPS = 1e-5
"""The program's eps of the generator's last normalisation, whatever BN_eps is."""


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
