"""A recipe as options of BigGAN-PyTorch's training program."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from frugan.errors import BadInput
from frugan.families.biggan.files.release_options import (
    ARCHITECTURES,
    DEEP_GENERATOR_DEPTH,
    INITIALISATIONS,
)

MOST_PIXELS = 256
"""Of its discriminators."""
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
"""Of its options, where nothing else is said."""


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
        "networks.output_norm_eps": networks["output_norm_eps"] != 1e-5,
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
