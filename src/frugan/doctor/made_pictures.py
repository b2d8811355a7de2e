"""Inputs that are the same on every device and in every process: a function of position, and made on the host."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from frugan.contract.data import SourceSpec
from frugan.contract.phase import Phase
from frugan.engine.streams import Streams, derive_seed

SEED = 5
HOST = torch.device("cpu")


@dataclass(frozen=True)
class MadePictures:
    """Samples without meaning of the kind that each source gives.

    Attributes:
        needs: what each source has to give.
    """

    needs: Mapping[str, SourceSpec]

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        """As the engine asks for them."""
        made = [self._one(source, stream, at) for at in range(position, position + count)]
        return {name: torch.stack([one[name] for one in made]) for name in made[0]}

    def _one(self, source: str, stream: str, at: int) -> dict[str, Tensor]:
        need, random = self.needs[source], torch.Generator().manual_seed(derive_seed(SEED, stream, at))
        return {name: _filled(blank[0], need, random) for name, blank in need.blank(1).items()}


def _filled(blank: Tensor, need: SourceSpec, random: torch.Generator) -> Tensor:
    if blank.dtype == torch.uint8:
        return torch.randint(256, blank.shape, generator=random, dtype=torch.uint8)
    if blank.dtype == torch.int64:
        return torch.randint(need.classes or 1, blank.shape, generator=random)
    made = torch.rand(blank.shape, generator=random)
    return made.round() if blank.ndim and blank.shape[0] == 1 else made  # one channel is a mask


class HostDraws(Streams):
    """Random inputs that are all made on the host: a card's own generator gives other numbers from one seed."""

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        """The large inputs of some images of one update, on the device."""
        made = super().micro_batch(phase, step, repeat, first, count, HOST)
        return {name: draw.to(device, non_blocking=True) for name, draw in made.items()}
