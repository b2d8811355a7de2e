"""Layers that use sums of squares of their working weight beside it: these too are made once for a whole phase.

What flows to the weight through them is added to its gradient once, after the last backward.
"""

from typing import cast

import torch
from torch import Tensor, nn

from frugan.contract import cpu_ways

SQUARES = "squares"
"""Name under which they stand among a layer's parameters while a phase runs."""


class SumsSquares(nn.Module):
    """A layer with sums of the squares of its `weight` [O, I, k, k].

    Attributes:
        squares_factor: multiplies them.
    """

    weight: Tensor
    squares_factor: float = 1.0

    def summed_squares(self) -> Tensor:
        """factor·Σw² [O, I], fp32 or more: those of the phase, or else found here."""
        found = self._parameters.get(SQUARES)
        if found is None:
            return sums_of_squares(self.weight) * self.squares_factor
        return cast(Tensor, found)

    def gradient_factor(self) -> float:
        """What multiplies the weight, and the gradient of the sums, in the weight's gradient."""
        return 2 * self.squares_factor


def sums_of_squares(weight: Tensor) -> Tensor:
    """[O, I, k, k] -> [O, I], in fp32 or more; differentiable."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32)).square().sum((2, 3))


@torch.no_grad()
def squares_of(layers: list[SumsSquares]) -> list[Tensor]:
    """The same of many layers, with their factors and without a gradient, in a kernel for each and one for all."""
    # Torch's norm takes up to 80 times as long there, channels last.
    if all(cpu_ways.taken_for(layer.weight) for layer in layers):
        sums = [sums_of_squares(layer.weight) for layer in layers]
        torch._foreach_mul_(sums, [layer.squares_factor for layer in layers])
        return sums
    return squares_by_norms(layers)


@torch.no_grad()
def squares_by_norms(layers: list[SumsSquares]) -> list[Tensor]:
    """The same as a card finds them: in one kernel for each layer, without squares of the whole weight in between."""
    norms = [
        torch.linalg.vector_norm(layer.weight, dim=(2, 3), dtype=torch.promote_types(layer.weight.dtype, torch.float32))
        for layer in layers
    ]
    torch._foreach_mul_(norms, [layer.squares_factor**0.5 for layer in layers])
    torch._foreach_mul_(norms, norms)
    return norms
