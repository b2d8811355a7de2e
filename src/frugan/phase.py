"""The contract between families and the engine: what a phase is, and what layers with state may do.

A family describes its training as phases made of parts, and the engine runs them. Neither imports the other: both know
this file only. The rule behind it: nothing moves inside a forward. Layers with state *observe*; the engine commits what
was observed once per phase, together with the update, so that a recomputation, a repeated or a skipped phase leaves
no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from pydantic import BaseModel

    from frugan.contract.data import Needs
    from frugan.contract.styles import Noise, StyleMixing

Networks = Mapping[str, nn.Module]
Terms = dict[str, Tensor]
"""Named fp32 scalars, each a mean over the micro-batch. The loss of a part is their sum."""


@dataclass(frozen=True)
class Draw:
    """One random input of a phase.

    Attributes:
        distribution: "normal" (mean 0), "uniform" in [0, 1), or "classes": integers in [0, classes).
        shape: shape for one sample.
        std: standard deviation of "normal".
        classes: number of classes of "classes".
        per_image: False: drawn for the whole batch on the host and split (latents, classes). True: made on the device
            for each micro-batch as a function of (stream, phase, image index) (noise pictures, dropout masks), so that
            the whole batch never exists at once.
    """

    distribution: Literal["normal", "uniform", "classes"]
    shape: tuple[int, ...] = ()
    std: float = 1.0
    classes: int = 0
    per_image: bool = False


Draws = Mapping[str, Draw]


@dataclass(frozen=True)
class Carried:
    """State carried from one update to the next (a running mean of path lengths, for example).

    Phases that carry state of the same name share it: one may observe what moves it, another only read it.

    Attributes:
        initial: its value before the first update: one number, or several [n].
        update: (value so far, mean of what the phase observed over its samples, number of samples) -> next value.
        shown: what people see its first number as, in events, on the console and in the report; None: they do not.
    """

    initial: float | tuple[float, ...]
    update: Callable[[Tensor, Tensor, int], Tensor]
    shown: str | None = None


@dataclass(frozen=True)
class MicroBatch:
    """What one forward of a part sees.

    Attributes:
        pictures: source -> name -> tensor [size, ...] on the device; uint8 pictures stay uint8 until a part casts them.
        draws: name -> tensor [size, ...] on the device.
        size: samples.
        normalisation_batch: samples in a row that a part may look at together; None: all of these.
    """

    pictures: Mapping[str, Mapping[str, Tensor]]
    draws: Mapping[str, Tensor]
    size: int
    normalisation_batch: int | None = None


class PhaseState:
    """A phase's own state while it runs: read what is carried, observe what shall move it.

    Attributes:
        loss_scale: fp32 scalar tensor; 1 unless the phase runs in fp16. For gradients taken inside a part.
    """

    def __init__(self, values: Mapping[str, Tensor], loss_scale: Tensor) -> None:
        self._values = values
        self._observed: dict[str, tuple[Tensor, int]] = {}
        self.loss_scale = loss_scale

    def read(self, name: str) -> Tensor:
        """Value of a carried state before this phase; fp32, a scalar or [n]."""
        return self._values[name]

    def observe(self, name: str, mean: Tensor, samples: int) -> None:
        """Note the mean of a quantity, a scalar or [n], over `samples` samples of this micro-batch."""
        if name not in self._values:
            raise KeyError(f"the phase carries no state named {name!r}; it carries {sorted(self._values)}")
        value = mean.detach().float() * samples
        before = self._observed.get(name)
        self._observed[name] = (value, samples) if before is None else (before[0] + value, before[1] + samples)

    def observed(self) -> dict[str, tuple[Tensor, int]]:
        """Mean of what was observed so far, over all samples of the phase, and their number."""
        return {name: (total / samples, samples) for name, (total, samples) in self._observed.items()}


Part = Callable[[Networks, MicroBatch, PhaseState], Terms]
"""One loss of a phase. Never calls `.item()` or backward, never branches on values (`autograd.grad` is fine)."""


@dataclass(frozen=True)
class Phase:
    """One kind of optimizer update inside a training step.

    Attributes:
        name: "D_r1".
        updates: networks whose parameters move; gradients flow into nothing else.
        uses: networks that it runs: these are prepared, and what they observe is committed. Includes `updates`.
        optimizer: name of its optimizer; phases may share one.
        parts: independent losses: backward after each (less memory) or after all, at the plan's choice.
        draws: its random inputs.
        sources: data sources that it reads.
        every: due at steps 0, every, 2*every ...
        repeats: updates in a row, each on fresh pictures and draws.
        shared_data: reads the step's pictures; False (always with repeats): its own.
        fraction: share of the batch that it sees.
        gain: multiplies its loss.
        sums_over_batch: the loss is the sum over the batch, not the mean, where an original differentiates a sum.
        frozen: those of `updates` that stay as they are at present; their optimizer keeps its state for them.
        learning_rate_dropout: False: the optimizer's learning-rate dropout is passed over.
        on_masters: acts once on masters and their gradients, after unscaling, before clipping.
        carried: state that it reads or moves, by name.
    """

    name: str
    updates: tuple[str, ...]
    uses: tuple[str, ...]
    optimizer: str
    parts: tuple[Part, ...]
    draws: Draws = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    every: int = 1
    repeats: int = 1
    shared_data: bool = True
    fraction: float = 1.0
    gain: float = 1.0
    sums_over_batch: bool = False
    frozen: tuple[str, ...] = ()
    learning_rate_dropout: bool = True
    on_masters: Callable[[Networks], None] | None = None
    carried: Mapping[str, Carried] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if missing := set(self.updates) - set(self.uses):
            raise ValueError(f"phase {self.name} updates {sorted(missing)} but does not list them in `uses`")
        if self.repeats > 1 and self.shared_data and self.sources:
            raise ValueError(f"phase {self.name} repeats {self.repeats} times: each repeat needs its own pictures")
        if not self.parts or self.every < 1 or self.repeats < 1 or not 0 < self.fraction <= 1:
            raise ValueError(f"phase {self.name}: needs a part, every >= 1, repeats >= 1 and fraction in (0, 1]")

    @property
    def trainable(self) -> tuple[str, ...]:
        """Networks whose parameters this phase trains at present."""
        return tuple(name for name in self.updates if name not in self.frozen)

    def due(self, step: int) -> bool:
        """Whether the phase runs in step `step`, counted from 0."""
        return step % self.every == 0

    def samples(self, batch: int) -> int:
        """How many samples of a batch one update of this phase sees."""
        return max(1, round(batch * self.fraction))  # 100 x 0.29 is 28.999… in floating point


class Observer:
    """Collects what layers observe during one phase, until the engine commits or drops it.

    Attributes:
        recomputing: True while recompute runs a forward again; nothing is staged then.
    """

    def __init__(self) -> None:
        self.recomputing = False
        self._staged: dict[tuple[Stateful, str], tuple[Tensor, int]] = {}

    def stage(self, layer: Stateful, buffer: str, value: Tensor, weight: int = 1) -> None:
        """Add an observation of `buffer`; what is committed is the mean over all of them, by weight."""
        if self.recomputing:
            return
        value = value.detach() * weight if weight != 1 else value.detach()
        before = self._staged.get((layer, buffer))
        self._staged[layer, buffer] = (value, weight) if before is None else (before[0] + value, before[1] + weight)

    @torch.no_grad()
    def commit(self, accepted: Tensor | None) -> None:
        """Move the buffers; where `accepted` (a bool scalar on the device) is False, leave them as they were."""
        for (layer, buffer), (total, weight) in self._staged.items():
            old = getattr(layer, buffer)
            observed = total / weight if weight != 1 else total
            new = layer.committed(buffer, observed.to(old.dtype) if old.is_floating_point() else observed).to(old.dtype)
            old.copy_(new if accepted is None else torch.where(accepted, new, old))
        self._staged.clear()


class Stateful(nn.Module):
    """A layer with buffers that training moves. It never writes them: it observes, and the engine commits.

    Attributes:
        observer: set by the engine while a phase runs; None otherwise, and then nothing is observed.
    """

    observer: Observer | None = None

    def observe(self, buffer: str, value: Tensor, weight: int = 1) -> None:
        """Stage a new observation of a buffer; a no-op outside a phase."""
        if self.observer is not None:
            self.observer.stage(self, buffer, value, weight)

    def committed(self, buffer: str, observed: Tensor) -> Tensor:
        """Next value of a buffer, given the mean of what was observed. Default: what was observed."""
        return observed


class GroupNormalised(Stateful):
    """A layer that normalises over samples, in exact groups whose size belongs to the recipe.

    Attributes:
        normalisation_batch: samples per group; None: all samples of a forward are one group. Set by the engine.
    """

    normalisation_batch: int | None = None


class Reparametrised(Stateful):
    """A layer whose working weight is not its master parameter (spectral norm, equalised learning rate).

    Attributes:
        reparametrised: names of the parameters concerned.
    """

    reparametrised: ClassVar[tuple[str, ...]] = ("weight",)

    def working_weight(self, name: str, master: Tensor) -> Tensor:
        """The weight to run with, differentiable with respect to `master`; fp32. Observes what shall move."""
        raise NotImplementedError(f"{type(self).__name__} must define working_weight")


def keeps_fp32(module: nn.Module) -> frozenset[str]:
    """Names of a module's own parameters that stay fp32 in every precision (attribute `fp32_parameters`)."""
    return frozenset(getattr(module, "fp32_parameters", ()))


CHANGEABLE: dict[str, Any] = {"changeable": True}
"""Goes into `json_schema_extra` of a recipe field that may differ when a run is resumed; all others are fixed."""


def restarts(*networks: str) -> dict[str, Any]:
    """As CHANGEABLE, for a field whose change gives these networks and their optimizer state a fresh start."""
    return {"changeable": True, "restarts": list(networks)}


ADDED: dict[str, Any] = {"added": True}
"""Goes into `json_schema_extra` of a recipe field that earlier versions did not have: while it has its default, what
was predicted before it still holds."""

BufferRule = Literal["average", "copy"]
"""What EMA does with a network's floating-point buffers; integer buffers are always copied."""


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


Channels = Literal[1, 3]
"""Of pictures: grey, or red, green and blue."""


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
