"""What the host gives a step, made out of sight of what watches the card."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from frugan.contract.phase import Phase
from frugan.engine.update import DrawFeed, PictureFeed

OutOfSight = Callable[[], AbstractContextManager[object]]
"""While it is open, nothing that is made counts as on the card."""


@dataclass(frozen=True)
class UnwatchedPictures:
    """Pictures in host memory."""

    feed: PictureFeed
    out_of_sight: OutOfSight

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        with self.out_of_sight():
            return self.feed.take(source, stream, position, count)


@dataclass(frozen=True)
class UnwatchedDraws:
    """Small random inputs in host memory, and large ones on the card."""

    feed: DrawFeed
    out_of_sight: OutOfSight

    def batch(self, phase: Phase, step: int, repeat: int, count: int) -> Mapping[str, Tensor]:
        with self.out_of_sight():
            return self.feed.batch(phase, step, repeat, count)

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        return self.feed.micro_batch(phase, step, repeat, first, count, device)

    def update_seed(self, phase: Phase, step: int, repeat: int) -> int:
        return self.feed.update_seed(phase, step, repeat)
