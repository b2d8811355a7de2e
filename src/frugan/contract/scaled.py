"""Layers whose working weights are their masters divided by something each: spectral norm, equalised learning rates.

The divisors of all such layers of a network are found together, in few operations, and each weight is then divided,
cast and laid out in one.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from frugan.contract.layers import Reparametrised

Divisor = float | Tensor
"""A number, or a tensor that can be broadcast to the weight, with at least one dimension."""


@dataclass(frozen=True)
class ScaledWeight:
    """A weight whose divisor is wanted.

    Attributes:
        layer, name: whose, and which.
        master: fp32 (or more).
    """

    layer: "Scaled"
    name: str
    master: Tensor


class Scaling:
    """Factors of several weights, found together.

    Args:
        divisors: of each weight, in order.
    """

    def __init__(self, divisors: Sequence[Divisor]) -> None:
        self.divisors = divisors

    @classmethod
    def find(cls, weights: Sequence[ScaledWeight]) -> Self:
        """Find the divisors; layers observe what shall move. Called without gradients."""
        raise NotImplementedError(f"{cls.__name__} must define find")

    def divided(self, dtypes: Sequence[torch.dtype]) -> dict[int, Tensor]:
        """Working weights that are found more cheaply here than one by one: place -> matrix [outputs, inputs].

        Called once, before weights move. Default: none are.

        Args:
            dtypes: of all working weights.
        """
        return {}

    def carry(self, masters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of masters, laid out like these, of those of working weights. Default: divisors are constants.

        Args:
            masters: as they were when the divisors were found, in order.
            gradients: of each working weight whose divisor is a tensor; None: none came.
        """
        return [
            None if gradient is None else torch.div(gradient, divisor, out=torch.empty_like(master))
            for master, gradient, divisor in zip(masters, gradients, self.divisors, strict=True)
        ]


class Scaled(Reparametrised):
    """A layer whose working weight is its master divided by something.

    Attributes:
        scaling: what finds the divisors.
    """

    scaling: ClassVar[type[Scaling]]

    def alike(self) -> Hashable:
        """Layers of which this is equal may find their divisors together."""
        return ()

    def working_weight(self, name: str, master: Tensor) -> Tensor:
        """Of this layer alone; divisors are held constant."""
        found = self.scaling.find([ScaledWeight(self, name, master.detach())])
        return master / found.divisors[0]
