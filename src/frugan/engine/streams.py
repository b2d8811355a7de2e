"""Named random streams: every consumer's numbers are a function of the recipe's seed and of where training stands.

Nothing here has state, so resuming needs a counter only, a repeated phase sees the same inputs, and one more consumer
shifts no other.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from frugan.contract.phase import Draw, Phase


def derive_seed(seed: int, *name: str | int) -> int:
    """Seed of a named stream: 63 bits of a hash of the recipe's seed and the name."""
    text = "/".join(map(str, (seed, *name)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def _draw(draw: Draw, count: int, generator: torch.Generator) -> Tensor:
    shape = (count, *draw.shape)
    if draw.distribution == "classes":
        return torch.randint(draw.classes, shape, generator=generator, device=generator.device)
    if draw.distribution == "uniform":
        return torch.rand(shape, generator=generator, device=generator.device)
    return torch.randn(shape, generator=generator, device=generator.device)


@dataclass(frozen=True)
class Streams:
    """Random inputs of phases."""

    seed: int  # the recipe's

    def batch(self, phase: Phase, step: int, repeat: int, count: int) -> Mapping[str, Tensor]:
        """The small inputs of one update: name -> [count, ...] on the host, to be split into micro-batches."""
        return {
            name: _draw(draw, count, torch.Generator().manual_seed(self._seed(phase, step, repeat, name)))
            for name, draw in phase.draws.items()
            if not draw.per_image
        }

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        """The large inputs of images first, first+1, ... of one update: name -> [count, ...] on the device."""
        return {
            name: torch.cat(
                [
                    _draw(draw, 1, generator_on(device, self._seed(phase, step, repeat, name, image)))
                    for image in range(first, first + count)
                ]
            )
            for name, draw in phase.draws.items()
            if draw.per_image
        }

    def update_seed(self, phase: Phase, step: int, repeat: int) -> int:
        """Seed of what one update of a phase's optimizer draws by itself."""
        return derive_seed(self.seed, "update", phase.name, step, repeat)

    def _seed(self, phase: Phase, step: int, repeat: int, *name: str | int) -> int:
        return derive_seed(self.seed, "draws", phase.name, step, repeat, *name)


def generator_on(device: torch.device, seed: int) -> torch.Generator:
    """Random numbers for a device; without data ("meta") there are none, and the host's do."""
    return torch.Generator("cpu" if device.type == "meta" else device).manual_seed(seed)
