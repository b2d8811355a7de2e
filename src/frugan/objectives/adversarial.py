"""Losses of a discriminator and a generator, as functions of the discriminator's outputs.

Each returns an fp32 scalar, the mean over the samples. Hinge: Lim and Ye 2017, Tran et al. 2017; non-saturating:
Goodfellow et al. 2014, which the BigGAN release calls DCGAN's; relativistic: Jolicoeur-Martineau 2018 (arXiv
1807.00734), section 3, in the logistic form of Huang et al. 2024 (arXiv 2501.05441).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch.nn.functional as F
from torch import Tensor


def hinge_real(outputs: Tensor) -> Tensor:
    """mean(relu(1 - D(real)))."""
    return F.relu(1 - outputs.float()).mean()


def hinge_fake(outputs: Tensor) -> Tensor:
    """mean(relu(1 + D(fake)))."""
    return F.relu(1 + outputs.float()).mean()


def hinge_generator(outputs: Tensor) -> Tensor:
    """-mean(D(fake))."""
    return -outputs.float().mean()


def non_saturating_real(outputs: Tensor) -> Tensor:
    """mean(softplus(-D(real)))."""
    return F.softplus(-outputs.float()).mean()


def non_saturating_fake(outputs: Tensor) -> Tensor:
    """mean(softplus(D(fake)))."""
    return F.softplus(outputs.float()).mean()


def non_saturating_generator(outputs: Tensor) -> Tensor:
    """mean(softplus(-D(fake)))."""
    return F.softplus(-outputs.float()).mean()


def relativistic(outputs: Tensor, others: Tensor) -> Tensor:
    """mean(softplus(D(other) - D(one))), pair by pair: small where the first of each pair looks more real.

    Args:
        outputs, others: [B, 1] each.
    """
    return F.softplus(others.float() - outputs.float()).mean()


@dataclass(frozen=True)
class AdversarialLoss:
    """The three terms of an adversarial game, each a function of discriminator outputs [B, 1]."""

    real: Callable[[Tensor], Tensor]
    fake: Callable[[Tensor], Tensor]
    generator: Callable[[Tensor], Tensor]


ADVERSARIAL_LOSSES: Mapping[str, AdversarialLoss] = MappingProxyType(
    {
        "hinge": AdversarialLoss(hinge_real, hinge_fake, hinge_generator),
        "non-saturating": AdversarialLoss(non_saturating_real, non_saturating_fake, non_saturating_generator),
    }
)
