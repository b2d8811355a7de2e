"""Orthogonal regularisation of weights.

Source: Brock et al. 2018 (arXiv 1809.11096), equation 3, with the gradient as the BigGAN release adds it.
"""

from collections.abc import Iterable

import torch
from torch import nn


@torch.no_grad()
def add_orthogonal_gradient(parameters: Iterable[nn.Parameter], strength: float) -> None:
    """Add 2·strength·((W Wᵀ)⊙(1-I))·W to the gradient of every weight W = [out, rest] of two dimensions or more.

    That is half the gradient of ‖(W Wᵀ)⊙(1-I)‖²: the release's factor, kept so that its strengths mean the same.
    Acts on masters, not on spectrally normalised weights. Parameters without gradient are passed over.
    """
    for parameter in parameters:
        if parameter.ndim < 2 or parameter.grad is None:
            continue
        matrix = parameter.flatten(1)  # [out, rest]
        gram = matrix @ matrix.T  # [out, out]
        gram.fill_diagonal_(0.0)
        parameter.grad.add_((gram @ matrix).view_as(parameter), alpha=2 * strength)
