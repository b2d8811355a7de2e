"""Files of other programs, as `frugan convert` reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS_SUFFIX = ".safetensors"
RECIPE_FILE = "recipe.toml"
"""Name of the recipe in a run or a folder of weights."""

Target = Literal["run", "file", "folder"]
"""A run that training goes on with; a weights file; a folder with weights, their averages and a recipe."""


Say = Callable[[str], None]


@dataclass(frozen=True)
class Conversion:
    """What is to be converted, and how; a format reads those fields that it says it takes."""

    # source, out: what to read, and where to write
    source: Path
    out: Path
    say: Say  # is given a line for everything that does not simply go over
    overrides: Sequence[str] = ()  # `key.sub=value` words for the recipe
    name: str | None = None  # of the model, where a folder holds several
    data: str | Path | Mapping[str, Any] | None = None  # paths by source name, or one, to compare with the model
    replace: bool = False  # what is there may be replaced
    half: bool = False  # in half precision
    raw: bool = False  # networks as they were trained, where there are averages of them too
    # the converted networks are run before anything is written, and compared where there are outputs to compare with
    verify: bool = False


@dataclass(frozen=True)
class RecipeValues:
    """A checked recipe as a format sees it."""

    values: dict[str, Any]  # all fields by section, as JSON has them
    networks: Any  # the family's own type of that section
    objective: Any  # the same of that one
    optimizers: Mapping[str, Mapping[str, Any]]  # optimizer -> its settings, as training runs it
    used: frozenset[str]  # networks that some phase of the training runs
    optimizers_used: frozenset[str]  # optimizers that some phase of the training uses
    steps: int | None  # how long it trains; None: without an end, or for a time
    averages_from: int  # steps after which averaging begins
    backup_seconds: float | None  # between backups; None: they do not go by the clock

    @property
    def summary(self) -> str:
        """What the recipe is for, in one line."""
        return str(self.values["about"]["summary"])


@dataclass(frozen=True)
class Imported:
    """A model of another program in the terms of a checkpoint: what a run, or weights, are made of."""

    recipe: RecipeValues  # as `OurSide.recipe` gave it
    networks: dict[str, Tensor]  # "network.parameter" -> tensor; as trained, or what a file shall hold
    facts: Mapping[str, Any]  # for a program, as JSON
    lines: Sequence[str]  # for people; the first says what came of it
    # the same of their averages; empty: they are copies, or the file has but one of both
    averages: dict[str, Tensor] = field(default_factory=dict)
    # "optimizer/network.parameter/slot" -> tensor, and "optimizer/updates" -> a count
    optimizers: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0  # updates done
    event: Mapping[str, Any] = field(default_factory=dict)  # of a run: what its event `imported` says
    name: str = ""  # of the model, if it has one
    parts: tuple[str, ...] = ()  # of the source, that were taken


@dataclass(frozen=True)
class Trained:
    """A run, checkpoint or weights file that another program is to get."""

    path: Path  # file of the networks as trained
    averaged: Path  # file of their averages; the same one where there are none of their own
    run: Path  # folder of the run that it belongs to; it need not be there any more
    recipe: RecipeValues  # as it is after these steps
    # networks, averages: "network.parameter" -> tensor, out of these two files
    networks: dict[str, Tensor]
    averages: dict[str, Tensor]
    step: int  # updates done
    later_stages: Sequence[int]  # steps after this one at which a stage of the recipe begins
    trained_on: Mapping[str, str]  # source -> digest of what it was last trained on
    # reads the run's event `imported`; None: it was made of no model of another program
    imported: Callable[[], Mapping[str, Any] | None]
    # reads "optimizer/network.parameter/slot" -> tensor; None: there are none beside the networks
    optimizers: Callable[[], dict[str, Tensor]] | None
    # reads side -> (step of each entry, loss); 0 is the step of those that were imported
    losses: Callable[[], Mapping[str, tuple[Sequence[int], Sequence[float]]]]
    note: Mapping[str, str]  # what a picture made with it says about itself


@dataclass(frozen=True)
class Converted:
    """What came of it."""

    path: Path  # what was written: a run, a folder or a file
    facts: Mapping[str, Any]  # for a program, as JSON
    lines: Sequence[str]  # for people
    recipe: Any = None  # of the networks, where a run or weights were made: a `Recipe`; of `from_leras` its file
    name: str = ""  # of the model, if it has one
    step: int = 0  # updates done
    networks: tuple[str, ...] = ()  # that were in the source, or that were written, by their names in the other program
    backup: Path | None = None  # where the files that it replaced are now; None: there were none, or they are gone
    difference: float | None = None  # the largest from what the original draws; None: it was not compared

    @property
    def run(self) -> Path:
        """What was written, where that is a run."""
        return self.path

    @property
    def folder(self) -> Path:
        """What was written, where that is a folder of another program's files."""
        return self.path

    @property
    def iteration(self) -> int:
        """Updates done, as DeepFaceLab calls them."""
        return self.step


class OurSide(Protocol):
    """Recipes, runs and data of frugan's own: what a format may ask for."""

    def recipe(self, values: Mapping[str, Any], where: str) -> RecipeValues:
        """Check a recipe's values, with the conversion's `key.sub=value` words in force.

        Args:
            where: they come from, for messages.

        Raises:
            BadInput: naming `where`, and for each fault the key and what is wrong.
        """

    def shipped(self, name: str) -> RecipeValues | None:
        """A recipe that ships with frugan; None: there is none of that name."""

    def load(self, networks: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], where: str) -> None:
        """Load "network.parameter" tensors into all of some networks; on "meta" this does but check them.

        Raises:
            BadInput: a tensor is missing, unknown or of another shape.
        """

    def weights(self, family: str) -> Trained:
        """Open a run, a checkpoint or a weights file.

        Raises:
            BadInput: it is none, damaged, or of another family.
        """

    def checkpoint(self) -> Trained:
        """Open a run or one of its checkpoints, of any family; the files are checked against their digests.

        Raises:
            BadInput: it is none, or damaged.
        """

    def write_tensors(self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write a safetensors file, whole or not at all; its folder is made if it is missing."""

    def is_run(self, folder: Path) -> bool:
        """Whether a folder is a run of frugan's."""

    def data(self, trained: Trained) -> Mapping[str, Any]:
        """Source -> the pictures that the conversion was given, opened as for training.

        Raises:
            BadInput: they cannot be read, or are not what this recipe can be trained on.
        """


class FileFormat:
    """A format that models come from, or go to, or both; what it can do, it defines."""

    program: str  # what it belongs to, in a few words for people
    # reads, writes: fields of `Conversion` that `read` and `write` take besides `source`, `out` and `say`; None: it
    # cannot be read, or written
    reads: frozenset[str] | None = None
    writes: frozenset[str] | None = None
    # what a model that is read may become: a name that ends in .safetensors asks for a file, any other
    # for the other one
    makes: frozenset[Target] = frozenset()

    def read(self, asked: Conversion, ours: OurSide) -> Imported:
        """Read a model in this format; what is made of it is written when all of it is here.

        Raises:
            BadInput: files are missing, damaged or do not fit each other.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be read")

    def write(self, asked: Conversion, ours: OurSide) -> Converted:
        """Write a run, or weights, in this format.

        Raises:
            BadInput: nothing to write, or something is there already.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be written")
