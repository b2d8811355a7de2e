"""Optimizers' state: made at once, and kept in host memory where the plan says so.

Torch makes it at the first update, in the pieces that activations have left: the next step then finds no room for the
same activations, and memory grows. Made before the first step, it costs what it costs.
"""

import torch
from torch import Tensor, nn

from frugan.engine.host_state import beside, host_likes
from frugan.engine.leras_optimizers import LerasOptimizer

ADAM_SLOTS = ("exp_avg", "exp_avg_sq")


def make_state(optimizer: torch.optim.Optimizer, *, on_host: bool) -> None:
    """Give every parameter its statistics, all zero.

    Args:
        on_host: in host memory (pinned beside a card); each then comes over for its parameter's update alone.
    """
    made = _statistics(optimizer, on_host=on_host)
    for parameter, statistics in made.items():
        for value in statistics.values():
            value.zero_()
        if not isinstance(optimizer, LerasOptimizer):
            step = torch.zeros((), dtype=torch.float32, device=parameter.device)  # where the fused kernel counts
            optimizer.state[parameter]["step"] = step
        optimizer.state[parameter].update(statistics)


@torch.no_grad()
def move_state(optimizer: torch.optim.Optimizer, *, on_host: bool) -> None:
    """Take the statistics to host memory, or back beside the parameters."""
    if on_host:
        for parameter, statistics in _statistics(optimizer, on_host=True).items():
            for slot, value in statistics.items():
                optimizer.state[parameter][slot] = value.copy_(optimizer.state[parameter][slot])
        return
    if isinstance(optimizer, LerasOptimizer):
        optimizer.on_host = False
    for parameter in _parameters(optimizer):
        for slot in slots_of(optimizer):
            optimizer.state[parameter][slot] = beside(optimizer.state[parameter][slot], parameter)


@torch.no_grad()
def step_parameter_by_parameter(optimizer: torch.optim.Optimizer) -> None:
    """One step of Adam whose statistics lie in host memory: each comes over, moves and goes back.

    Copies and updates are queued on one stream, so that the host waits for none of them.
    """
    gradients = {parameter: parameter.grad for parameter in _parameters(optimizer) if parameter.grad is not None}
    for parameter in gradients:
        parameter.grad = None
    for parameter, gradient in gradients.items():
        host = optimizer.state[parameter]
        optimizer.state[parameter] = {
            slot: beside(value, parameter) if slot in ADAM_SLOTS else value for slot, value in host.items()
        }
        parameter.grad = gradient
        optimizer.step()
        parameter.grad = None
        for slot in ADAM_SLOTS:
            host[slot].copy_(optimizer.state[parameter][slot], non_blocking=True)
        optimizer.state[parameter] = host
    for parameter, gradient in gradients.items():
        parameter.grad = gradient


def slots_of(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """Names of the statistics that an optimizer keeps for each parameter."""
    return optimizer.slots if isinstance(optimizer, LerasOptimizer) else ADAM_SLOTS


def _statistics(optimizer: torch.optim.Optimizer, *, on_host: bool) -> dict[nn.Parameter, dict[str, Tensor]]:
    """Memory for every parameter's statistics, in the parameters' layouts: on the host in few allocations."""
    if isinstance(optimizer, LerasOptimizer):
        optimizer.on_host = on_host
    slots = slots_of(optimizer)
    parameters = [parameter for parameter in _parameters(optimizer) for _ in slots]
    if on_host:
        made = host_likes(parameters, "optimizer state")
    else:
        made = [torch.empty_like(parameter.detach()) for parameter in parameters]
    found: dict[nn.Parameter, dict[str, Tensor]] = {}
    for parameter, slot, value in zip(parameters, slots * (len(parameters) // len(slots)), made, strict=True):
        found.setdefault(parameter, {})[slot] = value
    return found


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
