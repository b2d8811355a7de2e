"""Layers with state, with working weights made of masters, and with groups of samples that processes may share.

Layers only observe; the engine commits their observations together with the update.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from frugan.contract import cpu_ways
from frugan.contract.ops import PLAIN, Ops
from frugan.torch_internals import foreach_copy_, foreach_div, foreach_mul_

# Layers that compute by operations for which there may be kernels.


class UsesOps(nn.Module):
    """A layer that calls methods of `Ops`, or whose output goes into some.

    Attributes:
        asks: names of these methods; kernels for other methods are of no use to the layer.
        ops: operations to compute by; the engine sets them, as a layer cannot know what a card has.
    """

    asks: ClassVar[tuple[str, ...]] = ()
    ops: Ops = PLAIN


def use_ops(network: nn.Module, ops: Ops) -> None:
    """Let all layers of a network compute by these operations."""
    for module in network.modules():
        if isinstance(module, UsesOps):
            module.ops = ops


# Layers whose gradients are differentiated once more.


class Penalised(nn.Module):
    """A layer that computes in another way where a penalty on gradients differentiates it twice.

    Attributes:
        penalised: whether one does at present; the engine sets it for phases with `penalises_gradients`.
    """

    penalised: bool = False


@contextmanager
def penalised(networks: Iterable[nn.Module]) -> Iterator[None]:
    """Set `penalised` in all layers of the networks while the context is open."""
    layers = [module for network in networks for module in network.modules() if isinstance(module, Penalised)]
    for layer in layers:
        layer.penalised = True
    try:
        yield
    finally:
        for layer in layers:
            layer.penalised = False


# Copies into many small tensors in four operations, unless a verdict on the device says no.


def copy_where(accepted: Tensor | None, targets: Sequence[Tensor], values: Tensor) -> None:
    """Copy values into tensors if `accepted`, without waiting for the device.

    Args:
        accepted: a bool scalar on the device; None: always.
        targets: tensors of one dtype, on one device.
        values: elements for all targets, one after the other [numbers]; they may be NaN where not accepted.
    """
    if accepted is not None:
        values = torch.where(accepted, values, flat(targets))
    parts = values.split([target.numel() for target in targets])
    foreach_copy_(list(targets), [part.view(to.shape) for part, to in zip(parts, targets, strict=True)])


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Elements of many tensors, one after the other [numbers]."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


# Normalisation groups of which several processes hold a part each.


class SharedGroup(Protocol):
    """A group of samples of which this process holds a part.

    A forward sees this process's part of one group, or of several groups one after the other.
    """

    @property
    def part(self) -> int:
        """Samples of the group that this process holds."""

    @property
    def samples(self) -> int:
        """Samples of the whole group."""

    def sum(self, values: Tensor) -> Tensor:
        """Sum of a tensor over the processes that share the group, differentiable any number of times.

        All of them must call this with tensors of one shape, in the same order: whether it is called may depend on
        shapes, never on values.
        """


def whole_mean(shared: SharedGroup, mean: Tensor) -> Tensor:
    """Mean over a group from the mean over this process's part; any shape."""
    return shared.sum(mean * (shared.part / shared.samples))


