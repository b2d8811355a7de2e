"""What a family is to commands, planner and engine, and what a grid of its samples may be asked to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel
    from torch import Tensor, nn

    from frugan.contract.data import Needs
    from frugan.contract.phase import Networks, Phase


# What a request may ask of families whose pictures are made of styles, one for each layer.

Noise = Literal["const", "random", "none"]
"""What layers add: their own noise, the same for every picture; another for each; or nothing."""


@dataclass(frozen=True)
class StyleMixing:
    """A grid of pictures that take the styles of some layers from others.

    Attributes:
        rows, columns: numbers of latents, as `SheetRequest.seeds` counts them: a row and a column for each.
        layers: whose styles are the column's, counted from 0; the others' are the row's.
    """

    rows: Sequence[int]
    columns: Sequence[int]
    layers: Sequence[int]


@runtime_checkable
class Styled(Protocol):
    """A family whose generator has a mapping network, from latents to styles."""

    def styles(self, networks: Any) -> int:
        """How many layers take a style."""


# What a grid of samples shall show.


@dataclass(frozen=True)
class SheetRequest:
    """What a sheet of samples shall show; a family may ignore what it has no use for.

    Attributes:
        seed: of its random inputs.
        classes: class of each row; None: the family's own choice.
        columns: pictures per row.
        truncation: standard deviation of the latents (1: as trained).
        psi: where styles lie between the mean one (0) and their own (1); below 0 on the mean's other side.
        psi_layers: how many of the first layers psi holds for; None: all.
        interpolate: "class", "latent" or "both": rows become interpolations.
        spherical: latents go along a great circle, and not along a straight line.
        rows: rows of an interpolation.
        micro_batch: samples in one forward.
        noise: what layers add; of `Styled` families alone, like psi and the next two.
        seeds: numbers of latents, as NVlabs' programs count them: a column for each, or with `interpolate` the stations
            that a row goes by.
        mixing: a grid of mixed styles, with the pictures that they come from above it and to its left.
        pictures: source -> name -> tensor [rows, ...], for a family that shows what it makes of given pictures.
        masked: show pictures through their masks.
        titles: names of the columns; none: they need none.
    """

    seed: int = 0
    classes: Sequence[int] | None = None
    columns: int = 10
    truncation: float = 1.0
    psi: float = 1.0
    psi_layers: int | None = None
    interpolate: Literal["class", "latent", "both"] | None = None
    spherical: bool = False
    rows: int = 10
    micro_batch: int = 16
    noise: Noise = "const"
    seeds: Sequence[int] = ()
    mixing: StyleMixing | None = None
    pictures: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    masked: bool = False
    titles: tuple[str, ...] = ()


# How a family says what of other networks its own may start from.


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


# Rules by which some fields of a recipe follow from others.


@runtime_checkable
class Ruled(Protocol):
    """A family whose authors give settings by a rule, and not number by number."""

    def follow(self, rule: str, resolution: int, batch: int | None) -> Mapping[str, Any]:
        """Dotted field -> value, for pictures of that side and a batch; None: the rule chooses the batch too.

        Raises:
            BadInput: no such rule.
        """


BufferRule = Literal["average", "copy"]
"""What EMA does with a network's floating-point buffers; integer buffers are always copied."""


Dimension = Literal["resolution", "width"]
"""Ways in which a family's networks may be made smaller or larger."""


class Family(Protocol):
    """A kind of model with its training objective."""

    @property
    def name(self) -> str:
        """As recipes give it."""

    @property
    def networks_type(self) -> type[BaseModel]:
        """Type of a recipe's `networks` section."""

    @property
    def objective_type(self) -> type[BaseModel]:
        """Type of a recipe's `objective` section."""

    def build(self, networks: Any, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """Every network that any phase may use, by name, fp32, uninitialised beyond torch's defaults; `device` may be
        "meta"."""

    def initialise(self, networks: Any, built: Networks, seed: Callable[[str], int]) -> None:
        """Give the networks their first weights; `seed(name)` is the seed of a named random stream."""

    def phases(self, networks: Any, objective: Any) -> tuple[Phase, ...]:
        """Phases in the order in which a step runs them."""

    @property
    def optimizers(self) -> tuple[str, ...]:
        """Names of the optimizers that its phases may use."""

    @property
    def optimizer_types(self) -> Mapping[str, type[BaseModel]]:
        """Settings types of optimizers of its own, by the word that recipes have for them; few families have any."""

    def sources(self, networks: Any, objective: Any) -> Mapping[str, Needs]:
        """Data sources by name."""

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Network -> names of the blocks that may be recomputed, in the order in which they run."""

    def forwards(self, networks: Any) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """Network -> (network, samples) -> one forward on inputs that it makes itself, for counting and timing."""

    def averaged(self) -> Mapping[str, BufferRule]:
        """Networks that EMA follows, with its rule for their floating-point buffers. None: training averages nothing,
        and sheets show the networks themselves."""

    def sample(self, networks: Any, built: Networks, request: SheetRequest) -> Tensor:
        """A sheet as a tensor [rows, columns, C, H, W] in [-1, 1], fp32, from prepared networks."""

    def snapshots(self, networks: Any) -> Mapping[str, SheetRequest]:
        """The sheets written at every snapshot, by name."""

    def fresh_after(self, before: Any, now: Any) -> tuple[str, ...]:
        """Networks that start anew when training goes on with objective `now` from weights of objective `before`
        (a bottleneck after pretraining). If there are any, the optimizer state of the others is taken over too."""

    def variants(self, networks: Any) -> Mapping[Dimension, Sequence[Mapping[str, Any]]]:
        """Relatives of these networks for a planner: fields to set instead, smallest first; these are among them."""

    def tiny(self) -> tuple[Any, Any]:
        """(networks, objective) small enough for the contract tests."""
