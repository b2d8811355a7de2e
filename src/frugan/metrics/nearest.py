"""The training pictures nearest to generated ones: does a generator repeat what it has seen?"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 32
"""Pictures are compared at this size: what an eye takes in at a glance, whatever their own."""
CHUNK_BYTES = 32 * 2**20
"""Pictures compared at once, as bytes: four times as much as fp32, twice over when mirrored."""
COMPARED_REAL = 256
"""Real pictures whose own nearest ones say what distance is usual."""


class Pictures(Protocol):
    """Pictures to look through: an array uint8 [M, C, R, R], or what reads like one."""

    def __len__(self) -> int:
        """M."""

    def __getitem__(self, indices: Any, /) -> Any:
        """Those at a place, between two, or at several: uint8."""


@dataclass(frozen=True)
class Nearest:
    """What lies nearest to each of some pictures."""

    indices: Tensor  # of the nearest pictures of the set, nearest first [N, K]
    distances: Tensor  # root mean square difference to them, 0 to 255 [N, K]
    usual: float  # median distance of a picture of the set to its nearest other one

    @property
    def ratios(self) -> Tensor:
        """Distance of each to its nearest, as a share of what is usual between real ones [N]; near 0: a copy."""
        return self.distances[:, 0] / max(self.usual, 1e-9)


def nearest_pictures(
    pictures: Tensor,
    real: Pictures,
    count: int,
    progress: Callable[[int, int], None] | None = None,
) -> Nearest:
    """Find the pictures of a set that are nearest to given ones, and mirrored ones of it.

    Args:
        pictures: uint8 [N, C, R, R].
        real: the set, [M, C, R, R]; may be mapped from disk: it is read once.
        count: K, at most M.
    """
    spaced = np.unique(np.linspace(0, len(real) - 1, min(COMPARED_REAL, len(real))).astype(np.int64))
    asked = torch.cat([_small(pictures), _small(torch.from_numpy(np.array(real[spaced])))])  # [N + compared, D]
    distances = torch.empty(len(asked), 0)
    indices = torch.empty(len(asked), 0, dtype=torch.int64)
    chunk = max(1, CHUNK_BYTES // real[0].nbytes)
    for first in range(0, len(real), chunk):
        rows = torch.from_numpy(np.array(real[first : first + chunk]))  # a copy out of the map
        squared = torch.minimum(torch.cdist(asked, _small(rows)), torch.cdist(asked, _small(rows.flip(-1))))
        places = torch.arange(first, first + len(rows))
        squared[len(pictures) :][torch.from_numpy(spaced)[:, None] == places] = torch.inf  # itself
        every = torch.cat([distances, squared], 1)
        which = torch.cat([indices, places.expand(len(asked), -1)], 1)
        distances, order = every.topk(min(count, every.shape[1]), largest=False)
        indices = which.gather(1, order)
        if progress is not None:
            progress(min(first + chunk, len(real)), len(real))
    scale = asked.shape[1] ** 0.5
    usual = distances[len(pictures) :, 0]
    finite = usual[torch.isfinite(usual)]
    return Nearest(
        indices[: len(pictures)],
        distances[: len(pictures)] / scale,
        float(finite.median() / scale) if len(finite) else 0.0,
    )


def _small(pictures: Tensor) -> Tensor:
    """[N, C, R, R] -> [N, C * SIDE * SIDE]."""
    values = pictures.float()
    if values.shape[-1] > SIDE:
        values = F.adaptive_avg_pool2d(values, SIDE)
    return values.flatten(1)
