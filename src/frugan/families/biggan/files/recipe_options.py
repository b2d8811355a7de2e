"""A recipe as options of BigGAN-PyTorch's training program: the inverse of `release_options`."""

from collections.abc import Mapping
from typing import Any

from frugan.errors import BadInput
from frugan.families.biggan.files.release_options import ARCHITECTURES, DEEP_GENERATOR_DEPTH, INITIALISATIONS

MOST_PIXELS = 256
"""Of its discriminators."""
LAST_NORM_EPS = 1e-5
"""Of the generator's last normalisation there, whatever BN_eps says."""


def options_of(recipe: Mapping[str, Any], adam: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Options that stand for a recipe's fields, and a line for what that program has no option for.

    Args:
        recipe: as a dict, of the step in question.
        adam: settings of the optimizers "D" and "G".

    Raises:
        BadInput: that program builds no such networks.
    """
    _check_networks(recipe["networks"])
    networks, objective, training, ema = (recipe[name] for name in ("networks", "objective", "training", "ema"))
    deep = networks["architecture"] == "biggan-deep"
    batch = training["batch"]
    size = training["normalisation_batch"] or batch
    words = {"architecture": _inverse(ARCHITECTURES), "initialisation": _inverse(INITIALISATIONS)}
    averaging = ema["decay"] > 0
    options = {
        "model": words["architecture"][networks["architecture"]],
        "resolution": networks["resolution"],
        "n_classes": networks["classes"],
        "G_ch": networks["generator_channels"],
        "D_ch": networks["discriminator_channels"],
        "G_depth": DEEP_GENERATOR_DEPTH if deep else 1,
        "D_depth": networks["blocks_per_stage"] if deep else 1,
        "D_wide": networks["discriminator_wide"],
        "G_shared": networks["shared_embedding"] is not None,
        "shared_dim": networks["shared_embedding"] or 0,
        "dim_z": networks["latent_size"],
        "hier": networks["hierarchical_latent"],
        "mybn": networks["running_variance"] == "biased",
        "G_attn": _sides(networks["generator_attention"]),
        "D_attn": _sides(networks["discriminator_attention"]),
        "G_init": words["initialisation"][networks["generator_initialisation"]],
        "D_init": words["initialisation"][networks["discriminator_initialisation"]],
        "BN_eps": networks["batch_norm_eps"],
        "SN_eps": networks["spectral_norm_eps"],
        "num_G_SVs": networks["singular_values"],
        "num_D_SVs": networks["singular_values"],
        "num_G_SV_itrs": networks["power_iterations"],
        "num_D_SV_itrs": networks["power_iterations"],
        "num_D_steps": objective["discriminator_steps"],
        "G_ortho": objective["generator_orthogonality"],
        "D_ortho": objective["discriminator_orthogonality"],
        "seed": training["seed"],
        "batch_size": size,
        "num_G_accumulations": batch // size,
        "num_D_accumulations": batch // size,
        "adam_eps": adam["G"]["eps"],
        "ema": averaging,
        "use_ema": averaging,
    }
    if averaging:
        options |= {"ema_decay": ema["decay"], "ema_start": ema["start"]}
    for name, settings in adam.items():
        options |= {
            f"{name}_lr": settings["learning_rate"],
            f"{name}_B1": settings["beta1"],
            f"{name}_B2": settings["beta2"],
        }
    return options, _without_counterpart(recipe, adam)


def _check_networks(networks: Mapping[str, Any]) -> None:
    at_32 = networks["resolution"] == 32 and networks["discriminator_attention"]
    if at_32 and not networks["reference_attention_at_32"]:
        raise BadInput(
            "networks.discriminator_attention at 32 pixels: BigGAN-PyTorch puts it after every block, and could not "
            "load these weights; networks.reference_attention_at_32=true trains such a discriminator"
        )
    if networks["channels"] != 3:
        raise BadInput(f"networks.channels {networks['channels']}: BigGAN-PyTorch draws pictures in colour only")
    if networks["resolution"] > MOST_PIXELS:
        raise BadInput(f"networks.resolution {networks['resolution']}: BigGAN-PyTorch has no such discriminator")


def _without_counterpart(recipe: Mapping[str, Any], adam: Mapping[str, Mapping[str, Any]]) -> list[str]:
    networks, objective = recipe["networks"], recipe["objective"]
    odd = {
        "objective.loss": objective["loss"] != "hinge",
        "objective.r1_gamma": objective["r1_gamma"] != 0,
        "objective.augmentation": objective["augmentation"]["method"] is not None,
        "objective.generator_learns": not objective["generator_learns"],
        "networks.frozen_discriminator_blocks": networks["frozen_discriminator_blocks"] != 0,
        "networks.output_norm_eps": networks["output_norm_eps"] != LAST_NORM_EPS,
        "optimizers.D.eps": adam["D"]["eps"] != adam["G"]["eps"],
        "optimizers.*.final_learning_rate": any(each.get("final_learning_rate") is not None for each in adam.values()),
        "ema.schedule": recipe["ema"]["schedule"] != "constant",
    }
    return [f"{field}: that program has no option for it" for field, differs in odd.items() if differs]


def _sides(sides: Any) -> str:
    return "_".join(map(str, sides)) or "0"


def _inverse(words: Mapping[str, str]) -> dict[str, str]:
    """Ours -> the first of theirs."""
    found: dict[str, str] = {}
    for theirs, ours in words.items():
        found.setdefault(ours, theirs)
    return found
