"""Which blocks of a module can be recomputed, and which plan of its step is the fastest that fits."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from frugan.accelerator.precision import DTYPES, Precision
from frugan.planning.predictions import why_refused
from frugan.stepmemory.calibration import choose_card
from frugan.stepmemory.cards import Card
from frugan.stepmemory.tracker import tensors_of
from frugan.training.own_loop.dataless_step import Taken, Task
from frugan.training.own_loop.half_precision import Autocast
from frugan.training.own_loop.module_step import ModulePlan
from frugan.training.own_loop.recompute import block_named
from frugan.training.own_loop.split_check import SAMPLES, SplitCheck, check_split

MOST_MACS = 1e11
"""Largest number of multiply-accumulates of a look at a few samples that a plan on a CPU takes: some seconds."""
LISTS = nn.ModuleList | nn.ModuleDict | nn.Sequential

Way = tuple[int, tuple[str, ...]]
"""A plan of a step in one precision: samples of a forward, and names of the blocks that are recomputed."""


def recomputable(model: nn.Module) -> tuple[str, ...]:
    """Names of a model's blocks: what its lists and sequences hold, or sequences of single layers as a whole.

    Where a block is a stage, which holds a list of several blocks of one class itself (a U-Net's levels, Swin's
    stages), those are taken in its place: less is made again at once.
    """
    known = {name for name, _ in model.named_modules()}  # one that stands in several places has one name here
    return tuple(name for name in _blocks(model, "") if name in known)


def _blocks(module: nn.Module, name: str, in_stage: bool = False) -> Iterator[str]:
    children = [(f"{name}.{child}".lstrip("."), child_module) for child, child_module in module.named_children()]
    in_order = isinstance(module, LISTS)
    if (
        isinstance(module, nn.Sequential)
        and name
        and not any(_is_composite(child_module) for _, child_module in children)
    ):
        if any(True for _ in module.parameters()):
            yield name
        return
    for child, child_module in children:
        if not in_order or isinstance(child_module, LISTS) or _is_stage(child_module):
            yield from _blocks(child_module, child, in_stage or _is_stage(child_module))
        elif _is_composite(child_module) and not (in_stage and _is_one_layer(child_module)):
            yield child


def _is_stage(module: nn.Module) -> bool:
    lists = [child.children() for child in module.children() if isinstance(child, nn.ModuleList | nn.Sequential)]
    counts = [Counter(type(block) for block in blocks if _is_composite(block)) for blocks in lists]
    return any(number > 1 for blocks in counts for number in blocks.values())


def _is_composite(module: nn.Module) -> bool:
    return any(True for _ in module.children())


def _is_one_layer(module: nn.Module) -> bool:
    """Return whether a single layer is inside, which saves its input alone: as in what halves a stage's size."""
    return len([layer for layer in module.modules() if not _is_composite(layer)]) == 1


# The plans that there are, and the choice.


def boundary(reserved: Callable[[int], int], low: int, high: int, limit_bytes: int) -> int:
    """Return the largest number whose bytes are within a limit, from one that is (`low`) to one that is not (`high`).

    Bytes grow nearly along a line: each try is where the line between the two meets the limit, and each third halves.
    """
    tries = 0
    while high - low > 1:
        least, most = reserved(low), reserved(high)
        tries += 1
        share = (limit_bytes - least) / (most - least) if tries % 3 and least <= limit_bytes < most else 0.5
        tried = min(high - 1, max(low + 1, low + int(share * (high - low))))
        if reserved(tried) <= limit_bytes:
            low = tried
        else:
            high = tried
    return low


