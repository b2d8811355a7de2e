"""Optimizers by recipe, over named parameters of several networks."""

from collections.abc import Mapping, Sequence

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from frugan.phase import CHANGEABLE, Phase


class AdamSettings(BaseModel):
    """Adam (Kingma and Ba 2014); learning rate, betas and eps as torch defines them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(gt=0, json_schema_extra=CHANGEABLE)
    final_learning_rate: float | None = Field(
        None,
        ge=0,
        json_schema_extra=CHANGEABLE,
        description="reached in a straight line at the end of the duration; none: the rate stays",
    )
    beta1: float = Field(0.0, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    clip_norm: float | None = Field(None, gt=0, json_schema_extra=CHANGEABLE, description="largest gradient norm")

    def rate_at(self, progress: float) -> float:
        """Learning rate at a share of the duration, from 0 to 1."""
        if self.final_learning_rate is None:
            return self.learning_rate
        return self.learning_rate + (self.final_learning_rate - self.learning_rate) * min(1.0, progress)


def networks_of(optimizer: str, phases: Sequence[Phase]) -> tuple[str, ...]:
    """Networks that an optimizer moves: those updated by the phases that use it, in order, once each."""
    return tuple(dict.fromkeys(name for phase in phases if phase.optimizer == optimizer for name in phase.updates))


def named_parameters(networks: Mapping[str, nn.Module], names: Sequence[str]) -> dict[str, nn.Parameter]:
    """Parameters of some networks as "network.parameter"."""
    return {f"{name}.{key}": value for name in names for key, value in networks[name].named_parameters()}


def create_optimizer(settings: AdamSettings, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    """Make Adam over named parameters.

    Fused: makes no temporaries as large as the parameters, and takes the verdict on the gradients (`found_inf`) on the
    device, so that a skipped update needs no look from the host.
    """
    return torch.optim.Adam(
        list(parameters.values()),
        lr=settings.learning_rate,
        betas=(float(settings.beta1), float(settings.beta2)),
        eps=settings.eps,
        fused=True,
    )
