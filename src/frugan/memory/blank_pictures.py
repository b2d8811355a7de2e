"""Pictures and faces without content: neither memory nor time of a step depends on it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from frugan.phase import FaceNeeds, Needs


@dataclass(frozen=True)
class BlankPictures:
    """Gives sources grey pictures of class 0, or grey faces; tensors without data under a fake mode.

    Attributes:
        needs: what each source has to give.
    """

    needs: Mapping[str, Needs]

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        """As the engine asks for them."""
        need = self.needs[source]
        side = need.resolution
        if isinstance(need, FaceNeeds):
            channels = {"warped": 3, "target": 3, "mask": 1} | ({"eyes_mouth": 1} if need.eyes_mouth else {})
            return {name: torch.full((count, c, side, side), 0.5) for name, c in channels.items()}
        pictures = torch.full((count, need.channels, side, side), 128, dtype=torch.uint8)
        return {"pictures": pictures, "labels": torch.zeros(count, dtype=torch.int64)}

    def preview(self, source: str, count: int) -> dict[str, Tensor]:
        """As sheets ask for them."""
        return self.take(source, "preview", 0, count)