@dataclass(frozen=True)
class Search:
    """Chooses among the plans of a step."""

    task: Task  # the step
    batch: int  # samples of it
    together: int | None  # samples of each forward; None: any number
    candidates: tuple[str, ...]  # names of blocks that would be recomputed, if torch can
    card: Card | None  # where it would run; None: on a CPU
    equal_parts: bool = False  # all forwards take as many samples
    by_hand: int | None = None  # samples of each forward, as asked for; None: that was left open
    precision: Precision = field(default_factory=lambda: Precision("fp32", DTYPES["fp32"], "asked for"))
    refused: dict[str, str] = field(
        default_factory=dict
    )  # block that cannot be recomputed -> why; known after `blocks`
    split: SplitCheck | None = None  # whether parts of a batch give its loss; None: it was not looked at
    _known: dict[tuple[str, bool, int, tuple[str, ...]], Taken] = field(default_factory=dict)

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks that can be recomputed: run again, they do and save the same.

        A block that appends to a list or a cache that others read does not.
        """
        return self._recomputable(self.candidates)

    def _recomputable(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of some blocks that can be recomputed together, found class by class."""
        if not names or self._refusal(names) is None:
            return names
        classes: defaultdict[type[nn.Module], list[str]] = defaultdict(list)
        for name in names:
            classes[type(block_named(self.task.model, name))].append(name)
        kept: set[str] = set()
        for of_class in classes.values():
            more = self._of_class(tuple(of_class))
            together = tuple(name for name in names if name in kept or name in more)
            if more and (reason := self._refusal(together)) is not None:
                self.refused.update(dict.fromkeys(more, reason))
            else:
                kept |= {*more}
        return tuple(name for name in names if name in kept)

    def _of_class(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those that can be recomputed of blocks of one class: none where neither the first nor the last can."""
        if (reason := self._refusal(names)) is None:
            return names
        if all(self._refusal((name,)) for name in {names[0]: None, names[-1]: None}):
            self.refused.update(dict.fromkeys(names, reason))
            return ()
        half = len(names) // 2
        first, second = self._of_class(names[:half]), self._of_class(names[half:])
        if first and second and (reason := self._refusal((*first, *second))) is not None:
            self.refused.update(dict.fromkeys(second, reason))
            return first
        return (*first, *second)

    def _refusal(self, names: tuple[str, ...]) -> str | None:
        """Return why blocks cannot be recomputed together; None: they can."""
        try:
            self.taken(self.sizes[0], names)
        except RuntimeError as error:
            return why_refused(error)
        return None

    def checked(self) -> "Search":
        """Look whether parts of the batch give its loss, and return the search that splits it only then."""
        task = self.task
        macs = self.taken(self.sizes[-1], ()).work.macs * SAMPLES / self.batch
        has_data = task.device.type != "meta" and not any(tensor.is_meta for tensor in tensors_of(task.inputs))
        if has_data and task.device.type == "cpu" and macs > MOST_MACS:
            split = SplitCheck(unknown="a few samples would take this CPU long")
        else:
            split = check_split(task.model, task.loss, task.inputs, self.batch, task.weight)
        return replace(self, split=split, together=self.batch if split.differs is not None else self.together)

    @property
    def sizes(self) -> list[int]:
        """Micro-batches worth trying, smallest first."""
        if (size := self.by_hand or self.together) is not None:
            return [size]
        if self.equal_parts:
            return [size for size in range(1, self.batch + 1) if self.batch % size == 0]
        counts = [factor * 2**i for i in range(self.batch.bit_length()) for factor in (1, 3)]
        return sorted({-(-self.batch // parts) for parts in counts if parts <= self.batch} | {1})

    @property
    def plain(self) -> Way:
        """The plan that times are compared with: as many samples together as may be, and nothing recomputed."""
        return self.together or self.batch, ()

    def plan(self, micro_batch: int, recompute: tuple[str, ...]) -> ModulePlan:
        """Return the plan with this micro-batch and these recomputed blocks, in the precision of the search."""
        return ModulePlan(self.batch, micro_batch, self.precision, recompute, masters=self.task.masters)

    def taken(self, micro_batch: int, recompute: tuple[str, ...]) -> Taken:
        """Return memory and operations of a plan, measured on tensors without data."""
        key = (self.precision.name, self._autocasts, micro_batch, recompute)
        if key not in self._known:
            self._known[key] = self.task.run(self.plan(micro_batch, recompute))
        return self._known[key]

    def seconds(self, micro_batch: int, recompute: tuple[str, ...]) -> float:
        """Return the predicted seconds of a step, by which plans are compared."""
        card = self.card or choose_card(None, torch.device("cpu"))
        return card.compared_seconds(self.taken(micro_batch, recompute).work, self.precision)

    @property
    def tried(self) -> tuple[Way, ...]:
        """Plans that were run, in the precision of the search."""
        now = self.precision.name, self._autocasts
        return tuple((size, recompute) for name, rules, size, recompute in self._known if (name, rules) == now)

    @property
    def _autocasts(self) -> bool:
        return isinstance(self.precision, Autocast)

    def within(self, limit_bytes: int) -> Way | None:
        """Return the fastest plan that was tried whose allocator reserves at most a limit; None: there is none.

        Tried are the largest micro-batch that fits as it is, and the next larger one and the largest that fits with all
        blocks recomputed, each with as few first blocks recomputed as it needs. The first live the longest.
        """
        plain = self._largest(limit_bytes, ())
        if plain == self.sizes[-1] or not self.blocks:
            return None if plain is None else (plain, ())
        most = self._largest(limit_bytes, self.blocks)
        found: list[Way] = [] if plain is None else [(plain, ())]
        larger = [size for size in self.sizes if (plain or 0) < size <= (most or 0)]
        number = len(self.blocks)
        for size in reversed(dict.fromkeys((*larger[:1], *larger[-1:]))):
            number = self._fewest(limit_bytes, size, number)
            found.append((size, self.blocks[:number]))
        return min(found, key=lambda way: self.seconds(*way)) if found else None

    def _fewest(self, limit_bytes: int, size: int, most: int) -> int:
        """Return how many first blocks have to be recomputed, of which `most` suffice."""
        number = len(self.blocks)

        def reserved(kept: int) -> int:
            return self.taken(size, self.blocks[: number - kept]).reserved_bytes

        return number - boundary(reserved, number - most, number, limit_bytes)

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

    def least(self) -> Way:
        """Return the plan that reserves the least memory."""
        ways = [(self.sizes[0], recompute) for recompute in dict.fromkeys([(), self.blocks])]
        # fewer parts may take less, where the optimizer's step is the peak
        ways += [way for way in self.tried if way[0] in self.sizes]
        return min(ways, key=lambda way: self.taken(*way).reserved_bytes)
