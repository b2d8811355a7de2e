"""Samples without content: neither memory nor time of a step depends on it."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from frugan.contract.data import SourceSpec


@dataclass(frozen=True)
class BlankPictures:
    """Gives sources blank samples of their kind; tensors without data under a fake mode.

    Attributes:
        needs: what each source has to give.
    """

    needs: Mapping[str, SourceSpec]

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        """As the engine asks for them."""
        return self.needs[source].blank(count)

    def preview(self, source: str, count: int) -> dict[str, Tensor]:
        """As sheets ask for them."""
        return self.needs[source].blank(count)
