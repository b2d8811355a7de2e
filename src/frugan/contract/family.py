"""Interface of a family for commands, planner and engine, and the description of a grid of its samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from frugan.contract.phase import Networks, Phase
from frugan.contract.settings import Settings
from frugan.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path

    from frugan.contract.data import SourceSpec
    from frugan.contract.settings import DataSettings


Noise = Literal["const", "random", "none"]
"""Noise that layers add: a constant of the layer, the same for every picture; random, for each picture; or none."""


@dataclass(frozen=True)
class StyleMixing:
    """A grid of pictures that take the styles of some layers from others."""

    rows: Sequence[int]  # number of each row's latent, as `GridRequest.seeds` counts them
    columns: Sequence[int]  # number of each column's latent
    layers: Sequence[int]  # layers, counted from 0, that take the column's style; the others take the row's


class Previews(Protocol):
    """Source of the pictures that a grid starts from, for families that change given pictures."""

    def preview(self, source: str, count: int) -> Mapping[str, Tensor]:
        """Return a few pictures, each time the same ones."""


@dataclass(frozen=True)
class GridRequest:
    """Contents of a grid of samples; a family may ignore fields that it has no use for."""

    seed: int = 0  # seed of the random inputs
    classes: Sequence[int] | None = None  # class of each row; None: `rows` of all classes
    columns: int = 10  # pictures in a row
    truncation: float = 1.0  # standard deviation of the latents (1: as trained)
    # where styles lie between the mean style (0) and the sample's own (1); below 0: on the other side of the mean
    psi: float = 1.0
    psi_layers: int | None = None  # number of first layers that psi applies to; None: all
    # what changes along a row; None: rows are no interpolations
    interpolate: Literal["class", "latent", "both"] | None = None
    spherical: bool = False  # latents go along a great circle, and not along a straight line
    rows: int = 10  # rows of an interpolation; in a grid of all classes, their largest number (see `spread`)
    micro_batch: int = 16  # samples in one forward
    noise: Noise = "const"  # noise that layers add; like psi, `seeds` and `mixing` for families with styles alone
    # numbers of latents, as NVlabs' programs count them: a column for each. Rows that go by them with `interpolate` are
    # no family's own: they are drawn from its latent space
    seeds: Sequence[int] = ()
    # moves all pictures: in picture widths to the right and heights down, and then by degrees counter-clockwise; for
    # families that are `movable`
    translate: tuple[float, float] = (0.0, 0.0)
    rotate: float = 0.0
    # a grid of mixed styles, with the pictures that they come from above it and to its left
    mixing: StyleMixing | None = None
    # source -> name -> tensor [rows, ...], for a family that changes given pictures
    pictures: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    masked: bool = False  # show pictures through their masks
    titles: tuple[str, ...] = ()  # names of the columns; empty: columns have none
    # share of the source's face in the swap in each of the last columns, 0 to 1; for families that mix two faces
    morphs: tuple[float, ...] = ()

    def with_morphs(self, morphs: tuple[float, ...]) -> GridRequest:
        """Return the request with columns of these morphs in place of those that it has."""
        kept = self.titles[: len(self.titles) - len(self.morphs)]
        titles = (*kept, *(f"{100 * morph:g}%" for morph in morphs))
        return replace(self, morphs=morphs, titles=titles, columns=len(titles))


def spread(classes: Sequence[int], most: int, sheet: int = 0) -> Sequence[int]:
    """Choose the classes of a sheet of at most `most` rows, evenly over all classes.

    The next sheet shows the next classes, and so on until each class was shown; then they begin anew.
    """
    sheets = max(1, -(-len(classes) // most))
    return classes[sheet % sheets :: sheets]


@dataclass(frozen=True)
class Piece:
    """Tensors that start together, either all from other networks or all anew."""

    network: str  # such as "G"
    block: str  # as messages name it, such as "b64"
    layer: str = ""  # layer of the block; "": the block is one piece


@dataclass(frozen=True)
class Drawing:
    """A generator as one call of tensors alone, which can be exported to programs without frugan."""

    network: str  # the generator, such as "G"
    latent_size: int
    classes: int  # number of classes whose shares `call` takes; 0: it takes no shares
    psi: bool  # whether `call` takes psi
    # latents [n, latent_size], then shares [n, classes] of each class if there are classes, then psi [] if it takes
    # one -> pictures [n, C, R, R] in [-1, 1], fp32
    call: Callable[..., Tensor]


@dataclass(frozen=True)
class LatentSpace:
    """The space of vectors that a generator draws pictures from, where they can be moved, found and walked between."""

    network: str  # the generator, such as "G"
    name: str  # name of the space in papers: "z", "w"
    latent_size: int  # size of the latents that `place` takes
    size: int  # size of a vector
    layers: int  # number of layers that may each take a vector of their own; 1: all take the same one
    classes: int  # number of classes whose shares [N, classes] `place` and `draw` take; 0: they take none
    class_free: bool  # whether vectors hold their class, and `draw` looks at no shares
    # latents [N, latent_size], shares -> vectors [N, size]
    place: Callable[[Tensor, Tensor | None], Tensor]
    # vectors [N, layers, size], shares, noise of layers, its generator -> pictures [N, C, R, R] in [-1, 1], fp32
    draw: Callable[[Tensor, Tensor | None, Noise, torch.Generator | None], Tensor]
    # layers, counted from 0 -> weights of the linear maps that take their vectors, stacked [outputs, size]
    maps: Callable[[Sequence[int]], Tensor]
    # vectors [N, size], shares -> features of the first block [N, ...]; None: the vectors say as much themselves
    activations: Callable[[Tensor, Tensor | None], Tensor] | None = None
    mean: Tensor | None = None  # vector [size] that psi moves others towards; None: psi has no meaning


@dataclass(frozen=True)
class Preliminary:
    """Training of another kind that comes before the usual one, such as pretraining, and ends on a resumption.

    Steps then count from 0 again; `Family.fresh_after` says which networks start anew.
    """

    name: str  # in one word, for reports and previews: "pretraining"
    overrules: Mapping[str, Any]  # dotted field of the recipe -> value in force, whatever the recipe says
    data: str | None  # path that all sources are read from; None: from what the command names
    lines: Sequence[str]  # told at the start


BufferRule = Literal["average", "copy"]
"""How EMA treats a network's floating-point buffers; integer buffers are always copied."""


