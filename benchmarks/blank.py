"""Pictures and faces without content: neither time nor memory of a step depends on it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from frugan.phase import FaceNeeds
from frugan.recipe import Recipe


@dataclass(frozen=True)
class Blank:
    """Gives a recipe's sources grey pictures of class 0, or grey faces.

    Attributes:
        recipe: as it is at present.
    """

    recipe: Recipe

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        """As the engine asks for them."""
        need = self.recipe.kind.sources(self.recipe.networks, self.recipe.objective)[source]
        side = need.resolution
        if isinstance(need, FaceNeeds):
            channels = {"warped": 3, "target": 3, "mask": 1} | ({"eyes_mouth": 1} if need.eyes_mouth else {})
            return {name: torch.full((count, c, side, side), 0.5) for name, c in channels.items()}
        pictures = torch.full((count, 3, side, side), 128, dtype=torch.uint8)
        return {"pictures": pictures, "labels": torch.zeros(count, dtype=torch.int64)}
