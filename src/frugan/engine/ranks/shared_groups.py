"""Normalisation groups that are shared by ranks: what is summed inside a forward, and who sums it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from frugan.contract.layers import GroupNormalised, SharedGroup
from frugan.errors import BadInput


@dataclass(frozen=True)
class TeamGroup:
    """A group that a team of ranks shares; see `SharedGroup`.

    Attributes:
        part: samples of the group that this rank holds.
        samples: of the whole group.
        all_reduce: replaces a contiguous tensor by its sum over the team.
    """

    part: int
    samples: int
    all_reduce: Callable[[Tensor], None]

    def sum(self, own: Tensor) -> Tensor:
        """Sum over the team."""
        summed: Tensor = _Sum.apply(own, self.all_reduce)
        return summed


@dataclass(frozen=True)
class LonePart:
    """A part of a group without the other ranks, who are taken to hold the like of it: where a step is only timed.

    Attributes:
        part: samples that this process holds.
        samples: of the whole group.
    """

    part: int
    samples: int

    def sum(self, own: Tensor) -> Tensor:
        """As if all others had the same."""
        return own * (self.samples / self.part)


class _Sum(torch.autograd.Function):
    """Sum over processes. A process's gradient is the sum of all processes' gradients: it is its own transpose."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, all_reduce: Callable[[Tensor], None]) -> Tensor:
        ctx.all_reduce = all_reduce
        summed = own.detach().clone(memory_format=torch.contiguous_format)
        all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return _Sum.apply(gradient, ctx.all_reduce), None


@contextmanager
def sharing(networks: Mapping[str, nn.Module], shared: SharedGroup | None) -> Iterator[None]:
    """Let layers that normalise over samples know that they see parts of groups, while this is open.

    Raises:
        BadInput: one of them would not heed it.
    """
    layers = [m for network in networks.values() for m in network.modules() if isinstance(m, GroupNormalised)]
    if shared is not None and (wrong := [layer for layer in layers if not layer.can_share]):
        raise BadInput(
            f"{type(wrong[0]).__name__} looks at a whole normalisation group of {shared.samples}, and ranks would "
            "share one: start no more ranks than a batch has groups"
        )
    for layer in layers:
        layer.shared = shared
    try:
        yield
    finally:
        for layer in layers:
            layer.shared = None
