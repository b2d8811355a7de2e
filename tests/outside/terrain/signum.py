"""An optimizer of its own: the sign of a running mean of gradients (Bernstein et al. 2018)."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from frugan.engine.state.optimizer import Optimizer
from frugan.engine.state.optimizer_settings import OptimizerSettings


class SignumSettings(OptimizerSettings):
    """As recipes give it."""

    kind: Literal["signum"] = Field("signum", description="which optimizer")
    momentum: float = Field(0.9, ge=0, lt=1, description="decay of the mean of gradients")

    def create(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        """Make the optimizer, without state."""
        return Signum(parameters, self.learning_rate, self.momentum)


class Signum(Optimizer):
    """Moves every weight by the rate, against the sign of the mean."""

    slots = ("momentum",)

    def __init__(self, parameters: Sequence[nn.Parameter], rate: float, momentum: float) -> None:
        super().__init__(parameters, {"lr": rate})
        self.momentum = momentum

    @torch.no_grad()
    def update(
        self, accepted: Tensor, *, learning_rate: float, period: int | None, share: float | None, seed: int
    ) -> None:
        """Move every parameter that has a gradient; nothing at all where `accepted` is False."""
        weight = torch.where(accepted, 1 - self.momentum, 0.0).float()
        moved = ((each, each.grad) for each in self.parameters() if each.grad is not None)
        kept = ((each, [self.state[each[0]]["momentum"]]) for each in moved)
        for (parameter, gradient), (mean,) in self.passing(kept) if self.on_host else kept:
            mean.lerp_(torch.where(accepted, gradient, 0.0), weight)
            parameter.sub_(torch.where(accepted, mean.sign() * learning_rate, 0.0))
