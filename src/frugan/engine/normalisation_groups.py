"""Groups of samples that layers normalise over: which networks have such layers, and how large a group is."""

from collections.abc import Mapping

from torch import nn

from frugan.contract.layers import GroupNormalised


def set_normalisation_batch(network: nn.Module, size: int | None) -> None:
    """Give every group-normalising layer its group size."""
    for module in network.modules():
        if isinstance(module, GroupNormalised):
            module.normalisation_batch = size


def normalises_groups(networks: Mapping[str, nn.Module]) -> bool:
    """Whether any layer's result depends on which samples stand together."""
    return any(isinstance(module, GroupNormalised) for network in networks.values() for module in network.modules())