def whole_moments(shared: SharedGroup, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (over n) over a group from those over this process's part; any shape."""
    whole = whole_mean(shared, mean)
    return whole, whole_mean(shared, variance + (mean - whole).square())


# Layers with state, and how the engine moves it: layers observe, and it commits the observations with the update.


@dataclass
class _Observed:
    """Observations of one buffer."""

    values: list[Tensor]  # observations times their weights, not yet added up
    weight: float | Tensor  # sum of all weights

    @property
    def total(self) -> Tensor:
        """Sum of the observations, after `Observer.add_up`."""
        (total,) = self.values
        return total


ROOM = 1 << 14
"""Elements that an observer allocates at once: 64 KiB."""


class Observer:
    """Collects the observations of layers during one phase, until the engine commits or drops them.

    Attributes:
        recomputing: True while recompute runs a forward again; nothing is staged then.
    """

    def __init__(self) -> None:
        self.recomputing = False
        self._staged: dict[tuple[Stateful, str], _Observed] = {}
        self._room: Tensor | None = None

    def room(self, like: Tensor, count: int) -> Tensor:
        """Zeros [count] of a tensor's dtype on its device, for a kernel to write observations into."""
        left = self._room
        if left is None or len(left) < count or (left.dtype, left.device) != (like.dtype, like.device):
            left = like.new_zeros(max(count, ROOM))
        self._room = left[count:]
        return left[:count]

    def leave_room(self) -> None:
        """Let `room` allocate anew, so that a repetition does not depend on how much room was left."""
        self._room = None

    def stage(self, layer: Stateful, buffer: str, value: Tensor, weight: float = 1) -> None:
        """Add an observation of `buffer`; the mean over all of them, by weight, will be committed."""
        if self.recomputing:
            return
        value = value.detach() * weight if weight != 1 else value.detach()
        known = self._staged.get((layer, buffer))
        if known is None:
            self._staged[layer, buffer] = _Observed([value], weight)
            return
        known.values.append(value)
        known.weight = known.weight + weight

    @torch.no_grad()
    def add_up(self) -> None:
        """Add up the observations of each buffer, for all buffers at once: their first values, the second, and so on.

        Called after each micro-batch, so that each of them begins and ends with one value of each buffer.
        """
        alike: dict[tuple[object, ...], list[_Observed]] = {}
        for observed in self._staged.values():
            first = observed.values[0]
            alike.setdefault((len(observed.values), first.dtype, first.device), []).append(observed)
        for buffers in alike.values():
            rounds = list(zip(*(observed.values for observed in buffers), strict=True))
            if len(rounds) == 1:
                continue
            total = flat(rounds[0])
            for values in rounds[1:]:
                total = total + flat(values)
            for observed, part in zip(buffers, total.split([value.numel() for value in rounds[0]]), strict=True):
                observed.values[:] = [part.view(observed.values[0].shape)]

    def sums(self, device: torch.device) -> list[Tensor]:
        """Weighted sums of the observations, and then all weights [n], to be added up over several processes."""
        self.add_up()
        totals = [observed.total for observed in self._staged.values()]
        totals = [total if total.is_floating_point() else total.float() for total in totals]
        weights = torch.tensor([float(observed.weight) for observed in self._staged.values()])
        return [*(total.contiguous() for total in totals), weights.to(device, non_blocking=True)]

    def replace_sums(self, sums: list[Tensor]) -> None:
        """Replace the sums and weights that `sums` gave."""
        *totals, weights = sums
        replaced = zip(self._staged, totals, weights.unbind(), strict=True)
        self._staged = {key: _Observed([total], weight) for key, total, weight in replaced}

    @torch.no_grad()
    def commit(self, accepted: Tensor | None) -> None:
        """Move the buffers; where `accepted` (a bool scalar on the device) is False, leave them as they were."""
        self.add_up()
        together: dict[tuple[object, ...], list[tuple[Tensor, _Observed]]] = {}
        for (layer, buffer), observed in self._staged.items():
            old: Tensor = getattr(layer, buffer)
            if type(layer).committed is Stateful.committed and old.is_floating_point():
                number = None if isinstance(observed.weight, Tensor) else observed.weight
                together.setdefault((layer.newest, number, old.dtype, old.device), []).append((old, observed))
                continue
            mean = observed.total / observed.weight
            new = layer.committed(buffer, mean.to(old.dtype) if old.is_floating_point() else mean).to(old.dtype)
            old.copy_(new if accepted is None else torch.where(accepted, new, old))
        for (newest, *_), buffers in together.items():
            _commit_together(buffers, cast(float, newest), accepted)
        self._staged.clear()


def _commit_together(buffers: list[tuple[Tensor, _Observed]], newest: float, accepted: Tensor | None) -> None:
    """Move buffers of one dtype that have the same `Stateful.newest`."""
    olds = [old for old, _ in buffers]
    means = flat([observed.total for _, observed in buffers])
    weight = buffers[0][1].weight
    if isinstance(weight, Tensor):
        weight = flat([torch.as_tensor(observed.weight).expand(observed.total.numel()) for _, observed in buffers])
    means = (means if not isinstance(weight, Tensor) and weight == 1 else means / weight).to(olds[0].dtype)
    copy_where(accepted, olds, means if newest == 1 else torch.lerp(flat(olds), means, newest))


class Stateful(nn.Module):
    """A layer with buffers that training moves. It never writes them: it observes, and the engine commits."""

    # set by the engine while a phase runs; None otherwise, and then nothing is observed
    observer: Observer | None = None
    newest: float = 1.0  # weight of the observations in a buffer's next value; the rest is its value so far

    def observe(self, buffer: str, value: Tensor, weight: float = 1) -> None:
        """Stage a new observation of a buffer; a no-op outside a phase."""
        if self.observer is not None:
            self.observer.stage(self, buffer, value, weight)

    def committed(self, buffer: str, observed: Tensor) -> Tensor:
        """Next value of a buffer, given the mean of its observations. Default: moved towards it by `newest`."""
        return observed if self.newest == 1 else torch.lerp(getattr(self, buffer), observed, self.newest)


class GroupNormalised(Stateful):
    """A layer that normalises over samples, in exact groups whose size is part of the recipe."""

    # samples per group; None: all samples of a forward are one group. Set by the engine.
    normalisation_batch: int | None = None
    # where other processes hold the rest of each group; None: groups are whole. Set by the engine.
    shared: SharedGroup | None = None
    can_share: ClassVar[bool] = False  # whether the layer heeds `shared`; without it, ranks must have whole groups


class Reparametrised(Stateful):
    """A layer whose working weight is not its master parameter (spectral norm, equalised learning rate)."""

    reparametrised: ClassVar[tuple[str, ...]] = ("weight",)  # names of the parameters concerned

    def working_weight(self, name: str, master: Tensor) -> Tensor:
        """Weight to run with, in fp32, differentiable with respect to `master`. Observes what it moves."""
        raise NotImplementedError(f"{type(self).__name__} must define working_weight")


def keeps_fp32(module: nn.Module) -> frozenset[str]:
    """Names of a module's direct parameters that stay fp32 in every precision (attribute `fp32_parameters`).

    Parameters of torch's own batch normalisation do so as well: with running statistics in fp32 it takes no others.
    """
    if isinstance(module, _NormBase):
        return frozenset(name for name, _ in module.named_parameters(recurse=False))
    return frozenset(getattr(module, "fp32_parameters", ()))


# Layers whose working weights are their masters, each divided by something: spectral norm, equalised learning rates.
#
# The divisors of all such layers of a network are found together in few operations. Each weight is then divided, cast
# and laid out in a single one.

Divisor = float | Tensor
"""A number, or a tensor that can be broadcast to the weight, with at least one dimension."""


@dataclass(frozen=True)
class ScaledWeight:
    """A weight whose divisor is wanted."""

    layer: Scaled
    name: str  # name of the parameter in the layer
    master: Tensor  # fp32 (or more)


class Scaling:
    """Divisors of several weights, found together.

    Args:
        divisors: divisor of each weight, in order.
    """

    def __init__(self, divisors: Sequence[Divisor]) -> None:
        self.divisors = divisors

    @classmethod
    def find(cls, weights: Sequence[ScaledWeight]) -> Self:
        """Find the divisors, and let layers observe what moves by it. Called without gradients."""
        raise NotImplementedError(f"{cls.__name__} must define find")

    def divided(self, masters: Sequence[Tensor], dtypes: Sequence[torch.dtype], *, last: bool) -> dict[int, Tensor]:
        """Divide those weights for which it is cheaper than one by one. Called once, before weights move.

        Args:
            masters: all masters, in order.
            dtypes: data type of each working weight.
            last: weights of four axes shall be laid out in channels-last.

        Returns:
            Working weights by position: matrices [outputs, inputs], or whole weights in their final layout. Default:
            none.
        """
        return {}

    def carry(
        self, masters: Sequence[Tensor], gradients: Sequence[Tensor | None], inverse_scale: Tensor | None = None
    ) -> list[Tensor | None]:
        """Turn gradients of working weights into those of masters, laid out like these.

        Default: divisors are constants.

        Args:
            masters: masters as they were when the divisors were found, in order.
            gradients: gradient of each working weight whose divisor is a tensor; None: it has none.
            inverse_scale: multiplies every gradient on the way; None: nothing does.
        """
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        divisors = [cast(Tensor, self.divisors[i]) for i in present]
        if inverse_scale is not None and present:
            divisors = list(foreach_div(divisors, inverse_scale))
        carried: list[Tensor | None] = [None] * len(masters)
        for i, divisor in zip(present, divisors, strict=True):
            carried[i] = torch.div(cast(Tensor, gradients[i]), divisor, out=torch.empty_like(masters[i]))
        return carried


class Scaled(Reparametrised):
    """A layer whose working weight is its master divided by something."""

    scaling: ClassVar[type[Scaling]]  # class that finds the divisors

    def alike(self) -> Hashable:
        """Key of the layers that may find their divisors together."""
        return ()

    def working_weight(self, name: str, master: Tensor) -> Tensor:
        """Find the working weight of this layer alone; its divisor is held constant."""
        scaling = self.scaling.find([ScaledWeight(self, name, master.detach())])
        return master / scaling.divisors[0]


# Layers that use the sums of squares of their working weight: these too are computed once for a whole phase.
#
# The gradient that reaches the weight through them is added once, after the last backward.

SQUARES = "squares"
"""Name of the sums among a layer's parameters while a phase runs."""


class SumsSquares(nn.Module):
    """A layer that uses the sums of squares of its `weight` [O, I, k, k]."""

    weight: Tensor
    squares_factor: float = 1.0  # multiplies the sums

    def summed_squares(self) -> Tensor:
        """factor·Σw² [O, I] in fp32 or more, computed for the phase, or here outside of one."""
        squares = self._parameters.get(SQUARES)
        if squares is None:
            return sums_of_squares(self.weight) * self.squares_factor
        return cast(Tensor, squares)

    def gradient_factor(self) -> float:
        """Factor of (weight times the sums' gradient) in the weight's gradient."""
        return 2 * self.squares_factor


def sums_of_squares(weight: Tensor) -> Tensor:
    """[O, I, k, k] -> [O, I] in fp32 or more, differentiable."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32)).square().sum((2, 3))


@torch.no_grad()
def largest_in(weight: Tensor) -> Tensor:
    """Largest absolute value of each output channel: [O, I, k, k] -> [O]."""
    if cpu_ways.taken_for(weight):  # there the norm takes eight times as long as these two
        return torch.maximum(weight.amax((1, 2, 3)), -weight.amin((1, 2, 3)))
    largest: Tensor = torch.linalg.vector_norm(weight, math.inf, (1, 2, 3))
    return largest


@torch.no_grad()
def squares_of(layers: list[SumsSquares]) -> list[Tensor]:
    """Sums of squares of many layers, times their factors, without a gradient; one kernel per layer and one for all."""
    # On a CPU torch's norm takes up to 80 times as long for weights in channels-last.
    if all(cpu_ways.taken_for(layer.weight) for layer in layers):
        sums = [sums_of_squares(layer.weight) for layer in layers]
        foreach_mul_(sums, [layer.squares_factor for layer in layers])
        return sums
    return squares_by_norms(layers)


@torch.no_grad()
def squares_by_norms(layers: list[SumsSquares]) -> list[Tensor]:
    """Sums of squares as a card computes them: one kernel per layer, without the squares of the whole weight."""
    norms = [
        torch.linalg.vector_norm(layer.weight, dim=(2, 3), dtype=torch.promote_types(layer.weight.dtype, torch.float32))
        for layer in layers
    ]
    foreach_mul_(norms, [layer.squares_factor**0.5 for layer in layers])
    foreach_mul_(norms, norms)
    return norms
