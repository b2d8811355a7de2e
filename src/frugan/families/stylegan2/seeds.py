"""Latents by number, as NVlabs' programs count them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def seeded_latents(seeds: Sequence[int], size: int) -> Tensor:
    """The latent of each seed, from 0 to 2^32 - 1: a stream of its own, drawn in float64. [N, size], fp32."""
    drawn = [np.random.RandomState(seed).randn(1, size) for seed in seeds]
    return torch.from_numpy(np.concatenate(drawn)).float()
