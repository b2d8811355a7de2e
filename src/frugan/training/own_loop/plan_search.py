"""Which blocks of a module can be recomputed, and which plan of its step is the fastest that fits."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from frugan.accelerator.precision import DTYPES, Precision
from frugan.planning.predictions import why_refused
from frugan.stepmemory.calibration import choose_card
from frugan.stepmemory.cards import Card
from frugan.training.own_loop.dataless_step import Taken, Task
from frugan.training.own_loop.module_step import ModulePlan


def recomputable(model: nn.Module) -> tuple[str, ...]:
    """Names of a model's blocks: what its lists and sequences hold, or sequences of single layers as a whole."""
    return tuple(_blocks(model, ""))


def _blocks(module: nn.Module, name: str) -> Iterator[str]:
    children = [(f"{name}.{child}".lstrip("."), child_module) for child, child_module in module.named_children()]
    in_order = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
    if (
        isinstance(module, nn.Sequential)
        and name
        and not any(_is_composite(child_module) for _, child_module in children)
    ):
        if any(True for _ in module.parameters()):
            yield name
        return
    for child, child_module in children:
        if not in_order or isinstance(child_module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            yield from _blocks(child_module, child)
        elif _is_composite(child_module):
            yield child


def _is_composite(module: nn.Module) -> bool:
    return any(True for _ in module.children())


# The plans that there are, and the choice.


@dataclass(frozen=True)
class Search:
    """Chooses among the plans of a step."""

    task: Task  # the step
    batch: int  # samples of it
    together: int | None  # samples of each forward; None: any number
    candidates: tuple[str, ...]  # names of blocks that would be recomputed, if torch can
    card: Card | None  # where it would run; None: on a CPU
    equal_parts: bool = False  # all forwards take as many samples
    precision: Precision = field(default_factory=lambda: Precision("fp32", DTYPES["fp32"], "asked for"))
    refused: dict[str, str] = field(
        default_factory=dict
    )  # block that cannot be recomputed -> why; known after `blocks`
    _known: dict[tuple[str, int, tuple[str, ...]], Taken] = field(default_factory=dict)

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks that can be recomputed: run again, they do and save the same.

        A block that appends to a list or a cache that others read does not.
        """
        return self._recomputable(self.candidates)

    def _recomputable(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of some blocks that can be recomputed together, found by halves."""
        try:
            if names:
                self.taken(self.sizes[0], names)
        except RuntimeError as error:
            if len(names) == 1:
                self.refused[names[0]] = why_refused(error)
                return ()
        else:
            return names
        half = len(names) // 2
        first, second = self._recomputable(names[:half]), self._recomputable(names[half:])
        together = (*first, *second)
        try:
            if first and second:
                self.taken(self.sizes[0], together)
        except RuntimeError as error:
            self.refused.update(dict.fromkeys(second, why_refused(error)))
            return first
        return together

    @property
    def sizes(self) -> list[int]:
        """Micro-batches worth trying, smallest first."""
        if self.together is not None:
            return [self.together]
        if self.equal_parts:
            return [size for size in range(1, self.batch + 1) if self.batch % size == 0]
        counts = [factor * 2**i for i in range(self.batch.bit_length()) for factor in (1, 3)]
        return sorted({-(-self.batch // parts) for parts in counts if parts <= self.batch} | {1})

    def plan(self, micro_batch: int, recompute: tuple[str, ...]) -> ModulePlan:
        """Return the plan with this micro-batch and these recomputed blocks, in the precision of the search."""
        return ModulePlan(self.batch, micro_batch, self.precision, recompute)

    def taken(self, micro_batch: int, recompute: tuple[str, ...]) -> Taken:
        """Return memory and operations of a plan, measured on tensors without data."""
        key = (self.precision.name, micro_batch, recompute)
        if key not in self._known:
            self._known[key] = self.task.run(self.plan(micro_batch, recompute))
        return self._known[key]

    def seconds(self, micro_batch: int, recompute: tuple[str, ...]) -> float:
        """Return the predicted seconds of a step, by which plans are compared."""
        card = self.card or choose_card(None, torch.device("cpu"))
        return card.compared_seconds(self.taken(micro_batch, recompute).work, self.precision)

    def within(self, limit_bytes: int) -> tuple[int, tuple[str, ...]] | None:
        """Return the fastest plan whose allocator reserves at most a limit; None: there is none."""
        found = []
        for recompute in dict.fromkeys([(), self.blocks]):
            size = self._largest(limit_bytes, recompute)
            if size is not None:
                found.append((size, recompute))
            if size == self.sizes[-1]:
                break  # nothing is won by recomputing
        return min(found, key=lambda way: self.seconds(*way)) if found else None

    def _largest(self, limit_bytes: int, recompute: tuple[str, ...]) -> int | None:
        """Return the largest micro-batch that fits, by bisection; None: none does."""
        sizes = self.sizes
        least, most = 0, len(sizes)
        tried = most - 1  # which is often the answer
        while least < most:
            if self.taken(sizes[tried], recompute).reserved_bytes <= limit_bytes:
                least = tried + 1
            else:
                most = tried
            tried = (least + most) // 2
        return sizes[least - 1] if least else None

    def least(self) -> tuple[int, tuple[str, ...]]:
        """Return the plan that reserves the least memory."""
        ways = [(self.sizes[0], recompute) for recompute in dict.fromkeys([(), self.blocks])]
        return min(ways, key=lambda way: self.taken(*way).reserved_bytes)
