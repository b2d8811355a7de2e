"""What a family is to commands, planner and engine, and what a grid of its samples may be asked to show."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from frugan.contract.phase import Networks, Phase
from frugan.contract.settings import Settings

if TYPE_CHECKING:
    from frugan.contract.data import SourceSpec


Noise = Literal["const", "random", "none"]
"""What layers add: their own noise, the same for every picture; another for each; or nothing."""


@dataclass(frozen=True)
class StyleMixing:
    """A grid of pictures that take the styles of some layers from others."""

    # rows, columns: numbers of latents, as `GridRequest.seeds` counts them: a row and a column for each
    rows: Sequence[int]
    columns: Sequence[int]
    layers: Sequence[int]  # whose styles are the column's, counted from 0; the others' are the row's


class Previews(Protocol):
    """Where a grid takes given pictures from."""

    def preview(self, source: str, count: int) -> Mapping[str, Tensor]:
        """The same few pictures each time."""


@dataclass(frozen=True)
class GridRequest:
    """What a grid of samples shall show; a family may ignore what it has no use for."""

    seed: int = 0  # of its random inputs
    classes: Sequence[int] | None = None  # class of each row; None: `rows` of all
    columns: int = 10  # pictures per row
    truncation: float = 1.0  # standard deviation of the latents (1: as trained)
    # where styles lie between the mean one (0) and their own (1); below 0 on the mean's other side
    psi: float = 1.0
    psi_layers: int | None = None  # how many of the first layers psi holds for; None: all
    # what changes along a row; None: rows are no interpolations
    interpolate: Literal["class", "latent", "both"] | None = None
    spherical: bool = False  # latents go along a great circle, and not along a straight line
    rows: int = 10  # of an interpolation; of a grid of all classes: how many of them at the most (`spread`)
    micro_batch: int = 16  # samples in one forward
    noise: Noise = "const"  # what layers add; of families with styles alone, like psi and the next two
    # numbers of latents, as NVlabs' programs count them: a column for each, or with `interpolate` the stations that a
    # row goes by
    seeds: Sequence[int] = ()
    # a grid of mixed styles, with the pictures that they come from above it and to its left
    mixing: StyleMixing | None = None
    # source -> name -> tensor [rows, ...], for a family that shows what it makes of given pictures
    pictures: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    masked: bool = False  # show pictures through their masks
    titles: tuple[str, ...] = ()  # names of the columns; none: they need none


def spread(classes: Sequence[int], most: int, sheet: int = 0) -> Sequence[int]:
    """Classes of a sheet of so many rows at the most, evenly over all of them.

    The next sheet has the next ones, until each class was shown; then it begins anew.
    """
    sheets = max(1, -(-len(classes) // most))
    return classes[sheet % sheets :: sheets]


@dataclass(frozen=True)
class Piece:
    """Tensors that start together from other networks, or together anew."""

    network: str  # "G"
    block: str  # "b64": what messages name
    layer: str = ""  # of the block; "": the block is one piece


@dataclass(frozen=True)
class Drawing:
    """Pictures of a generator as one call of tensors alone, as programs without frugan can take it over."""

    network: str  # that draws: "G"
    latent_size: int
    classes: int  # whose shares it takes; 0: it takes none
    psi: bool  # whether it takes where styles lie between the mean one (0) and their own (1)
    # latents [n, latent_size], then shares [n, classes] of each class if there are classes, then psi [] if it takes
    # one -> pictures [n, C, R, R] in [-1, 1], fp32
    call: Callable[..., Tensor]


@dataclass(frozen=True)
class LatentSpace:
    """Where a generator's pictures lie: vectors that are moved, found for a given picture, and walked between."""

    network: str  # that draws: "G"
    name: str  # of the vectors, as papers have it: "z", "w"
    latent_size: int  # of the latents that `place` takes
    size: int  # of a vector
    layers: int  # places of the network that may each take a vector of their own; 1: it takes a single one
    classes: int  # whose shares [N, classes] `place` and `draw` take; 0: they take none
    class_free: bool  # whether vectors hold their class, and `draw` looks at no shares
    # latents [N, latent_size], shares -> vectors [N, size]
    place: Callable[[Tensor, Tensor | None], Tensor]
    # vectors [N, layers, size], shares, what layers add, numbers for noise -> pictures [N, C, R, R] in [-1, 1], fp32
    draw: Callable[[Tensor, Tensor | None, Noise, torch.Generator | None], Tensor]
    # layers, counted from 0 -> the linear maps that take their vectors, one below the other [outputs, size]
    maps: Callable[[Sequence[int]], Tensor]
    # vectors [N, size], shares -> what the first block makes of them [N, ...]; None: the vectors say as much themselves
    activations: Callable[[Tensor, Tensor | None], Tensor] | None = None
    mean: Tensor | None = None  # vector [size] that psi moves others to; None: there is no such


BufferRule = Literal["average", "copy"]
"""What EMA does with a network's floating-point buffers; integer buffers are always copied."""


Dimension = Literal["resolution", "width"]
"""Ways in which a family's networks may be made smaller or larger."""


class NoObjective(Settings):
    """A recipe's section `objective` where there is nothing to choose."""


