"""Layers with state, and how the engine moves it: they observe, and what was observed is committed with the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from frugan.contract.gated_copy import copy_where, flat
from frugan.contract.shared_group import SharedGroup


@dataclass
class _Observed:
    """Observations of one buffer.

    Attributes:
        values: times their weights, not yet added up.
        weight: of all of them together.
    """

    values: list[Tensor]
    weight: float | Tensor

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
        for found in alike.values():
            rounds = list(zip(*(each.values for each in found), strict=True))
            if len(rounds) == 1:
                continue
            total = flat(rounds[0])
            for values in rounds[1:]:
                total = total + flat(values)
            for each, part in zip(found, total.split([value.numel() for value in rounds[0]]), strict=True):
                each.values[:] = [part.view(each.values[0].shape)]

    def sums(self, device: torch.device) -> list[Tensor]:
        """Sums of what was observed, by weight, and then all weights [n]: to be added up over several processes."""
        self.add_up()
        found = [each.total for each in self._staged.values()]
        found = [total if total.is_floating_point() else total.float() for total in found]
        weights = torch.tensor([float(each.weight) for each in self._staged.values()])
        return [*(each.contiguous() for each in found), weights.to(device, non_blocking=True)]

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
    """A layer with buffers that training moves. It never writes them: it observes, and the engine commits.

    Attributes:
        observer: set by the engine while a phase runs; None otherwise, and then nothing is observed.
        newest: weight of what was observed in the next value of a buffer; the rest is its value so far.
    """

    observer: Observer | None = None
    newest: float = 1.0

    def observe(self, buffer: str, value: Tensor, weight: float = 1) -> None:
        """Stage a new observation of a buffer; a no-op outside a phase."""
        if self.observer is not None:
            self.observer.stage(self, buffer, value, weight)

    def committed(self, buffer: str, observed: Tensor) -> Tensor:
        """Next value of a buffer, given the mean of what was observed. Default: moved towards it by `newest`."""
        return observed if self.newest == 1 else torch.lerp(getattr(self, buffer), observed, self.newest)


class GroupNormalised(Stateful):
    """A layer that normalises over samples, in exact groups whose size belongs to the recipe.

    Attributes:
        normalisation_batch: samples per group; None: all samples of a forward are one group. Set by the engine.
        shared: where other processes hold the rest of each group; None: groups are whole. Set by the engine.
        can_share: that the layer looks at `shared`; without it, ranks must have whole groups.
    """

    normalisation_batch: int | None = None
    shared: SharedGroup | None = None
    can_share: ClassVar[bool] = False


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
