"""Optimizers by recipe, over named parameters of several networks."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from torch import nn

from frugan.engine.leras_optimizers import AdaBelief, LerasOptimizer, RMSprop
from frugan.engine.optimizer_state import make_state, step_parameter_by_parameter
from frugan.phase import ADDED, CHANGEABLE, Phase


class _Settings(BaseModel):
    """What every optimizer has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(gt=0, json_schema_extra=CHANGEABLE)
    final_learning_rate: float | None = Field(
        None,
        ge=0,
        json_schema_extra=CHANGEABLE,
        description="reached in a straight line at the end of the duration; none: the rate stays",
    )
    clip_norm: float | None = Field(None, gt=0, json_schema_extra=CHANGEABLE, description="largest gradient norm")

    def rate_at(self, progress: float) -> float:
        """Learning rate at a share of the duration, from 0 to 1."""
        if self.final_learning_rate is None:
            return self.learning_rate
        return self.learning_rate + (self.final_learning_rate - self.learning_rate) * min(1.0, progress)


class AdamSettings(_Settings):
    """Adam (Kingma and Ba 2014); learning rate, betas and eps as torch defines them."""

    kind: Literal["adam"] = "adam"
    beta1: float = Field(0.0, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    lazy_regularisation: bool = Field(
        False,
        json_schema_extra=ADDED,
        description="learning rate and betas stand for the main phase; where others come every k steps with the same "
        "optimizer, both slow down by k/(k + 1) (StyleGAN2)",
    )


class _LerasSettings(_Settings):
    """What DeepFaceLab's two optimizers have in common."""

    learning_rate: float = Field(5e-5, gt=0, json_schema_extra=CHANGEABLE)
    eps: float = Field(1e-6, gt=0, description="added to the root")
    dropout: float | None = Field(
        None,
        gt=0,
        le=1,
        json_schema_extra=CHANGEABLE,
        description="learning-rate dropout: share of the weights that each update moves, drawn anew; the original: 0.3",
    )
    period: int | None = Field(
        None,
        ge=2,
        json_schema_extra=CHANGEABLE,
        description="updates of one cosine from the full rate to none and back; with dropout the original has 500",
    )


class RMSpropSettings(_LerasSettings):
    """RMSprop as DeepFaceLab defines it."""

    kind: Literal["rmsprop"] = "rmsprop"
    decay: float = Field(0.9, ge=0, lt=1)


class AdaBeliefSettings(_LerasSettings):
    """AdaBelief as DeepFaceLab defines it: no bias correction, eps outside the root only."""

    kind: Literal["adabelief"] = "adabelief"
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)


def _kind(value: Any) -> str:
    return str(value.get("kind", "adam") if isinstance(value, dict) else getattr(value, "kind", "adam"))


OptimizerSettings = Annotated[
    Annotated[AdamSettings, Tag("adam")]
    | Annotated[RMSpropSettings, Tag("rmsprop")]
    | Annotated[AdaBeliefSettings, Tag("adabelief")],
    Discriminator(_kind),
]
"""Settings of one optimizer; `kind` says which, "adam" if it is not given."""

SETTINGS_TYPES: tuple[type[_Settings], ...] = (AdamSettings, RMSpropSettings, AdaBeliefSettings)


KINDS: Mapping[str, type[_Settings]] = MappingProxyType(
    {str(of.model_fields["kind"].default): of for of in SETTINGS_TYPES}
)
"""Settings types by the word that `kind` has for them."""


def networks_of(optimizer: str, phases: Sequence[Phase]) -> tuple[str, ...]:
    """Networks that an optimizer moves: those updated by the phases that use it, in order, once each."""
    return tuple(dict.fromkeys(name for phase in phases if phase.optimizer == optimizer for name in phase.updates))


def with_lazy_phases(settings: OptimizerSettings, phases: Sequence[Phase], optimizer: str) -> OptimizerSettings:
    """Settings to run with, where an optimizer has more updates than its main phase has.

    With an update more in every k steps, learning rates and betas are raised to what leaves the same over k steps.

    Source: Karras et al. 2019 (arXiv 1912.04958), appendix B: c = k/(k + 1), rate·c, beta^c.
    """
    if not isinstance(settings, AdamSettings) or not settings.lazy_regularisation:
        return settings
    share = math.prod(p.every / (p.every + 1) for p in phases if p.optimizer == optimizer and p.every > 1)
    final = settings.final_learning_rate
    return settings.model_copy(
        update={
            "learning_rate": settings.learning_rate * share,
            "final_learning_rate": None if final is None else final * share,
            "beta1": settings.beta1**share,
            "beta2": settings.beta2**share,
            "lazy_regularisation": False,
        }
    )


def named_parameters(networks: Mapping[str, nn.Module], names: Sequence[str]) -> dict[str, nn.Parameter]:
    """Parameters of some networks as "network.parameter"."""
    return {f"{name}.{key}": value for name in names for key, value in networks[name].named_parameters()}


def create_optimizer(
    settings: AdamSettings | RMSpropSettings | AdaBeliefSettings,
    parameters: Mapping[str, nn.Parameter],
    *,
    on_host: bool = False,
) -> torch.optim.Optimizer:
    """Make an optimizer over named parameters, and its state.

    All of them take the verdict on the gradients on the device, so that a skipped update needs no look from the host,
    and make no temporaries as large as the parameters: Adam is torch's fused one, the others go in pieces.

    Args:
        on_host: the state lives in host memory.
    """
    optimizer = _create(settings, list(parameters.values()))
    make_state(optimizer, on_host=on_host)
    return optimizer


def _create(
    settings: AdamSettings | RMSpropSettings | AdaBeliefSettings, values: list[nn.Parameter]
) -> torch.optim.Optimizer:
    if isinstance(settings, RMSpropSettings):
        return RMSprop(values, lr=settings.learning_rate, decay=settings.decay, eps=settings.eps)
    if isinstance(settings, AdaBeliefSettings):
        betas = (settings.beta1, settings.beta2)
        return AdaBelief(values, lr=settings.learning_rate, betas=betas, eps=settings.eps)
    return torch.optim.Adam(
        values,
        lr=settings.learning_rate,
        betas=(float(settings.beta1), float(settings.beta2)),
        eps=settings.eps,
        fused=True,
    )


@torch.no_grad()
def update_parameters(
    optimizer: torch.optim.Optimizer,
    settings: AdamSettings | RMSpropSettings | AdaBeliefSettings,
    *,
    accepted: torch.Tensor,
    progress: float,
    dropout_seed: int,
    dropout: bool,
    on_host: bool = False,
) -> None:
    """Let an optimizer move its parameters by their gradients; where the verdict is no, nothing moves.

    Args:
        accepted: bool scalar on the device.
        progress: share of the duration that is done, 0 to 1.
        dropout_seed: of this update's learning-rate dropout.
        dropout: False: no learning-rate dropout and no cosine, whatever the settings say.
        on_host: the state lives in host memory.
    """
    rate = settings.rate_at(progress)
    if isinstance(optimizer, LerasOptimizer):
        if isinstance(settings, AdamSettings):
            raise TypeError("settings of Adam for another optimizer")
        share = settings.dropout if dropout and settings.dropout != 1 else None
        optimizer.update(
            accepted,
            learning_rate=rate,
            period=settings.period if dropout else None,
            share=share,
            seed=dropout_seed,
        )
        return
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.found_inf = (~accepted).float()  # type: ignore[attr-defined]
    optimizer.grad_scale = None  # type: ignore[attr-defined]
    if on_host:
        step_parameter_by_parameter(optimizer)
    else:
        optimizer.step()
