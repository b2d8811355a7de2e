"""Normalisation of a vector by its second moment.

Source: Karras et al. 2017 (arXiv 1710.10196), section 4.2, as the pixelwise feature vector normalisation.
"""

from torch import Tensor


def second_moment_norm(x: Tensor) -> Tensor:
    """[N, C] -> [N, C] with a mean square of 1."""
    return x * (x.square().mean(1, keepdim=True) + 1e-8).rsqrt()
