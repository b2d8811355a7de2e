"""Layers with state, with weights made of masters, and with groups of samples that several processes may share.

Layers observe, and the engine commits what was observed together with the update.
"""

from __future__ import annotations

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
    """A layer that calls methods of `Ops`, or whose output is given to some.

    Attributes:
        asks: names of these methods: kernels for other ones are of no use to it.
        ops: what computes them; the engine sets it, for a layer cannot know what a card has.
    """

    asks: ClassVar[tuple[str, ...]] = ()
    ops: Ops = PLAIN


def use_ops(network: nn.Module, ops: Ops) -> None:
    """Let a network's layers compute by some operations."""
    for module in network.modules():
        if isinstance(module, UsesOps):
            module.ops = ops


# Layers whose gradients are differentiated in their turn.


class Penalised(nn.Module):
    """A layer that goes another way where a penalty on gradients differentiates it twice.

    Attributes:
        penalised: whether one does at present; the engine says it, for the phases that say so.
    """

    penalised: bool = False


@contextmanager
def penalised(networks: Iterable[nn.Module]) -> Iterator[None]:
    """Tell the layers of networks, while this is open."""
    layers = [module for network in networks for module in network.modules() if isinstance(module, Penalised)]
    for layer in layers:
        layer.penalised = True
    try:
        yield
    finally:
        for layer in layers:
            layer.penalised = False


# Copies that a verdict on the device may hold back, of many small tensors in four operations.


def copy_where(accepted: Tensor | None, targets: Sequence[Tensor], values: Tensor) -> None:
    """Copy values into tensors where accepted (a bool scalar on the device; None: always).

    Args:
        targets: of one dtype, on one device.
        values: for all of them, one after the other [numbers]; those that are not accepted are not even multiplied.
    """
    if accepted is not None:
        values = torch.where(accepted, values, flat(targets))
    parts = values.split([target.numel() for target in targets])
    foreach_copy_(list(targets), [part.view(to.shape) for part, to in zip(parts, targets, strict=True)])


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Elements of many tensors, one after the other [numbers]."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


# A normalisation group of which several processes hold a part each: what it asks of layers and parts.


class SharedGroup(Protocol):
    """The group that this process holds a part of.

    A forward sees this process's part of one group, or of several one after the other.

    Attributes:
        part: samples of the group that this process holds.
        samples: of the whole group.
    """

    @property
    def part(self) -> int:
        """Samples of the group that this process holds."""

    @property
    def samples(self) -> int:
        """Samples of the whole group."""

    def sum(self, own: Tensor) -> Tensor:
        """Sum of a tensor over the processes that share the group; differentiable, as often as one likes.

        All of them must come here with tensors of one shape, in the same order: what stands before it may depend on
        shapes, and never on values.
        """


def whole_mean(shared: SharedGroup, mean: Tensor) -> Tensor:
    """Mean over a group, of means over the parts of it; any shape."""
    return shared.sum(mean * (shared.part / shared.samples))


