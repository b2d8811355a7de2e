"""Two-sample test for few pictures: fixed features, and a linear judge that leaves out each picture that it judges.

Nothing is held back, as the judge's answers about left-out pictures are known in closed form, and shuffled labels say
what chance gives. Sources: Lopez-Paz and Oquab 2017 (arXiv 1610.06545) for the accuracy; Allen 1974 (PRESS) for ridge
regression that leaves out one row.
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.metrics.two_sample import TwoSample, two_alike

FEWEST = 30
"""Least pictures of each set: by fewer the features, of which there are hundreds, are learnt by heart."""
MOST = 1000
"""Most pictures of each set: rows of the matrix that is solved."""
CHANNELS = 16
RIDGE = 0.1
"""Share of the mean eigenvalue that is added to the kernel; by 0.01 two real sets of 30 were told apart."""
SHUFFLES = 200
"""Shufflings of the labels: the spread of what chance gives is known to a twentieth."""
LEAST_SIDE = 8
AT_ONCE = 100


def leave_one_out(first: Tensor, second: Tensor) -> TwoSample:
    """Say how often a linear judge of fixed features is right about each picture, having learnt from all others.

    Args:
        first, second: [N, C, R, R] and [M, C, R, R], uint8 or in [-1, 1]; of the larger set the first ones are taken.

    Raises:
        ValueError: as `two_sample`.
    """
    first, second = two_alike(first, second, FEWEST)
    count = min(len(first), len(second), MOST)
    rows = torch.cat([fixed_features(part[:count]) for part in (first, second)]).double()  # [2 N, D]
    rows = (rows - rows.mean(0)) / (rows.std(0) + 1e-6)
    kernel = rows @ rows.T / rows.shape[1]  # [2 N, 2 N], with a mean eigenvalue of 1
    label = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat_interleave(count)
    random = torch.Generator().manual_seed(0)
    shuffled = [label[torch.randperm(2 * count, generator=random)] for _ in range(SHUFFLES)]
    labels = torch.stack([label, *shuffled], 1)  # [2 N, 1 + SHUFFLES]
    ridge = RIDGE * 2 * count / rows.shape[1] * torch.eye(2 * count, dtype=torch.float64)
    hat = torch.linalg.solve(kernel + ridge, kernel)
    itself = hat.diagonal()[:, None]
    answers = (hat @ labels - itself * labels) / (1 - itself)
    right = ((answers * labels) > 0).double().mean(0)  # [1 + SHUFFLES]
    return TwoSample((float(right[0]),), count, float(right[1:].std()))


def fixed_features(pictures: Tensor) -> Tensor:
    """Moments of random convolutions and of steps between neighbours at several scales, and colours by place.

    Args:
        pictures: in [-1, 1], [N, C, R, R].

    Returns:
        [N, D].
    """
    random = torch.Generator().manual_seed(0)
    widths = (pictures.shape[1], CHANNELS, CHANNELS)
    weights = [
        torch.randn(after, before, 3, 3, generator=random) * math.sqrt(2 / (9 * before))
        for before, after in pairwise(widths)
    ]
    return torch.cat([_features(part, weights) for part in pictures.split(AT_ONCE)])


def _features(pictures: Tensor, weights: list[Tensor]) -> Tensor:
    found = [F.adaptive_avg_pool2d(pictures, LEAST_SIDE).flatten(1)]
    found += [pictures.mean((2, 3)), pictures.std((2, 3)), pictures.amax((2, 3)), pictures.amin((2, 3))]
    scale = pictures
    while True:
        maps = scale
        for weight in weights:
            maps = F.leaky_relu(F.conv2d(F.pad(maps, (1, 1, 1, 1), mode="replicate"), weight), 0.2)
            found += [maps.mean((2, 3)), (maps.var((2, 3)) + 1e-8).log()]
        for steps in (scale.diff(dim=3).abs(), scale.diff(dim=2).abs()):
            found += [(steps.mean((2, 3)) + 1e-4).log(), (steps.square().mean((2, 3)) + 1e-6).log()]
            found.append((steps.amax((2, 3)) + 1e-4).log())
        if scale.shape[-1] < 2 * LEAST_SIDE:
            return torch.cat(found, 1)
        scale = F.avg_pool2d(scale, 2)
