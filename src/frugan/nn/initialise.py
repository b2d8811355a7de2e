"""Initial weights of layers, and embeddings that draw nothing on tensors without data."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

Initialisation = Literal["orthogonal", "normal", "xavier"]

INITIALISERS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "orthogonal": nn.init.orthogonal_,
        "normal": lambda weight, generator: nn.init.normal_(weight, 0.0, 0.02, generator=generator),
        "xavier": nn.init.xavier_uniform_,
    }
)


@torch.no_grad()
def initialise(network: nn.Module, how: Initialisation, generator: torch.Generator) -> None:
    """Draw every weight of convolutions, linear layers and embeddings, in module order.

    Biases and spectral norm's start vectors, which torch has drawn by itself, are drawn again from `generator` in the
    same way, so that a network depends on its own stream alone.

    Args:
        network: a network on any device but meta.
        how: orthogonal (Saxe et al. 2013), normal of deviation 0.02, or Xavier (Glorot and Bengio 2010).
        generator: a generator on the network's device.
    """
    for module in network.modules():
        if not isinstance(module, nn.Conv2d | nn.Linear | nn.Embedding):
            continue
        INITIALISERS[how](module.weight, generator=generator)
        bias = getattr(module, "bias", None)
        if bias is not None:
            bound = module.weight[0].numel() ** -0.5
            nn.init.uniform_(bias, -bound, bound, generator=generator)
        for name, buffer in module.named_buffers(recurse=False):
            if name.startswith("u"):
                nn.init.normal_(buffer, generator=generator)


@torch.no_grad()
def initialise_layers(built: Mapping[str, nn.Module], seed: Callable[[str], int]) -> None:
    """Call `initialise` of every layer that has such a method, in module order.

    Args:
        built: networks by name, on any device but meta; each draws from a random stream of its own.
        seed: gives the seed of the stream of a name.
    """
    for name, network in built.items():
        device = next(network.parameters()).device
        generator = torch.Generator(device).manual_seed(seed(name))
        for module in network.modules():
            start: Callable[[torch.Generator], None] | None = getattr(module, "initialise", None)
            if start is not None:
                start(generator)


class Embedding(nn.Embedding):
    """Torch's embedding, which draws no values without data ("meta").

    Torch's `normal_` would import its whole compiler there: 2 of the 5 seconds of `frugan plan`.
    """

    def reset_parameters(self) -> None:
        """Draw normal values, unless there is no data to hold them."""
        if not self.weight.is_meta:
            super().reset_parameters()
