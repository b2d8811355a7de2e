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
    """What is to be converted, and how; a format reads those fields that it says it takes.

    Attributes:
        source, out: what to read, and where to write.
        overrides: `key.sub=value` words for the recipe.
        name: of the model, where a folder holds several.
        data: paths by source name, or one, to compare with the model.
        replace: what is there may be replaced.
        half: in half precision.
        raw: networks as they were trained, where there are averages of them too.
        verify: the converted networks are run before anything is written, and compared where there are outputs to
            compare with.
        say: is given a line for everything that does not simply go over.
    """

    source: Path
    out: Path
    say: Say
    overrides: Sequence[str] = ()
    name: str | None = None
    data: str | Path | Mapping[str, Any] | None = None
    replace: bool = False
    half: bool = False
    raw: bool = False
    verify: bool = False


@dataclass(frozen=True)
class RecipeValues:
    """A checked recipe as a format sees it.

    Attributes:
        values: all fields by section, as JSON has them.
        networks: the family's own type of that section.
        objective: the same of that one.
        optimizers: optimizer -> its settings, as training runs it.
        used: networks that some phase of the training runs.
        optimizers_used: optimizers that some phase of the training uses.
        steps: how long it trains; None: without an end, or for a time.
        averages_from: steps after which averaging begins.
        backup_seconds: between backups; None: they do not go by the clock.
    """

    values: dict[str, Any]
    networks: Any
    objective: Any
    optimizers: Mapping[str, Mapping[str, Any]]
    used: frozenset[str]
    optimizers_used: frozenset[str]
    steps: int | None
    averages_from: int
    backup_seconds: float | None

    @property
    def summary(self) -> str:
        """What the recipe is for, in one line."""
        return str(self.values["about"]["summary"])


@dataclass(frozen=True)
class Imported:
    """A model of another program in the terms of a checkpoint: what a run, or weights, are made of.

    Attributes:
        recipe: as `OurSide.recipe` gave it.
        networks: "network.parameter" -> tensor; as trained, or what a file shall hold.
        averages: the same of their averages; empty: they are copies, or the file has but one of both.
        optimizers: "optimizer/network.parameter/slot" -> tensor, and "optimizer/updates" -> a count.
        step: updates done.
        event: of a run: what its event `imported` says.
        facts: for a program, as JSON.
        lines: for people; the first says what came of it.
        name: of the model, if it has one.
        parts: of the source, that were taken.
    """

    recipe: RecipeValues
    networks: dict[str, Tensor]
    facts: Mapping[str, Any]
    lines: Sequence[str]
    averages: dict[str, Tensor] = field(default_factory=dict)
    optimizers: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    event: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trained:
    """A run, checkpoint or weights file that another program is to get.

    Attributes:
        path: file of the networks as trained.
        averaged: file of their averages; the same one where there are none of their own.
        run: folder of the run that it belongs to; it need not be there any more.
        recipe: as it is after these steps.
        networks, averages: "network.parameter" -> tensor, out of these two files.
        step: updates done.
        later_stages: steps after this one at which a stage of the recipe begins.
        trained_on: source -> digest of what it was last trained on.
        imported: reads the run's event `imported`; None: it was made of no model of another program.
        optimizers: reads "optimizer/network.parameter/slot" -> tensor; None: there are none beside the networks.
        losses: reads side -> (step of each entry, loss); 0 is the step of those that were imported.
        note: what a picture made with it says about itself.
    """

    path: Path
    averaged: Path
    run: Path
    recipe: RecipeValues
    networks: dict[str, Tensor]
    averages: dict[str, Tensor]
    step: int
    later_stages: Sequence[int]
    trained_on: Mapping[str, str]
    imported: Callable[[], Mapping[str, Any] | None]
    optimizers: Callable[[], dict[str, Tensor]] | None
    losses: Callable[[], Mapping[str, tuple[Sequence[int], Sequence[float]]]]
    note: Mapping[str, str]


@dataclass(frozen=True)
class Converted:
    """What came of it.

    Attributes:
        path: what was written: a run, a folder or a file.
        facts: for a program, as JSON.
        lines: for people.
        recipe: of the networks, where a run or weights were made; a `frugan.recipe.recipe.Recipe`.
        name: of the model, if it has one.
        step: updates done.
        networks: that were in the source, or that were written, by their names in the other program.
        backup: where the files that it replaced are now; None: there were none, or they are gone.
        difference: the largest from what the original draws; None: it was not compared.
    """

    path: Path
    facts: Mapping[str, Any]
    lines: Sequence[str]
    recipe: Any = None
    name: str = ""
    step: int = 0
    networks: tuple[str, ...] = ()
    backup: Path | None = None
    difference: float | None = None


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
    """A format that models come from, or go to, or both; what it can do, it defines.

    Attributes:
        program: what it belongs to, in a few words for people.
        reads, writes: fields of `Conversion` that `read` and `write` take besides `source`, `out` and `say`; None: it
            cannot be read, or written.
        makes: what a model that is read may become: a name that ends in .safetensors asks for a file, any other for
            the other one.
    """

    program: str
    reads: frozenset[str] | None = None
    writes: frozenset[str] | None = None
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
