"""Optimizers by recipe, over named parameters of several networks."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, model_validator
from torch import nn

from frugan.contract.phase import Phase
from frugan.contract.settings import ADDED, CHANGEABLE, Settings, setting
from frugan.engine.state.optimizer import SGD, Adam, Optimizer, make_state
from frugan.engine.state.optimizer_shards import OptimizerShards, Shard
from frugan.engine.state.piecewise_optimizer import AdaBelief, RMSprop


class OptimizerSettings(Settings):
    """Base of all optimizers' settings; custom ones derive from it."""

    kind: str  # its name in recipes
    learning_rate: float = Field(gt=0, json_schema_extra=CHANGEABLE, description="learning rate at the start")
    final_learning_rate: float | None = setting(
        None,
        "learning rate at the end: of training.burn_in, or else reached linearly over the duration; none: it stays",
        CHANGEABLE,
        ge=0,
    )
    clip_norm: float | None = setting(
        None, "largest gradient norm: larger ones are scaled down to it; none: no clipping", CHANGEABLE, gt=0
    )

    def rate_at(self, course: float) -> float:
        """Learning rate at a share of its way to the final one, from 0 to 1."""
        if self.final_learning_rate is None:
            return self.learning_rate
        return self.learning_rate + (self.final_learning_rate - self.learning_rate) * min(1.0, course)

    def steer(self, optimizer: Optimizer, course: float) -> None:
        """Set what else changes during training, before each update. Default: nothing does.

        Args:
            course: share of its way, from 0 to 1.
        """

    @property
    def cosine_updates(self) -> int | None:
        """Updates of one cosine of the rate; None: it has none."""
        return None

    @property
    def moving_share(self) -> float | None:
        """Share of the weights that each update moves; None: all."""
        return None

    def create(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        """Make the optimizer, without state."""
        raise NotImplementedError(f"{type(self).__name__} must define create")


LARGEST_BETA = 0.999999
"""Adam divides by 1 - beta^steps. A card has the beta in fp32, in which numbers nearer to 1 become 1."""


class AdamSettings(OptimizerSettings):
    """Adam (Kingma and Ba 2014); learning rate, betas and eps as torch defines them."""

    kind: Literal["adam"] = setting("adam", "which optimizer")
    beta1: float = setting(0.0, "decay of the running mean of gradients", ge=0, le=LARGEST_BETA)
    beta2: float = setting(0.999, "decay of the running mean of squared gradients", ge=0, le=LARGEST_BETA)
    final_beta2: float | None = setting(
        None,
        "beta2 at the end of training.burn_in, or of the duration; none: it stays the same",
        ADDED,
        ge=0,
        le=LARGEST_BETA,
    )
    eps: float = setting(1e-8, "added to the denominator", gt=0)
    lazy_regularisation: bool = setting(
        False,
        "adjust the learning rate and betas by k/(k + 1) when a regulariser shares this optimizer every k "
        "steps (StyleGAN2)",
        ADDED,
    )

    def create(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        """Make the optimizer, without state."""
        return Adam(parameters, lr=self.learning_rate, betas=(float(self.beta1), float(self.beta2)), eps=self.eps)

    def steer(self, optimizer: Optimizer, course: float) -> None:
        """Set beta2, by which the next update also corrects for the first ones, as torch does it."""
        if self.final_beta2 is not None:
            beta2 = self.beta2 + (self.final_beta2 - self.beta2) * min(1.0, course)
            for group in optimizer.param_groups:
                group["betas"] = (float(self.beta1), beta2)


class SGDSettings(OptimizerSettings):
    """Gradient descent with momentum (Sutskever et al. 2013), all as torch defines it."""

    kind: Literal["sgd"] = setting("sgd", "which optimizer")
    momentum: float = setting(0.9, "share of the last step's direction that is kept; 0: none, and no state", ge=0, lt=1)
    weight_decay: float = setting(0.0, "share of each weight that is added to its gradient", ge=0)
    nesterov: bool = setting(False, "look one step ahead along the momentum")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov looks ahead along the momentum, and momentum = 0: set it, such as 0.9")
        return self

    def create(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        """Make the optimizer, without state."""
        return SGD(
            parameters,
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


class _PiecewiseSettings(OptimizerSettings):
    """Settings that DeepFaceLab's optimizers share."""

    learning_rate: float = setting(5e-5, "learning rate at the start", CHANGEABLE, gt=0)
    eps: float = setting(1e-6, "added to the denominator", gt=0)
    dropout: float | None = setting(
        None,
        "learning-rate dropout: share of the weights that each update moves, at random; the original's: 0.3",
        CHANGEABLE,
        gt=0,
        le=1,
    )
    period: int | None = setting(
        None,
        "updates in which the rate goes from full to zero and back (cosine); the original's, with dropout: 500",
        CHANGEABLE,
        ge=2,
    )

    @property
    def cosine_updates(self) -> int | None:
        """Updates of one cosine of the rate; None: it has none."""
        return self.period

    @property
    def moving_share(self) -> float | None:
        """Share of the weights that each update moves; None: all."""
        return None if self.dropout == 1 else self.dropout


class RMSpropSettings(_PiecewiseSettings):
    """RMSprop as DeepFaceLab defines it."""

    kind: Literal["rmsprop"] = setting("rmsprop", "which optimizer")
    decay: float = setting(0.9, "decay of the running mean of squared gradients", ge=0, lt=1)

    def create(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        """Make the optimizer, without state."""
        return RMSprop(parameters, lr=self.learning_rate, decay=self.decay, eps=self.eps)


class AdaBeliefSettings(_PiecewiseSettings):
    """AdaBelief as DeepFaceLab defines it: no bias correction, eps outside the root only."""

    kind: Literal["adabelief"] = setting("adabelief", "which optimizer")
    beta1: float = setting(0.9, "decay of the running mean of gradients", ge=0, lt=1)
    beta2: float = setting(
        0.999, "decay of the running mean of the gradients' squared deviations from their mean", ge=0, lt=1
    )

    def create(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        """Make the optimizer, without state."""
        return AdaBelief(parameters, lr=self.learning_rate, betas=(self.beta1, self.beta2), eps=self.eps)


KINDS: Mapping[str, type[OptimizerSettings]] = MappingProxyType(
    {"adam": AdamSettings, "sgd": SGDSettings, "rmsprop": RMSpropSettings, "adabelief": AdaBeliefSettings}
)
"""Settings types by the word that `kind` has for them; families may bring others."""

DEFAULT_KIND = "adam"
"""Kind of an optimizer whose `kind` is not given."""


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
    final, final_beta2 = settings.final_learning_rate, settings.final_beta2
    return settings.model_copy(
        update={
            "learning_rate": settings.learning_rate * share,
            "final_learning_rate": None if final is None else final * share,
            "beta1": settings.beta1**share,
            "beta2": settings.beta2**share,
            "final_beta2": None if final_beta2 is None else final_beta2**share,
            "lazy_regularisation": False,
        }
    )


def named_parameters(networks: Mapping[str, nn.Module], names: Sequence[str]) -> dict[str, nn.Parameter]:
    """Parameters of some networks as "network.parameter", but for frozen ones (that want no gradient)."""
    return {
        f"{name}.{key}": value
        for name in names
        for key, value in networks[name].named_parameters()
        if value.requires_grad
    }


def create_optimizer(
    settings: OptimizerSettings,
    parameters: Mapping[str, nn.Parameter],
    *,
    on_host: bool = False,
    shard: Shard | None = None,
) -> Optimizer:
    """Make an optimizer over named parameters, and its state.

    Args:
        on_host: the state lives in host memory.
        shard: keeps the state of its slices alone; None: of all. An optimizer that is not elementwise keeps all.
    """
    optimizer = settings.create(list(parameters.values()))
    if shard is not None and optimizer.elementwise:
        shards = OptimizerShards.of(list(parameters.values()), shard)
        optimizer = settings.create([piece.own for piece in shards.slices])
        optimizer.shards = shards
    make_state(optimizer, on_host=on_host)
    return optimizer