def whole_moments(shared: SharedGroup, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (over n) over a group, of those over the parts of it; any shape."""
    whole = whole_mean(shared, mean)
    return whole, whole_mean(shared, variance + (mean - whole).square())


# Layers with state, and how the engine moves it: they observe, and what was observed is committed with the update.


@dataclass
class _Observed:
    """Observations of one buffer."""

    values: list[Tensor]  # times their weights, not yet added up
    weight: float | Tensor  # of all of them together

    @property
    def total(self) -> Tensor:
        """Their sum, once they are added up."""
        (total,) = self.values
        return total


ROOM = 1 << 14
"""Numbers that an observer makes room for at once: 64 KiB."""


class Observer:
    """Collects what layers observe during one phase, until the engine commits or drops it.

    Attributes:
        recomputing: True while recompute runs a forward again; nothing is staged then.
    """

    def __init__(self) -> None:
        self.recomputing = False
        self._staged: dict[tuple[Stateful, str], _Observed] = {}
        self._room: Tensor | None = None

    def room(self, like: Tensor, count: int) -> Tensor:
        """Zeros [count] of the dtype of a tensor and beside it, for a kernel to leave what it observes in."""
        left = self._room
        if left is None or len(left) < count or (left.dtype, left.device) != (like.dtype, like.device):
            left = like.new_zeros(max(count, ROOM))
        self._room = left[count:]
        return left[:count]

    def leave_room(self) -> None:
        """Let `room` begin anew: what is to be repeated must not depend on how much was left of it."""
        self._room = None

    def stage(self, layer: Stateful, buffer: str, value: Tensor, weight: float = 1) -> None:
        """Add an observation of `buffer`; what is committed is the mean over all of them, by weight."""
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
        """Leave one value of each buffer: the first ones of all buffers, plus the second ones, and so on.

        Called after each micro-batch, so that every further one finds and leaves the same.
        """
        alike: dict[tuple[object, ...], list[_Observed]] = {}
        for each in self._staged.values():
            first = each.values[0]
            alike.setdefault((len(each.values), first.dtype, first.device), []).append(each)
        for same in alike.values():
            rounds = list(zip(*(each.values for each in same), strict=True))
            if len(rounds) == 1:
                continue
            total = flat(rounds[0])
            for values in rounds[1:]:
                total = total + flat(values)
            for each, part in zip(same, total.split([value.numel() for value in rounds[0]]), strict=True):
                each.values[:] = [part.view(each.values[0].shape)]

    def sums(self, device: torch.device) -> list[Tensor]:
        """Sums of what was observed, by weight, and then all weights [n]: to be added up over several processes."""
        self.add_up()
        totals = [each.total for each in self._staged.values()]
        totals = [total if total.is_floating_point() else total.float() for total in totals]
        weights = torch.tensor([float(each.weight) for each in self._staged.values()])
        return [*(each.contiguous() for each in totals), weights.to(device, non_blocking=True)]

    def replace_sums(self, sums: list[Tensor]) -> None:
        """Put other sums in the places of those that `sums` gave."""
        *totals, weights = sums
        replaced = zip(self._staged, totals, weights.unbind(), strict=True)
        self._staged = {key: _Observed([total], weight) for key, total, weight in replaced}

    @torch.no_grad()
    def commit(self, accepted: Tensor | None) -> None:
        """Move the buffers; where `accepted` (a bool scalar on the device) is False, leave them as they were."""
        self.add_up()
        together: dict[tuple[object, ...], list[tuple[Tensor, _Observed]]] = {}
        for (layer, buffer), each in self._staged.items():
            old: Tensor = getattr(layer, buffer)
            if type(layer).committed is Stateful.committed and old.is_floating_point():
                number = None if isinstance(each.weight, Tensor) else each.weight
                together.setdefault((layer.newest, number, old.dtype, old.device), []).append((old, each))
                continue
            observed = each.total / each.weight
            new = layer.committed(buffer, observed.to(old.dtype) if old.is_floating_point() else observed).to(old.dtype)
            old.copy_(new if accepted is None else torch.where(accepted, new, old))
        for (newest, *_), moved in together.items():
            _commit_together(moved, cast(float, newest), accepted)
        self._staged.clear()


def _commit_together(moved: list[tuple[Tensor, _Observed]], newest: float, accepted: Tensor | None) -> None:
    """Move buffers of one dtype by one weight of the newest."""
    olds = [old for old, _ in moved]
    observed = flat([each.total for _, each in moved])
    weight = moved[0][1].weight
    if isinstance(weight, Tensor):
        weight = flat([torch.as_tensor(each.weight).expand(each.total.numel()) for _, each in moved])
    observed = (observed if not isinstance(weight, Tensor) and weight == 1 else observed / weight).to(olds[0].dtype)
    copy_where(accepted, olds, observed if newest == 1 else torch.lerp(flat(olds), observed, newest))


class Stateful(nn.Module):
    """A layer with buffers that training moves. It never writes them: it observes, and the engine commits."""

    # set by the engine while a phase runs; None otherwise, and then nothing is observed
    observer: Observer | None = None
    newest: float = 1.0  # weight of what was observed in the next value of a buffer; the rest is its value so far

    def observe(self, buffer: str, value: Tensor, weight: float = 1) -> None:
        """Stage a new observation of a buffer; a no-op outside a phase."""
        if self.observer is not None:
            self.observer.stage(self, buffer, value, weight)

    def committed(self, buffer: str, observed: Tensor) -> Tensor:
        """Next value of a buffer, given the mean of what was observed. Default: moved towards it by `newest`."""
        return observed if self.newest == 1 else torch.lerp(getattr(self, buffer), observed, self.newest)


class GroupNormalised(Stateful):
    """A layer that normalises over samples, in exact groups whose size belongs to the recipe."""

    # samples per group; None: all samples of a forward are one group. Set by the engine.
    normalisation_batch: int | None = None
    # where other processes hold the rest of each group; None: groups are whole. Set by the engine.
    shared: SharedGroup | None = None
    can_share: ClassVar[bool] = False  # that the layer looks at `shared`; without it, ranks must have whole groups


class Reparametrised(Stateful):
    """A layer whose working weight is not its master parameter (spectral norm, equalised learning rate)."""

    reparametrised: ClassVar[tuple[str, ...]] = ("weight",)  # names of the parameters concerned

    def working_weight(self, name: str, master: Tensor) -> Tensor:
        """The weight to run with, differentiable with respect to `master`; fp32. Observes what shall move."""
        raise NotImplementedError(f"{type(self).__name__} must define working_weight")


def keeps_fp32(module: nn.Module) -> frozenset[str]:
    """Names of a module's own parameters that stay fp32 in every precision (attribute `fp32_parameters`).

    So do those of torch's own batch normalisation: with running statistics in fp32 it takes no others.
    """
    if isinstance(module, _NormBase):
        return frozenset(name for name, _ in module.named_parameters(recurse=False))
    return frozenset(getattr(module, "fp32_parameters", ()))


# Layers whose working weights are their masters divided by something each: spectral norm, equalised learning rates.
#
# The divisors of all such layers of a network are found together, in few operations, and each weight is then divided,
# cast and laid out in one.

Divisor = float | Tensor
"""A number, or a tensor that can be broadcast to the weight, with at least one dimension."""


@dataclass(frozen=True)
class ScaledWeight:
    """A weight whose divisor is wanted."""

    # layer, name: whose, and which
    layer: Scaled
    name: str
    master: Tensor  # fp32 (or more)


class Scaling:
    """Divisors of several weights, found together.

    Args:
        divisors: of each weight, in order.
    """

    def __init__(self, divisors: Sequence[Divisor]) -> None:
        self.divisors = divisors

    @classmethod
    def find(cls, weights: Sequence[ScaledWeight]) -> Self:
        """Find the divisors; layers observe what shall move. Called without gradients."""
        raise NotImplementedError(f"{cls.__name__} must define find")

    def divided(self, masters: Sequence[Tensor], dtypes: Sequence[torch.dtype], *, last: bool) -> dict[int, Tensor]:
        """Working weights that are found more cheaply here than one by one, by place.

        Called once, before weights move. Default: none are.

        Args:
            masters: of all, in order.
            dtypes: of all working weights.
            last: those of four axes shall be in channels-last.

        Returns:
            Matrices [outputs, inputs], or whole weights laid out as they shall be.
        """
        return {}

    def carry(
        self, masters: Sequence[Tensor], gradients: Sequence[Tensor | None], inverse_scale: Tensor | None = None
    ) -> list[Tensor | None]:
        """Gradients of masters, laid out like these, of those of working weights. Default: divisors are constants.

        Args:
            masters: as they were when the divisors were found, in order.
            gradients: of each working weight whose divisor is a tensor; None: none came.
            inverse_scale: multiplies every gradient, on the same way; None: nothing does.
        """
        given = [i for i, gradient in enumerate(gradients) if gradient is not None]
        divisors = [cast(Tensor, self.divisors[i]) for i in given]
        if inverse_scale is not None and given:
            divisors = list(foreach_div(divisors, inverse_scale))
        carried: list[Tensor | None] = [None] * len(masters)
        for i, divisor in zip(given, divisors, strict=True):
            carried[i] = torch.div(cast(Tensor, gradients[i]), divisor, out=torch.empty_like(masters[i]))
        return carried


class Scaled(Reparametrised):
    """A layer whose working weight is its master divided by something."""

    scaling: ClassVar[type[Scaling]]  # what finds the divisors

    def alike(self) -> Hashable:
        """Layers of which this is equal may find their divisors together."""
        return ()

    def working_weight(self, name: str, master: Tensor) -> Tensor:
        """Working weight of this layer alone; divisors are held constant."""
        scaling = self.scaling.find([ScaledWeight(self, name, master.detach())])
        return master / scaling.divisors[0]


# Layers that use sums of squares of their working weight beside it: these too are made once for a whole phase.
#
# What flows to the weight through them is added to its gradient once, after the last backward.

SQUARES = "squares"
"""Name under which they stand among a layer's parameters while a phase runs."""


class SumsSquares(nn.Module):
    """A layer with sums of the squares of its `weight` [O, I, k, k]."""

    weight: Tensor
    squares_factor: float = 1.0  # multiplies them

    def summed_squares(self) -> Tensor:
        """factor·Σw² [O, I], fp32 or more: those of the phase, or else found here."""
        squares = self._parameters.get(SQUARES)
        if squares is None:
            return sums_of_squares(self.weight) * self.squares_factor
        return cast(Tensor, squares)

    def gradient_factor(self) -> float:
        """Factor of the weight times the sums' gradient in the weight's gradient."""
        return 2 * self.squares_factor


def sums_of_squares(weight: Tensor) -> Tensor:
    """[O, I, k, k] -> [O, I], in fp32 or more; differentiable."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32)).square().sum((2, 3))


@torch.no_grad()
def squares_of(layers: list[SumsSquares]) -> list[Tensor]:
    """Sums of squares of many layers, with their factors and without a gradient; one kernel a layer and one for all."""
    # On a CPU torch's norm takes up to 80 times as long, for weights that lie channels last.
    if all(cpu_ways.taken_for(layer.weight) for layer in layers):
        sums = [sums_of_squares(layer.weight) for layer in layers]
        foreach_mul_(sums, [layer.squares_factor for layer in layers])
        return sums
    return squares_by_norms(layers)


@torch.no_grad()
def squares_by_norms(layers: list[SumsSquares]) -> list[Tensor]:
    """Sums of squares as a card finds them: one kernel a layer, without squares of the whole weight in between."""
    norms = [
        torch.linalg.vector_norm(layer.weight, dim=(2, 3), dtype=torch.promote_types(layer.weight.dtype, torch.float32))
        for layer in layers
    ]
    foreach_mul_(norms, [layer.squares_factor**0.5 for layer in layers])
    foreach_mul_(norms, norms)
    return norms
