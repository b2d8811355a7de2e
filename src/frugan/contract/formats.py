"""Files of other programs, as `frugan convert` reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from frugan.contract.data import RunData

WEIGHTS_SUFFIX = ".safetensors"
RECIPE_FILE = "recipe.toml"
"""Name of the recipe in a run or a folder of weights."""

Target = Literal["run", "file", "folder"]
"""A run that training goes on with; a weights file; a folder with weights, their averages and a recipe."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Conversion:
    """A conversion and its options; a format takes those that its `reads` or `writes` name."""

    source: Path  # file or folder to read
    out: Path  # file or folder to write
    say: Say  # is given a line for everything that does not simply go over
    overrides: Sequence[str] = ()  # `key.sub=value` words for the recipe
    name: str | None = None  # name of the model, where a folder holds several
    data: str | Path | Mapping[str, Any] | None = None  # paths by source name, or one, to compare with the model
    replace: bool = False  # existing files may be replaced
    half: bool = False  # write half precision
    raw: bool = False  # write networks as they were trained, where there are averages of them too
    # the converted networks are run before anything is written, and compared where there are outputs to compare with
    verify: bool = False


@dataclass(frozen=True)
class RecipeValues:
    """A checked recipe as a format sees it."""

    values: dict[str, Any]  # all fields by section, as JSON has them
    networks: Any  # section `networks`, of the family's type
    objective: Any  # section `objective`, of the family's type
    optimizers: Mapping[str, Mapping[str, Any]]  # optimizer -> its settings, as training runs it
    sources: Mapping[str, Any]  # requirements on each data source, by its name; see `SourceSpec`
    used: frozenset[str]  # networks that some phase of the training runs
    optimizers_used: frozenset[str]  # optimizers that some phase of the training uses
    steps: int | None  # duration in steps; None: it trains without an end, or for a time
    averages_from: int  # steps after which averaging begins
    backup_seconds: float | None  # time between backups; None: they do not go by the clock

    @property
    def summary(self) -> str:
        """Purpose of the recipe, in one line."""
        return str(self.values["about"]["summary"])


@dataclass(frozen=True)
class Imported:
    """A model of another program in the terms of a checkpoint, to make a run or weights of."""

    recipe: RecipeValues  # as `OurSide.recipe` gave it
    networks: dict[str, Tensor]  # "network.parameter" -> tensor, as trained, or as a file shall hold it
    facts: Mapping[str, Any]  # the result for programs, as JSON
    lines: Sequence[str]  # the result for people; the first line says what was made
    # likewise of the averages; empty: they are copies, or the file has only one of both
    averages: dict[str, Tensor] = field(default_factory=dict)
    # "optimizer/network.parameter/slot" -> tensor, and "optimizer/updates" -> a count
    optimizers: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0  # updates done
    event: Mapping[str, Any] = field(default_factory=dict)  # contents of a run's event `imported`
    name: str = ""  # name of the model, if it has one
    parts: tuple[str, ...] = ()  # parts of the source that were taken


@dataclass(frozen=True)
class Trained:
    """A run, checkpoint or weights file that another program is to get."""

    path: Path  # file of the networks as trained
    averaged: Path  # file of their averages; equal to `path` where there are none
    run: Path  # folder of the run that it belongs to; it need not exist any more
    recipe: RecipeValues  # as it is after these steps
    networks: dict[str, Tensor]  # "network.parameter" -> tensor of `path`
    averages: dict[str, Tensor]  # "network.parameter" -> tensor of `averaged`
    step: int  # updates done
    later_stages: Sequence[int]  # steps after this one at which a stage of the recipe begins
    trained_on: Mapping[str, RunData]  # source -> the data that it was last trained on
    # reads the run's event `imported`; None: the run was not made of another program's model
    imported: Callable[[], Mapping[str, Any] | None]
    # reads "optimizer/network.parameter/slot" -> tensor; None: only the networks are here
    optimizers: Callable[[], dict[str, Tensor]] | None
    # reads side -> (step of each entry, loss); imported entries have step 0
    losses: Callable[[], Mapping[str, tuple[Sequence[int], Sequence[float]]]]
    note: Mapping[str, str]  # provenance to write into pictures that are made with it


