"""How a family says what of other networks its own may start from."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


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


@runtime_checkable
class StartsElsewhere(Protocol):
    """A family whose tensors have other names in networks of another resolution: blocks are numbered anew there."""

    def counterpart(self, key: str, theirs: Any, ours: Any) -> str | None:
        """Name here of the tensor "network.parameter" of other networks; None: there is none.

        Args:
            theirs, ours: `networks` sections of the two recipes.
        """


@runtime_checkable
class HasClassTables(Protocol):
    """A family whose networks may start from weights that know other classes."""

    def class_dimension(self, key: str, networks: Any) -> int | None:
        """Dimension of the tensor "network.parameter" that runs over the classes; None: none does.

        Args:
            networks: `networks` section of the recipe.
        """