class Family(ABC):
    """A kind of model with its training objective.

    A family has a `name`, a `networks_type`, and the methods without a default: `build`, `phases`, `sources`, `sample`
    and `tiny`. The rest is for those that want it.
    """

    name: str  # as recipes give it
    networks_type: type[BaseModel]  # of a recipe's `networks` section
    objective_type: type[BaseModel] = NoObjective  # of its `objective` section
    class_tables: bool = False
    """Whether its networks may start from weights that know other classes; `class_dimension` says where."""
    rules: tuple[str, ...] = ()  # names of rules by which authors give settings, for `follow`

    @abstractmethod
    def build(self, networks: Any, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """Every network that any phase may use, by name, fp32, uninitialised beyond torch's defaults; `device` may be
        "meta"."""

    @abstractmethod
    def phases(self, networks: Any, objective: Any) -> tuple[Phase, ...]:
        """Phases in the order in which a step runs them."""

    @abstractmethod
    def sources(self, networks: Any, objective: Any) -> Mapping[str, SourceSpec]:
        """Data sources by name."""

    @abstractmethod
    def sample(self, networks: Any, built: Networks, request: GridRequest) -> Tensor:
        """A grid as a tensor [rows, columns, C, H, W] in [-1, 1], fp32, from prepared networks."""

    @abstractmethod
    def tiny(self) -> tuple[Any, Any]:
        """(networks, objective) small enough for the contract tests, with every phase."""

    def initialise(self, networks: Any, built: Networks, seed: Callable[[str], int]) -> None:
        """Give the networks their first weights; `seed(name)` is the seed of a named random stream.

        Default: those that `build` draws on the host, of one stream.
        """
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(seed("networks"))
            drawn = self.build(networks)
        for name, network in built.items():
            network.load_state_dict(drawn[name].state_dict())

    @property
    def optimizers(self) -> tuple[str, ...]:
        """Names of the optimizers that its phases may use. Default: those of the tiny networks' phases."""
        return tuple(dict.fromkeys(phase.optimizer for phase in self.phases(*self.tiny())))

    @property
    def optimizer_types(self) -> Mapping[str, type[BaseModel]]:
        """Settings types of optimizers of its own, by the word that recipes have for them. Default: the engine's own
        are enough."""
        return {}

    def averaged(self) -> Mapping[str, BufferRule]:
        """Networks that EMA follows, with its rule for their floating-point buffers. Default: training averages
        nothing, and grids show the networks themselves."""
        return {}

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Network -> names of the blocks that may be recomputed, in the order in which they run. Default: none may."""
        return {}

    def forwards(self, networks: Any) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """Network -> (network, samples) -> one forward on inputs that it makes itself, for counting and timing.

        Default: none, and each network runs on what the first call of its forward in a training step is given. To be
        written where phases call a network's parts and not the whole, or not every network at every setting.
        """
        return {}

    def spared_macs(self, networks: Any) -> Mapping[str, int]:
        """Network -> multiply-accumulates that one picture takes less here than in the program that it comes from.

        That program's weights are prepared with the picture, which papers count. Default: nobody has counted them.
        """
        return {}

    def drawing(self, networks: Any, built: Networks) -> Drawing | None:
        """What draws from latents, for `export`. Default: nothing does."""
        return None

    def latent_space(self, networks: Any, built: Networks) -> LatentSpace | None:
        """What of its pictures can be moved, found and walked between, of prepared networks. Default: nothing."""
        return None

    def snapshots(self, networks: Any) -> Mapping[str, GridRequest]:
        """The grids written at every snapshot, by name. Default: one.

        Of more `classes` than `rows` each snapshot shows some, in turn; see `spread`.
        """
        return {"samples": GridRequest(seed=1)}

    def variants(self, networks: Any) -> Mapping[Dimension, Sequence[Mapping[str, Any]]]:
        """Relatives of these networks for a planner: fields to set instead, smallest first; these are among them.
        Default: none are known."""
        return {}

    def styles(self, networks: Any) -> int:
        """How many layers take a style, of a generator with a mapping network from latents to styles. Default: 0."""
        return 0

    def follow(self, rule: str, resolution: int, batch: int | None) -> Mapping[str, Any]:
        """Dotted field -> value by one of `rules`, for pictures of that side and a batch; None: the rule chooses the
        batch too.

        Raises:
            BadInput: no such rule.
        """
        return {}

    def fresh_after(self, before: Any, now: Any) -> tuple[str, ...]:
        """Networks that start anew when training goes on with objective `now` from weights of objective `before`
        (a bottleneck after pretraining). If there are any, the optimizer state of the others is taken over too.
        Default: none."""
        return ()

    def piece_of(self, key: str) -> Piece | None:
        """What the tensor "network.parameter" starts together with, where networks may start from those of another
        resolution as far as pieces agree; None: it is a constant that always stays as it is built.

        Default: there are no pieces, and networks start from the same networks only.
        """
        return None

    def counterpart(self, key: str, theirs: Any, ours: Any) -> str | None:
        """Name here of the tensor "network.parameter" of other networks, where blocks are numbered anew at another
        resolution; None: there is none. Default: the same.

        Args:
            theirs, ours: `networks` sections of the two recipes.
        """
        return key

    def class_dimension(self, key: str, networks: Any) -> int | None:
        """Dimension of the tensor "network.parameter" that runs over the classes; None: none does.

        Args:
            networks: `networks` section of the recipe.
        """
        return None