@dataclass(frozen=True)
class Converted:
    """Result of a conversion."""

    path: Path  # run, folder or file that was written
    facts: Mapping[str, Any]  # the result for programs, as JSON
    lines: Sequence[str]  # the result for people
    recipe: Any = None  # the networks' `Recipe`, where a run or weights were made; its file, of `from_leras`
    name: str = ""  # name of the model, if it has one
    step: int = 0  # updates done
    networks: tuple[str, ...] = ()  # networks that were read or written, by their names in the other program
    backup: Path | None = None  # where the replaced files are now; None: there were none, or they are gone
    difference: float | None = None  # largest difference from what the original draws; None: it was not compared

    @property
    def run(self) -> Path:
        """Run that was written, where the result is one."""
        return self.path

    @property
    def folder(self) -> Path:
        """Folder of another program's files that was written, where the result is one."""
        return self.path

    @property
    def iteration(self) -> int:
        """Updates done, as DeepFaceLab calls them."""
        return self.step


@dataclass(frozen=True)
class MaskNetwork:
    """Trained networks that find masks, ready to call."""

    family: str
    networks: Any  # section `networks` of the family's recipes
    built: Mapping[str, nn.Module]
    file: Path  # of the weights
    label: str  # the weights in a few words for people
    pretrains: bool  # they are still in their preliminary training


class OurSide(Protocol):
    """Recipes, runs and data of frugan, which a format may ask for."""

    def recipe(self, values: Mapping[str, Any], where: str) -> RecipeValues:
        """Check a recipe's values, with the conversion's `key.sub=value` words in force.

        Args:
            where: source of the values, for messages.

        Raises:
            BadInput: it names `where`, and for each fault the key and what is wrong.
        """

    def shipped(self, name: str) -> RecipeValues | None:
        """Load a recipe that ships with frugan; None: there is none of that name."""

    def load(self, networks: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], where: str) -> None:
        """Load "network.parameter" tensors into all of some networks; on "meta" they are only checked.

        Raises:
            BadInput: a tensor is missing, unknown or of another shape.
        """

    def weights(self, *families: str) -> Trained:
        """Open a run, a checkpoint or a weights file, of one of some families.

        Raises:
            BadInput: it is none of these, damaged, or of another family.
        """

    def checkpoint(self) -> Trained:
        """Open a run or one of its checkpoints, of any family; the files are checked against their digests.

        Raises:
            BadInput: it is neither, or damaged.
        """

    def write_tensors(self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write a safetensors file atomically; its folder is created if it is missing."""

    def is_run(self, folder: Path) -> bool:
        """Whether a folder is a run of frugan's."""

    def data(self, trained: Trained) -> Mapping[str, Any]:
        """Open the data of the conversion as for training: source -> pictures.

        Raises:
            BadInput: they cannot be read, or this recipe cannot be trained on them.
        """


class FileFormat:
    """A file format that models are read from, or written to, or both; a subclass defines what it can do."""

    program: str  # the other program and its files, in a few words for people
    # fields of `Conversion` that `read` takes besides `source`, `out` and `say`; None: the format cannot be read
    reads: frozenset[str] | None = None
    # fields of `Conversion` that `write` takes besides `source`, `out` and `say`; None: it cannot be written
    writes: frozenset[str] | None = None
    # what can be made of a model that is read: an output name that ends in .safetensors asks for a file, any other
    # name for the other target
    makes: frozenset[Target] = frozenset()

    def read(self, conversion: Conversion, ours: OurSide) -> Imported:
        """Read a model in this format; a run or weights are written once all of it was read.

        Raises:
            BadInput: files are missing, damaged or do not fit each other.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be read")

    def write(self, conversion: Conversion, ours: OurSide) -> Converted:
        """Write a run, or weights, in this format.

        Raises:
            BadInput: there is nothing to write, or the output exists already.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be written")

    def mask_network(self, source: Path, say: Say) -> MaskNetwork | None:
        """Open a network that finds masks, for `data.masks`; None: none in this format is there.

        Args:
            source: folder or file.
            say: is told of what is not as usual.

        Raises:
            BadInput: there is one, and it is damaged or incomplete.
        """
        return None
