"""How a family says what of other networks its own may start from."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Piece:
    """Tensors that start together from other networks, or together anew.

    Attributes:
        network: "G".
        block: "b64": what messages name.
        layer: of the block; "": the block is one piece.
    """

    network: str
    block: str
    layer: str = ""


@runtime_checkable
class StartsInPart(Protocol):
    """A family whose networks may start from those of another resolution, where pieces agree.

    Networks of any other family start from the same networks only.
    """

    def piece_of(self, key: str) -> Piece | None:
        """Where the tensor "network.parameter" belongs; None: it is a constant that always stays as it is built."""
