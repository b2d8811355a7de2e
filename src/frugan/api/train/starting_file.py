"""A file that a training may start from, of this program or of another."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from frugan.api.weights import Weights
from frugan.recipe.recipe import Recipe

AVERAGED = "_ema"
"""Ends a network's name in files of other programs that hold its average beside it."""


@dataclass(frozen=True)
class StartingWeights:
    """What a file holds that a training may start from.

    Attributes:
        path: the file.
        tensors: "network.parameter" -> tensor.
        recipe: that they were trained by; None: another program's.
        class_names: what labels mean; empty: nobody knows.
    """

    path: Path
    tensors: dict[str, Tensor]
    recipe: Recipe | None
    class_names: tuple[str, ...] = ()

    @property
    def networks(self) -> set[str]:
        """Networks that it holds."""
        return {key.partition(".")[0] for key in self.tensors}


def read_starting_weights(weights: Weights, *, averages: bool) -> StartingWeights:
    """Read a file; averages of another program's file are those that it names so.

    Raises:
        BadInput: a damaged file.
    """
    if weights.ours:
        return StartingWeights(weights.path, weights.read(), weights.recipe, weights.class_names)
    tensors = weights.read()
    averaged = {
        f"{name.removesuffix(AVERAGED)}.{rest}": value
        for (name, _, rest), value in ((key.partition("."), value) for key, value in tensors.items())
        if name.endswith(AVERAGED)
    }
    kept = {key: value for key, value in tensors.items() if not key.partition(".")[0].endswith(AVERAGED)}
    return StartingWeights(weights.path, kept | averaged if averages else averaged | kept, None)
