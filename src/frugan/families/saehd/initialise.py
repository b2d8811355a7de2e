"""First weights as the original's: Glorot uniform, biases of zero. Torch's own start is another."""

import torch
from torch import nn


@torch.no_grad()
def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw every convolution and dense layer anew (Glorot and Bengio 2010).

    Args:
        network: on any device but meta.
        generator: on the network's device.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
