"""Advice beside a plan: the batch, the optimizer and the memory that would do without savings."""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch

from frugan.stepmemory.cards import Budget
from frugan.training.own_loop.module_step import ModulePlan
from frugan.training.own_loop.plan_search import Search, Way, boundary
from frugan.wording import count, typed_size

FASTER = 0.99
"""A budget is worth naming if it buys a step that takes at most this share of the time."""
BUDGETS = 3
"""Larger budgets that are named at most: the first, and the largest."""


def advice(search: Search, chosen: Way | None, budget: Budget) -> Iterator[str]:
    """Yield a line for each change that would let the whole batch, or any of it, run with less.

    Args:
        chosen: plan that fits; None: none does.
    """
    plain: Way = (search.sizes[-1], ())
    if chosen == plain:
        return
    yield from _on_batch(search, budget)
    yield from _on_optimizer(search, chosen, plain, budget)
    yield from _on_memory(search, chosen, budget)


def _on_batch(search: Search, budget: Budget) -> Iterator[str]:
    @cache
    def reserved(samples: int) -> int:
        return search.task.run(ModulePlan(samples, samples, search.precision)).reserved_bytes

    if search.batch > 1 and reserved(1) <= budget.step_bytes:
        most = boundary(reserved, 1, search.batch, budget.step_bytes)
        yield f"batch: {count(most, 'sample')} would fit in one forward, with nothing recomputed"


def _on_optimizer(search: Search, chosen: Way | None, plain: Way, budget: Budget) -> Iterator[str]:
    optimizer = _fused(search.task.optimizer)
    if optimizer is None:
        return
    fused = replace(search, task=replace(search.task, optimizer=optimizer), refused={}, _known={})
    whole = fused.taken(*plain).reserved_bytes
    name = f"optimizer: {type(optimizer).__name__}(fused=True)"
    if whole <= budget.step_bytes:
        yield f"{name} would fit: {_needed(whole, budget)} for the whole batch, nothing recomputed"
    elif chosen is None:
        least = min(search.tried, key=lambda way: search.taken(*way).reserved_bytes)
        smallest = fused.taken(*least).reserved_bytes
        if smallest <= budget.step_bytes:
            yield f"{name} would fit: {_needed(smallest, budget)} with {_way(search, least)}"


def _fused(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """Return an optimizer over the same parameters that moves them in one kernel; None: it does, or it cannot."""
    if not all("fused" in group and not group["fused"] for group in optimizer.param_groups):
        return None
    fused = copy.copy(optimizer)
    fused.param_groups = [{**group, "fused": True, "foreach": False} for group in optimizer.param_groups]
    return fused


def _on_memory(search: Search, chosen: Way | None, budget: Budget) -> Iterator[str]:
    seconds = math.inf if chosen is None else search.seconds(*chosen)
    named: list[str] = []
    for way in sorted(search.tried, key=lambda way: search.taken(*way).reserved_bytes):
        reserved = search.taken(*way).reserved_bytes
        if reserved > budget.step_bytes and search.seconds(*way) < FASTER * seconds:
            seconds = search.seconds(*way)
            named.append(f"{_needed(reserved, budget)} buys {_way(search, way)}")
    if named:
        yield f"memory: {'; '.join([*named[:1], *named[1:][1 - BUDGETS :]])}"


def _way(search: Search, way: Way) -> str:
    size, recompute = way
    extra = search.seconds(*way) / search.seconds(search.sizes[-1], ()) - 1
    forwards = "the whole batch" if size == search.batch else f"micro-batch {size}"
    blocks = f"{count(len(recompute), 'block')} recomputed" if recompute else "nothing recomputed"
    return f"{forwards}, {blocks} (extra time {extra:.0%})"


def _needed(reserved_bytes: int, budget: Budget) -> str:
    """Return the budget in all, to be given as `memory`, that leaves a step so many bytes."""
    return typed_size(reserved_bytes + budget.context_bytes + budget.workspace_bytes)
