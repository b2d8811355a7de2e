"""Weights files of generators as if they were trained: nothing in them is 0 or 1 that training would move."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frugan.recipe.loading import load_recipe
from frugan.setup.networks import load, save
from frugan.setup.recipe_setup import build_networks

Reference = Callable[[Any, Tensor, Tensor, float], Tensor]
"""(generator, latents, class numbers, psi) -> pictures, by the generator's own forward."""


@dataclass(frozen=True)
class Model:
    """A recipe, made small."""

    recipe: str
    overrides: tuple[str, ...]
    classes: int  # that its export takes; 0: none
    psi: bool
    reference: Reference


def _biggan(generator: Any, z: Tensor, labels: Tensor, _: float) -> Tensor:
    return cast(Tensor, generator(z, generator.embed(labels)))


def _stylegan2(generator: Any, z: Tensor, labels: Tensor, psi: float) -> Tensor:
    known = generator.mapping.classes
    return cast(Tensor, generator(z, labels if known else None, psi=psi)).clamp(-1, 1)


def _r3gan(generator: Any, z: Tensor, labels: Tensor, _: float) -> Tensor:
    return cast(Tensor, generator(z, labels if generator.classes else None)).clamp(-1, 1)


SMALL = ("networks.generator_channels=4", "networks.discriminator_channels=4")
DEEP = (*SMALL, 'networks.architecture="biggan-deep"', "networks.generator_attention=[]")
TABLES = (*SMALL, "networks.shared_embedding=none", "networks.hierarchical_latent=false")
STYLES = ("networks.channel_base=128", "networks.channel_max=8", "networks.mapping_layers=2")

WAVES = ("networks.resolution=32", "networks.layers=4", *STYLES, "networks.generator_channel_base=128")

MODELS = {
    "biggan": Model("biggan-digits-32", (*SMALL, "networks.generator_attention=[16]"), 10, False, _biggan),
    "biggan of one class": Model("biggan-digits-32", (*SMALL, "networks.classes=1"), 0, False, _biggan),
    "tables of classes": Model("biggan-digits-32", TABLES, 10, False, _biggan),
    "biggan-deep": Model("biggan-digits-32", DEEP, 10, False, _biggan),
    "stylegan2": Model("stylegan2-digits-32", STYLES, 10, True, _stylegan2),
    "stylegan2 without classes": Model("stylegan2-digits-32", (*STYLES, "networks.classes=none"), 0, True, _stylegan2),
    "stylegan3": Model("stylegan3-small-64", (*WAVES, "networks.classes=10"), 10, True, _stylegan2),
    "stylegan3-r": Model("stylegan3-small-64", (*WAVES, 'networks.equivariance="rotation"'), 0, True, _stylegan2),
    "r3gan": Model("r3gan-digits-32", (), 10, False, _r3gan),
    "r3gan without classes": Model("r3gan-digits-32", ("networks.classes=none",), 0, False, _r3gan),
}


def write(model: Model, path: Path, class_names: Sequence[str] = (), seed: int = 0) -> Path:
    """A weights file with the generator alone."""
    recipe = load_recipe(model.recipe, model.overrides)
    generator = build_networks(recipe)["G"]
    _move(generator, torch.Generator().manual_seed(seed))
    save({"G": generator}, recipe, path, class_names, step=1234)
    return path


def write_moving(path: Path) -> Path:
    """A weights file with a new StyleGAN3-R of 32 pixels."""
    small = ("resolution=32", "layers=4", "generator_channel_base=128", "generator_channel_max=12", "latent_size=8")
    words = [f"networks.{word}" for word in (*small, "equivariance=rotation", "style_size=8", "channel_base=256")]
    recipe = load_recipe("stylegan3-small-64", words)
    built = recipe.kind.build(recipe.networks)
    recipe.kind.initialise(recipe.networks, built, lambda name: 5)
    save({"G": built["G"]}, recipe, path, (), step=1)
    return path


@torch.no_grad()
def _move(network: nn.Module, random: torch.Generator) -> None:
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        drawn = torch.randn(tensor.shape, generator=random)
        last = name.rpartition(".")[2]
        if last == "stored_var":
            tensor.copy_(drawn.square() + 0.5)
        elif last == "magnitude_ema":
            tensor.copy_(0.1 + 0.1 * drawn.square())
        elif last in ("freqs", "phases"):
            tensor.copy_(drawn)
        elif last in ("w_avg", "stored_mean", "bias", "noise_strength", "gamma", "gain"):
            tensor.add_(drawn, alpha=0.3)
        elif name.endswith("conv3.weight"):  # R3GAN's blocks begin as nothing
            tensor.add_(drawn, alpha=0.1)


def torch_pictures(model: Model, path: Path, z: Tensor, labels: Tensor, psi: float = 1.0) -> NDArray[np.float32]:
    """What the network of a file draws."""
    with torch.no_grad():
        return cast(NDArray[np.float32], model.reference(load(path)["G"], z, labels, psi).numpy())
