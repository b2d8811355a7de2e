"""Control of a score: how small a damage of real pictures it sees, at the number of pictures that it is taken with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

SEED = 2026


def blurred(pictures: Tensor, pixels: float) -> Tensor:
    """Pictures, uint8 [N, C, R, R], under a Gaussian of so many pixels."""
    reach = 4
    bell = torch.exp(-torch.arange(-reach, reach + 1).float().square() / (2 * pixels**2))
    weight = (bell / bell.sum()).expand(pictures.shape[1], 1, -1)  # [C, 1, 9]
    padded = F.pad(pictures.float(), [reach] * 4, mode="replicate")
    across = F.conv2d(padded, weight[:, :, None, :], groups=len(weight))
    return F.conv2d(across, weight[:, :, :, None], groups=len(weight)).round().clamp(0, 255).byte()


def blended(pictures: Tensor, share: float) -> Tensor:
    """Pictures, uint8 [N, C, R, R], with so much of the one before laid over each."""
    return ((1 - share) * pictures.float() + share * pictures.roll(1, 0).float()).round().byte()


def tinted(pictures: Tensor, levels: float) -> Tensor:
    """Pictures, uint8 [N, C, R, R], each moved by so many levels towards a colour of its own, or a grey."""
    random = torch.Generator().manual_seed(SEED)
    way = torch.randn(len(pictures), pictures.shape[1], 1, 1, generator=random)
    way = way / way.square().mean(1, keepdim=True).sqrt()
    return (pictures.float() + levels * way).round().clamp(0, 255).byte()


@dataclass(frozen=True)
class Damage:
    """One way to damage pictures."""

    apply: Callable[[Tensor, float], Tensor]
    strengths: tuple[float, ...]  # smallest first
    words: str  # with a place for the strength

    def told(self, strength: float) -> str:
        """Say how much."""
        return self.words.format(strength)


DAMAGES: Mapping[str, Damage] = MappingProxyType(
    {
        "blur": Damage(blurred, (0.5, 0.7, 1.0), "a blur of {:g} pixels"),
        "blend": Damage(blended, (0.1, 0.2, 0.4), "{:.0%} of another picture laid over"),
        "colour": Damage(tinted, (4, 8, 16, 32), "colours off by {:g} of 255 levels"),
    }
)


@dataclass(frozen=True)
class Control:
    """Smallest strength of each damage that a score has seen; None: it has not even seen the largest."""

    seen: Mapping[str, float | None]

    @property
    def blind(self) -> bool:
        """Whether pictures may be blurred or mixed as much as is tried, and the score does not notice.

        Colours alone do not count: a tint of white paper is seen by whoever sees nothing else.
        """
        return self.seen["blur"] is None and self.seen["blend"] is None

    def __str__(self) -> str:
        seen = [DAMAGES[name].told(strength) for name, strength in self.seen.items() if strength is not None]
        unseen = [DAMAGES[name].told(DAMAGES[name].strengths[-1]) for name, found in self.seen.items() if found is None]
        parts = (f"sees {', '.join(seen)}" if seen else "", f"does not see {', '.join(unseen)}" if unseen else "")
        return "; ".join(filter(None, parts))

    @classmethod
    def read(cls, values: Any) -> Self | None:
        """Read what was kept as JSON; None: it is of another version, or damaged."""
        if not isinstance(values, dict) or values.keys() != DAMAGES.keys():
            return None
        for name, strength in values.items():
            if strength is not None and strength not in DAMAGES[name].strengths:
                return None
        return cls(values)


MOST_LOOKS = sum(len(damage.strengths) for damage in DAMAGES.values())
"""Largest number of times that a score looks at damaged pictures."""


def control_of(sees: Callable[[Tensor], bool], real: Tensor) -> Control:
    """Damage real pictures more and more, each way, until the score sees it.

    Args:
        sees: whether the score tells these pictures from other real ones, surely.
        real: uint8 [N, C, R, R].
    """
    return Control(
        {
            name: next((strength for strength in damage.strengths if sees(damage.apply(real, strength))), None)
            for name, damage in DAMAGES.items()
        }
    )
