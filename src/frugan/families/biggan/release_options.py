"""Options of BigGAN-PyTorch's training program, as a checkpoint keeps them, and the recipe fields that they stand for.

Options that change networks or training in a way that no recipe field describes are refused by their names. Some of
them matter only where training goes on: weights to draw pictures with can be read all the same.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from frugan.errors import BadInput
from frugan.families.biggan.config import discriminator_channels_at, generator_channels_at
from frugan.wording import shown_value

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

Reader = Callable[[Options, str], Any]
NETWORK_FIELDS: Mapping[str, tuple[str, Reader]] = MappingProxyType(
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
OBJECTIVE_FIELDS: Mapping[str, tuple[str, Reader]] = MappingProxyType(
    {
        "num_D_steps": ("discriminator_steps", _number),
        "G_ortho": ("generator_orthogonality", _float),
        "D_ortho": ("discriminator_orthogonality", _float),
    }
)
ADAM_FIELDS: Mapping[str, str] = MappingProxyType({"lr": "learning_rate", "B1": "beta1", "B2": "beta2"})
"""Option, after "D_" or "G_" -> field of an optimizer."""


def _read(options: Options, table: Mapping[str, tuple[str, Reader]]) -> dict[str, Any]:
    """Values of recipe fields, from a table's options."""
    return {field: read(options, name) for name, (field, read) in table.items()}


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