Dimension = Literal["resolution", "width"]
"""Ways in which a family's networks may be made smaller or larger."""


class NoObjective(Settings):
    """Section `objective` of a recipe where there is nothing to choose."""


class Family(ABC):
    """A kind of model with its training objective.

    A family must have a `name`, a `networks_type`, and the methods without a default: `build`, `phases`, `sources`,
    `sample` and `tiny`. All others may be overridden.
    """

    name: str  # as recipes give it
    networks_type: type[BaseModel]  # type of a recipe's section `networks`
    objective_type: type[BaseModel] = NoObjective  # type of its section `objective`
    # whether networks may start from weights that know other classes; `class_dimension` says where
    class_tables: bool = False
    # whether a generator's pictures can be moved by `move`
    movable: bool = False
    rules: tuple[str, ...] = ()  # names of the authors' rules for settings, which `follow` takes
    # words for the original program's options -> what is to be typed, for hints where a word is unknown
    foreign_names: Mapping[str, str] = MappingProxyType({})
    # options of the original program that nothing stands for -> why they are left out
    left_out: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def build(self, networks: Any, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """Build every network that a phase may use, by name, in fp32, with torch's default initialisation.

        Args:
            device: may be "meta".
        """

    @abstractmethod
    def phases(self, networks: Any, objective: Any) -> tuple[Phase, ...]:
        """Phases in the order in which a step runs them."""

    @abstractmethod
    def sources(self, networks: Any, objective: Any) -> Mapping[str, SourceSpec]:
        """Requirements on each data source, by its name."""

    @abstractmethod
    def sample(self, networks: Any, built: Networks, request: GridRequest) -> Tensor:
        """Draw a grid [rows, columns, C, H, W] in [-1, 1], fp32, with prepared networks."""

    @abstractmethod
    def tiny(self) -> tuple[Any, Any]:
        """Return sections (networks, objective) that are small enough for the contract tests."""

    def initialise(self, networks: Any, built: Networks, seed: Callable[[str], int]) -> None:
        """Give the networks their first weights. Default: those that `build` draws on the host, from one stream.

        Args:
            seed: gives the seed of a named random stream.
        """
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(seed("networks"))
            drawn = self.build(networks)
        for name, network in built.items():
            network.load_state_dict(drawn[name].state_dict())

    @property
    def optimizers(self) -> tuple[str, ...]:
        """Names of the optimizers that phases may use. Default: those of the tiny networks' phases."""
        return tuple(dict.fromkeys(phase.optimizer for phase in self.phases(*self.tiny())))

    @property
    def optimizer_types(self) -> Mapping[str, type[BaseModel]]:
        """Types of settings of the family's own optimizers, by the `kind` that recipes give. Default: none, as the
        engine's optimizers are enough."""
        return {}

    def averaged(self) -> Mapping[str, BufferRule]:
        """Networks that EMA follows, with its rule for their floating-point buffers. Default: none, and grids show
        the networks as trained."""
        return {}

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Network -> names of the blocks that may be recomputed, in the order in which they run. Default: none may."""
        return {}

    def transformed(
        self, networks: Any, built: Networks, sources: Mapping[str, Any], count: int, micro_batch: int
    ) -> Iterator[tuple[str, Tensor]]:
        """Make a picture of each of the first `count` given ones: its name and [C, R, R] in [-1, 1], fp32.

        Default: none, of a family that draws from random inputs.

        Args:
            built: prepared networks.
            sources: the opened data, by name.
            micro_batch: pictures in one forward.

        Raises:
            BadInput: a picture cannot be read.
        """
        return iter(())

    def masked(
        self,
        networks: Any,
        built: Networks,
        source: Any,
        kept: Path,
        say: Callable[[str], None],
        progress: Callable[[int, int], None] | None,
    ) -> Any:
        """Return an opened source whose pictures have the masks that the networks find, for `data.masks`.

        Default: of a family that finds none.

        Args:
            built: the networks, ready to call.
            source: the opened data.
            kept: file to keep the masks in; where it is there, they are read from it.
            say: is given lines.
            progress: gets (pictures done, pictures in all).

        Raises:
            BadInput: the family finds no masks.
        """
        raise BadInput(f"data.masks: {self.name} finds no masks; name a run of xseg")

    def commands_after(self, run: Path, data: Path) -> tuple[str, ...]:
        """Commands that show and use what was learnt, the first one first. Default: none but to draw samples.

        Args:
            run: folder of the run.
            data: its first source, as it was named.
        """
        return ()

    def notice(self, path: Path) -> str | None:
        """Return a line on pictures that are given without a recipe, and are data for this family.

        Default: None, nothing is known of them.

        Args:
            path: of the pictures that a recipe is to be chosen for.

        Raises:
            BadInput: nothing sensible could be chosen for them; it says what to type.
        """
        return None

    def forwards(self, networks: Any) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """Functions by network, (network, samples) -> output, that run it on inputs of their own, to count and time.

        Default: none; each network is then run with the arguments of its first forward call in a training step.
        Override it where phases call parts of a network and not the whole, or not every network at every setting.
        """
        return {}

    def spared_macs(self, networks: Any) -> Mapping[str, int]:
        """Network -> multiply-accumulates that one picture takes less here than in the program that it comes from.

        That program's weights are prepared with the picture, which papers count. Default: nobody has counted them.
        """
        return {}

    def drawing(self, networks: Any, built: Networks) -> Drawing | None:
        """Return the generator as one call of tensors, for `export`. Default: None, there is none."""
        return None

    def latent_space(self, networks: Any, built: Networks) -> LatentSpace | None:
        """Return the space that prepared networks draw from, for exploring. Default: None, there is none."""
        return None

    def snapshots(self, networks: Any) -> Mapping[str, GridRequest]:
        """Grids that are written at every snapshot, by name. Default: one.

        Where a grid has more `classes` than `rows`, each snapshot shows some of them in turn; see `spread`.
        """
        return {"samples": GridRequest(seed=1)}

    def variants(self, networks: Any) -> Mapping[Dimension, Sequence[Mapping[str, Any]]]:
        """Smaller and larger relatives of these networks, for the planner: the fields to set instead, smallest first.

        The networks themselves are among them. Default: none are known.
        """
        return {}

    def move(self, built: Networks, translate: tuple[float, float], rotate: float) -> None:
        """Let the generator draw its pictures moved from now on; see `GridRequest`. For families that are `movable`."""
        raise NotImplementedError(f"{self.name} cannot move its pictures")

    def styles(self, networks: Any) -> int:
        """Number of layers that take a style of a mapping network. Default: 0, the generator has no styles."""
        return 0

    def follow(self, rule: str, resolution: int, batch: int | None) -> Mapping[str, Any]:
        """Dotted field -> value, by one of `rules`.

        Args:
            rule: its name.
            resolution: side of the pictures.
            batch: None: the rule chooses the batch too.

        Raises:
            BadInput: there is no such rule.
        """
        return {}

    def foreign_option(self, name: str, value: str) -> Sequence[str] | None:
        """Words of the command line for an option of the original program, none if it is `left_out`; None: it
        has no such option. Default: None.

        Raises:
            BadInput: the option has no such value.
        """
        return None

    def preliminary(self, objective: Any, data: DataSettings) -> Preliminary | None:
        """Training that comes before the usual one, where this objective asks for it. Default: None."""
        return None

    def fresh_after(self, before: Any, now: Any) -> tuple[str, ...]:
        """Networks that start anew when training goes on with another objective (a bottleneck after pretraining).

        If there are any, steps count from 0 again, and the optimizer's state is taken over, theirs too. Default: none.

        Args:
            before: objective that the weights were trained with.
            now: objective that training goes on with.
        """
        return ()

    def piece_of(self, key: str) -> Piece | None:
        """Piece of the tensor "network.parameter", where networks may start from those of another resolution as far
        as pieces agree; None: it is a constant, which stays as it is built.

        Default: there are no pieces, and networks start from equal networks only.
        """
        return None

    def counterpart(self, key: str, theirs: Any, ours: Any) -> str | None:
        """Name here of the tensor "network.parameter" of other networks, where blocks have other numbers at another
        resolution; None: there is none. Default: the same name.

        Args:
            theirs: section `networks` of the other networks' recipe.
            ours: section `networks` of this recipe.
        """
        return key

    def class_dimension(self, key: str, networks: Any) -> int | None:
        """Dimension of the tensor "network.parameter" that runs over the classes; None: none does."""
        return None

    def picture_dimension(self, key: str, networks: Any) -> int | None:
        """Dimension of the tensor "network.parameter" that runs over the pictures' channels: 0 of a layer that makes
        pictures, 1 of one that takes them; None: none does.

        Default: the family does not say, and such layers are new where weights know another number of channels.
        """
        return None
