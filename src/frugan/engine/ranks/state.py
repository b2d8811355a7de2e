"""What of a training's state every rank must have alike."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from frugan.engine.layout import memory_of
from frugan.engine.state import TrainingState


def state_tensors(state: TrainingState) -> Iterator[Tensor]:
    """Every tensor that training moves, in the same order on every rank."""
    for network in (*state.networks.values(), *state.ema.networks.values()):
        yield from network.state_dict().values()
    for optimizer in state.optimizers.values():
        yield from optimizer.counts.values()
        for parameter, own in zip(optimizer.parameters(), optimizer.moved(), strict=True):
            kept = optimizer.state[own]
            # of what is shared out, every rank has another slice
            yield from (kept[name] for name in (*(optimizer.slots if own is parameter else ()), *optimizer.steps))
    for scale in state.loss_scales.values():
        yield from (scale.scale, scale.good)
    yield from state.carried.values()
    yield from state.skipped.values()


_BITS: Mapping[int, torch.dtype] = MappingProxyType({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64})
"""Bytes of an element -> integers of as many."""


@torch.no_grad()
def checksum(state: TrainingState) -> Tensor:
    """A number that almost surely differs where any bit does; int64 [1], on the host."""
    bits = (memory_of(tensor.detach()).view(_BITS[tensor.element_size()]) for tensor in state_tensors(state))
    sums = torch.stack([each.sum(dtype=torch.int64).to(state.device) for each in bits]).cpu()
    return (sums * torch.arange(1, len(sums) + 1)).sum().reshape(1)
