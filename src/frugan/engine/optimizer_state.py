"""Optimizers' state: made at once, and kept in host memory where the plan says so.

Torch makes it at the first update, in the pieces that activations have left: the next step then finds no room for the
same activations, and memory grows. Made before the first step, it costs what it costs.
"""

import torch
from torch import Tensor, nn

from frugan.engine.host_state import beside, host_likes
from frugan.engine.optimizer import Optimizer


def make_state(optimizer: Optimizer, *, on_host: bool) -> None:
    """Give every parameter its statistics, all zero.

    Args:
        on_host: in host memory (pinned beside a card); each then comes over for its parameter's update alone.
    """
    made = _statistics(optimizer, on_host=on_host)
    for parameter, statistics in made.items():
        for value in statistics.values():
            value.zero_()
        for step in optimizer.steps:  # on the device: where the fused kernel counts
            optimizer.state[parameter][step] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        optimizer.state[parameter].update(statistics)


@torch.no_grad()
def move_state(optimizer: Optimizer, *, on_host: bool) -> None:
    """Take the statistics to host memory, or back beside the parameters."""
    if on_host:
        for parameter, statistics in _statistics(optimizer, on_host=True).items():
            for slot, value in statistics.items():
                optimizer.state[parameter][slot] = value.copy_(optimizer.state[parameter][slot])
        return
    optimizer.on_host = False
    for parameter in optimizer.moved():
        for slot in optimizer.slots:
            optimizer.state[parameter][slot] = beside(optimizer.state[parameter][slot], parameter)


def _statistics(optimizer: Optimizer, *, on_host: bool) -> dict[nn.Parameter, dict[str, Tensor]]:
    """Memory for every parameter's statistics, in the parameters' layouts: on the host in few allocations."""
    optimizer.on_host = on_host
    slots = optimizer.slots
    parameters = [parameter for parameter in optimizer.moved() for _ in slots]
    if on_host:
        made = host_likes(parameters, "optimizer state")
    else:
        made = [torch.empty_like(parameter.detach()) for parameter in parameters]
    found: dict[nn.Parameter, dict[str, Tensor]] = {}
    for parameter, slot, value in zip(parameters, slots * (len(parameters) // len(slots)), made, strict=True):
        found.setdefault(parameter, {})[slot] = value
    return found
