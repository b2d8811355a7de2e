"""A file that a training may start from, of this program or of another."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from frugan.api.progress import Say
from frugan.api.weights import read_weights as read_own
from frugan.api.weights import weights_file
from frugan.engine.checkpoint import EMA_FILE
from frugan.engine.tensor_files import read_metadata, read_tensors
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


def read_starting_weights(path: Path, content: str, say: Say) -> StartingWeights:
    """Read the file that `content` of a path is; averages of another program's file are those that it names so.

    Raises:
        BadInput: no such file, or a damaged one.
    """
    file = weights_file(path, content, say)
    if read_metadata(file).get("format") == "frugan":
        own = read_own(file)
        return StartingWeights(file, own.tensors, own.recipe, own.class_names)
    tensors, _ = read_tensors(file)
    averaged = {
        f"{name.removesuffix(AVERAGED)}.{rest}": value
        for (name, _, rest), value in ((key.partition("."), value) for key, value in tensors.items())
        if name.endswith(AVERAGED)
    }
    kept = {key: value for key, value in tensors.items() if not key.partition(".")[0].endswith(AVERAGED)}
    return StartingWeights(file, kept | averaged if content == EMA_FILE else averaged | kept, None)
