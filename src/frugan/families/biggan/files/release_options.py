"""Options of BigGAN-PyTorch's training program, as a checkpoint keeps them, and the recipe fields that they stand for.

Options that change networks or training in a way that no recipe field has are refused by their names. Some of them
matter only where training goes on: weights to draw pictures with can be had all the same.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from frugan.errors import BadInput
from frugan.families.biggan.config import discriminator_channels_at, generator_channels_at
from frugan.pickles.wording import shown_value

Options = Mapping[str, Any]

ARCHITECTURES = MappingProxyType({"BigGAN": "biggan", "BigGANdeep": "biggan-deep"})
INITIALISATIONS = MappingProxyType({"ortho": "orthogonal", "N02": "normal", "xavier": "xavier", "glorot": "xavier"})
ACTIVATIONS = frozenset({"relu", "inplace_relu", "ir"})
DEEP_GENERATOR_DEPTH = 2


def network_values(options: Options) -> dict[str, Any]:
    """Values of a recipe's `networks` section.

    Raises:
        BadInput: an option is missing, of another type, or asks for networks that are not built here.
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
        "architecture": architecture,
        "resolution": resolution,
        "classes": _number(options, "n_classes"),
        "generator_channels": _number(options, "G_ch"),
        "discriminator_channels": _number(options, "D_ch"),
        "latent_size": _number(options, "dim_z"),
        "shared_embedding": (_number(options, "shared_dim") or _number(options, "dim_z")) if shared else None,
        "hierarchical_latent": _flag(options, "hier"),
        "generator_attention": attention["G_attn"],
        "discriminator_attention": attention["D_attn"],
        "discriminator_wide": _flag(options, "D_wide"),
        "blocks_per_stage": _number(options, "D_depth") if deep else 2,
        "generator_initialisation": _word(options, "G_init", INITIALISATIONS),
        "discriminator_initialisation": _word(options, "D_init", INITIALISATIONS),
        "batch_norm_eps": _float(options, "BN_eps"),
        "running_variance": "biased" if _flag(options, "mybn") else "unbiased",
        "spectral_norm_eps": _float(options, "SN_eps"),
        "power_iterations": _number(options, "num_G_SV_itrs"),
        "singular_values": _number(options, "num_G_SVs"),
        # its table for 32 pixels is wrong, and with it where attention stands
        "reference_attention_at_32": bool(resolution == 32 and attention["D_attn"]),
    }


def training_values(options: Options) -> dict[str, Any]:
    """Values of the sections that say how it is trained.

    Raises:
        BadInput: an option is missing, of another type, or asks for a training that is not done here.
    """
    _only(options, "which_train_fn", ("GAN",), "that program then trains nothing")
    for name in ("G_fp16", "D_fp16", "G_mixed_precision", "D_mixed_precision"):
        _only(options, name, (False,), "its half-precision weights and optimizer state are not read")
    size, own_size = _number(options, "batch_size"), _number(options, "G_batch_size")
    batch = size * _number(options, "num_D_accumulations")
    generated = max(size, own_size) * _number(options, "num_G_accumulations")
    if own_size > size:
        raise BadInput(
            f"G_batch_size {own_size}: the generator is updated on batches of another size than the discriminator's "
            f"{size}, which no recipe field has"
        )
    if generated != batch:
        raise BadInput(
            f"num_G_accumulations {options['num_G_accumulations']}, num_D_accumulations "
            f"{options['num_D_accumulations']}: the generator is updated on {generated:,} samples and the "
            f"discriminator on {batch:,}, which no recipe field has"
        )
    return {
        "objective": {
            "loss": "hinge",
            "discriminator_steps": _number(options, "num_D_steps"),
            "generator_orthogonality": _float(options, "G_ortho"),
            "discriminator_orthogonality": _float(options, "D_ortho"),
        },
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
    }


def _adam(options: Options, network: str) -> dict[str, Any]:
    return {
        "learning_rate": _float(options, f"{network}_lr"),
        "beta1": _float(options, f"{network}_B1"),
        "beta2": _float(options, f"{network}_B2"),
        "eps": _float(options, "adam_eps"),
    }


def _attention(options: Options, name: str, resolution: int, *, deep: bool) -> list[int]:
    """Sides with attention; what stands at none of a network's blocks is passed over, as that program does."""
    text = _given(options, name)
    if not isinstance(text, str) or not all(part.isdigit() and len(part) < 5 for part in text.split("_")):
        raise BadInput(f"{name} {shown_value(text)}: expected sides such as 64 or 32_64, or 0")
    try:
        sides: Mapping[int, int]
        if name == "G_attn":
            sides = generator_channels_at(resolution)
        else:
            sides = discriminator_channels_at(resolution, deep=deep, reference_at_32=resolution == 32)
    except KeyError:
        return []  # the resolution is refused elsewhere, with words
    return sorted({int(part) for part in text.split("_")} & set(sides))


def _only(options: Options, name: str, allowed: tuple[Any, ...], why: str) -> None:
    value = _given(options, name)
    if not any(type(value) is type(each) and value == each for each in allowed):
        expected = " or ".join(str(each) for each in allowed)
        raise BadInput(f"{name} {shown_value(value)}: {why}; expected {expected}")


def _word(options: Options, name: str, known: Mapping[str, str]) -> str:
    value = _given(options, name)
    if not isinstance(value, str) or value not in known:
        raise BadInput(f"{name} {shown_value(value)}: expected one of {', '.join(known)}")
    return known[value]


def _number(options: Options, name: str) -> int:
    value = _given(options, name)
    if type(value) is not int or value < 0:
        raise BadInput(f"{name} {shown_value(value)}: expected a whole number")
    return value


def _float(options: Options, name: str) -> float:
    value = _given(options, name)
    if type(value) not in (int, float):
        raise BadInput(f"{name} {shown_value(value)}: expected a number")
    return float(value)


def _flag(options: Options, name: str) -> bool:
    value = _given(options, name)
    if type(value) is not bool:
        raise BadInput(f"{name} {shown_value(value)}: expected True or False")
    return value


def _given(options: Options, name: str) -> Any:
    if name not in options:
        raise BadInput(f"option {name} is missing; expected all options of BigGAN-PyTorch's train.py")
    return options[name]
