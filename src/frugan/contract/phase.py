"""Phases, by which a family describes its training to the engine: their parts, random inputs and carried state.

One rule governs them: nothing moves inside a forward. Layers only observe there, and the engine commits the
observations once per phase, together with the update, so that recomputed, repeated and skipped phases leave no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from frugan.contract.layers import SharedGroup, whole_mean

Networks = Mapping[str, nn.Module]


Terms = dict[str, Tensor]
"""Named fp32 scalars, each a mean over the micro-batch. The loss of a part is their sum."""


Distribution = Literal["normal", "uniform", "classes"]


@dataclass(frozen=True)
class Draw:
    """One random input of a phase."""

    # "normal" (mean 0, deviation 1), "uniform" in [0, 1), or "classes": integers in [0, classes)
    distribution: Distribution
    shape: tuple[int, ...] = ()  # shape of one sample
    classes: int = 0  # number of classes, for "classes"
    # False: drawn for the whole batch on the host and split (latents, classes). True: drawn on the device for each
    # micro-batch as a function of (stream, phase, image index) (noise pictures, dropout masks), so that the whole batch
    # never exists at once.
    per_image: bool = False

    def __post_init__(self) -> None:
        if self.distribution not in get_args(Distribution):
            raise ValueError(f"draw of {self.distribution!r}: expected one of {', '.join(get_args(Distribution))}")
        if self.distribution == "classes" and self.classes < 1:
            raise ValueError(f"draw of classes: expected their number, not {self.classes}")


Draws = Mapping[str, Draw]


@dataclass(frozen=True)
class Carried:
    """State that is carried from one update to the next (a running mean of path lengths, for example).

    Phases that carry state of the same name share it: one may observe for it, another only read it.
    """

    initial: float | tuple[float, ...]  # value before the first update: one number, or several [n]
    # (value so far, mean of the phase's observations over its samples, number of samples) -> next value
    update: Callable[[Tensor, Tensor, int], Tensor]
    # name of its first number in events, on the console and in the report; None: it is not shown
    shown: str | None = None


@dataclass(frozen=True)
class MicroBatch:
    """Inputs of one forward of a part."""

    # source -> name -> tensor [size, ...] on the device; uint8 pictures stay uint8 until a part casts them
    pictures: Mapping[str, Mapping[str, Tensor]]
    draws: Mapping[str, Tensor]  # name -> tensor [size, ...] on the device
    size: int  # samples
    normalisation_batch: int | None = None  # consecutive samples that a part may look at together; None: all
    # set if these samples are part of one group that several processes share; None: groups are whole
    shared: SharedGroup | None = None

    def group_mean(self, values: Tensor) -> Tensor:
        """Mean over a group of one number per sample, of which this process has [n]; a scalar."""
        mean = values.mean()
        return mean if self.shared is None else whole_mean(self.shared, mean)


class PhaseState:
    """State of a running phase: it gives carried values, and takes the observations that move them.

    Attributes:
        loss_scale: fp32 scalar tensor, for gradients taken inside a part; 1 unless the phase runs in fp16.
    """

    def __init__(self, values: Mapping[str, Tensor], loss_scale: Tensor, course: float | Tensor = 0.0) -> None:
        self._values = values
        self._observed: dict[str, tuple[Tensor, int]] = {}
        self.loss_scale = loss_scale
        self._course = course

    @property
    def course(self) -> Tensor:
        """How far settings with a final value have come on their way to it, from 0 to 1; fp32 scalar."""
        if not isinstance(self._course, Tensor):
            self._course = torch.full((), self._course, dtype=torch.float32, device=self.loss_scale.device)
        return self._course

    def between(self, first: float, final: float | None) -> float | Tensor:
        """Value on its way from the first to the final one, a number or an fp32 scalar; None: it stays the first."""
        return first if final is None else first + (final - first) * self.course

    def read(self, name: str) -> Tensor:
        """Value of carried state before this phase, in fp32, a scalar or [n]."""
        return self._values[name]

    def observe(self, name: str, mean: Tensor, samples: int) -> None:
        """Note the mean of a quantity, a scalar or [n], over `samples` samples of this micro-batch."""
        if name not in self._values:
            raise KeyError(f"the phase carries no state named {name!r}; it carries {sorted(self._values)}")
        value = mean.detach().float() * samples
        before = self._observed.get(name)
        self._observed[name] = (value, samples) if before is None else (before[0] + value, before[1] + samples)

    def sums(self) -> list[Tensor]:
        """Sums of the observations over samples, to be added up over several processes."""
        return [total.contiguous() for total, _ in self._observed.values()]

    def replace_sums(self, sums: list[Tensor], share: float) -> None:
        """Replace the sums that `sums` gave by those over several processes.

        Args:
            share: share of all samples that this process observed.
        """
        names = zip(self._observed.items(), sums, strict=True)
        self._observed = {name: (total, round(samples / share)) for (name, (_, samples)), total in names}

    def observed(self) -> dict[str, tuple[Tensor, int]]:
        """Name -> mean of the observations so far, and the number of their samples."""
        return {name: (total / samples, samples) for name, (total, samples) in self._observed.items()}


@dataclass(frozen=True)
class Replay:
    """Steps at which a phase sees the pictures of the step before again, changed; new ones wait for the next step."""

    every: int  # at steps every, 2*every ...; at least 2
    # the pictures of a source, name -> tensor on the host -> those that parts see; new tensors of the same shapes
    change: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]

    def __post_init__(self) -> None:
        if self.every < 2:
            raise ValueError(f"replay at every step {self.every}: expected at least 2")

    def due(self, step: int) -> bool:
        """Whether step `step`, counted from 0, repeats the one before it."""
        return step > 0 and step % self.every == 0

    def batch_of(self, step: int) -> int:
        """Number of the batch, counted from 0, that step `step` sees."""
        return step - step // self.every


Part = Callable[[Networks, MicroBatch, PhaseState], Terms]
"""One loss of a phase. Never calls `.item()` or backward, never branches on values (`autograd.grad` is fine)."""


@dataclass(frozen=True)
class Phase:
    """One kind of optimizer update inside a training step."""

    name: str  # "D_r1"
    updates: tuple[str, ...]  # networks whose parameters move; gradients flow into nothing else
    # networks that the phase runs: they are prepared, and their observations committed. Includes `updates`.
    uses: tuple[str, ...]
    optimizer: str  # name of its optimizer; phases may share one
    # independent losses, with a backward after each; a plan may ask for a single backward after all of them, which
    # takes more memory and is what the original programs do
    parts: tuple[Part, ...]
    draws: Draws = field(default_factory=dict)  # random inputs by name
    sources: tuple[str, ...] = ()  # data sources that it reads
    every: int = 1  # due at steps 0, every, 2*every ...
    repeats: int = 1  # updates in a row, each on fresh pictures and draws
    shared_data: bool = True  # reads the step's pictures; False (always with repeats): pictures of its own
    fraction: float = 1.0  # share of the batch that it sees
    # groups and micro-batches are smaller by `fraction` too: for losses that compare samples, in networks that do not
    # normalise over them
    smaller_groups: bool = False
    gain: float = 1.0  # multiplies the loss
    # the loss is the sum over the batch, not the mean, where an original differentiates a sum
    sums_over_batch: bool = False
    # networks of `updates` that do not move at present; the optimizer keeps its state for them
    frozen: tuple[str, ...] = ()
    replay: Replay | None = None  # steps on pictures seen before; None: each step has pictures of its own
    penalises_gradients: bool = False  # parts differentiate gradients
    learning_rate_dropout: bool = True  # False: the optimizer's learning-rate dropout is not applied
    # called once with masters and their gradients, after unscaling and before clipping
    grad_hook: Callable[[Networks], None] | None = None
    carried: Mapping[str, Carried] = field(default_factory=dict)  # state that it reads or moves, by name

    def __post_init__(self) -> None:
        if missing := set(self.updates) - set(self.uses):
            raise ValueError(f"phase {self.name} updates {sorted(missing)} but does not list them in `uses`")
        if self.repeats > 1 and self.shared_data and self.sources:
            raise ValueError(f"phase {self.name} repeats {self.repeats} times: each repeat needs its own pictures")
        if self.replay is not None and not self.shared_data:
            raise ValueError(f"phase {self.name}: expected shared data with a replay, which counts the step's pictures")
        if not self.parts or self.every < 1 or self.repeats < 1 or not 0 < self.fraction <= 1:
            raise ValueError(f"phase {self.name}: needs a part, every >= 1, repeats >= 1 and fraction in (0, 1]")

    @property
    def trainable(self) -> tuple[str, ...]:
        """Networks of `updates` that are not frozen."""
        return tuple(name for name in self.updates if name not in self.frozen)

    def due(self, step: int) -> bool:
        """Whether the phase runs in step `step`, counted from 0."""
        return step % self.every == 0

    def samples(self, batch: int) -> int:
        """Number of samples of a batch that one update sees."""
        return max(1, round(batch * self.fraction))  # 100 x 0.29 is 28.999… in floating point

    def group(self, group: int) -> int:
        """Samples that it looks at together where other phases look at `group`."""
        return self.samples(group) if self.smaller_groups else group

    def micro_batch(self, micro_batch: int, group: int) -> int:
        """Samples in one forward where other phases take `micro_batch`: as many groups of its own size."""
        return micro_batch // group * self.group(group) if self.smaller_groups else micro_batch
