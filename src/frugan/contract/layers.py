"""Layers with state, and how the engine moves it: they observe, and what was observed is committed with the update."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from frugan.contract.shared_group import SharedGroup


class Observer:
    """Collects what layers observe during one phase, until the engine commits or drops it.

    Attributes:
        recomputing: True while recompute runs a forward again; nothing is staged then.
    """

    def __init__(self) -> None:
        self.recomputing = False
        self._staged: dict[tuple[Stateful, str], tuple[Tensor, float | Tensor]] = {}

    def stage(self, layer: Stateful, buffer: str, value: Tensor, weight: float = 1) -> None:
        """Add an observation of `buffer`; what is committed is the mean over all of them, by weight."""
        if self.recomputing:
            return
        value = value.detach() * weight if weight != 1 else value.detach()
        before = self._staged.get((layer, buffer))
        self._staged[layer, buffer] = (value, weight) if before is None else (before[0] + value, before[1] + weight)

    def sums(self, device: torch.device) -> list[Tensor]:
        """Sums of what was observed, by weight, and then all weights [n]: to be added up over several processes."""
        found = [total if total.is_floating_point() else total.float() for total, _ in self._staged.values()]
        weights = torch.tensor([float(weight) for _, weight in self._staged.values()])
        return [*(each.contiguous() for each in found), weights.to(device, non_blocking=True)]

    def replace_sums(self, sums: list[Tensor]) -> None:
        """Put other sums in the places of those that `sums` gave."""
        *totals, weights = sums
        self._staged = dict(zip(self._staged, zip(totals, weights.unbind(), strict=True), strict=True))

    @torch.no_grad()
    def commit(self, accepted: Tensor | None) -> None:
        """Move the buffers; where `accepted` (a bool scalar on the device) is False, leave them as they were."""
        for (layer, buffer), (total, weight) in self._staged.items():
            old = getattr(layer, buffer)
            observed = total / weight if isinstance(weight, Tensor) or weight != 1 else total
            new = layer.committed(buffer, observed.to(old.dtype) if old.is_floating_point() else observed).to(old.dtype)
            old.copy_(new if accepted is None else torch.where(accepted, new, old))
        self._staged.clear()


class Stateful(nn.Module):
    """A layer with buffers that training moves. It never writes them: it observes, and the engine commits.

    Attributes:
        observer: set by the engine while a phase runs; None otherwise, and then nothing is observed.
    """

    observer: Observer | None = None

    def observe(self, buffer: str, value: Tensor, weight: float = 1) -> None:
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
        shared: where other processes hold the rest of each group; None: groups are whole. Set by the engine.
    """

    normalisation_batch: int | None = None
    shared: SharedGroup | None = None


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
