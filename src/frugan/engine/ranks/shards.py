"""Optimizer state that is shared out over ranks, on its way to the first one and from it: for checkpoints."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from frugan.engine.optimizer_shards import OptimizerShards, Slice, in_memory_order, in_shape
from frugan.engine.state import TrainingState


@torch.no_grad()
def collect(state: TrainingState, orders: Any) -> None:
    """Give the first rank every statistic whole, in host memory; every rank calls it.

    Args:
        orders: gloo's group of all ranks.
    """
    for shards, number, each, slot, own in _shared_out(state):
        rank, size = shards.shard.rank, shards.shard.size
        there = torch.zeros(each.each, dtype=own.dtype)
        there[: own.numel()].copy_(own)
        parts = [torch.empty_like(there) for _ in range(size)] if rank == 0 else None
        dist.gather(there, parts, dst=0, group=orders)
        if parts is not None:
            master = each.master.detach()
            shards.whole[number, slot] = in_shape(master, torch.cat(parts)[: master.numel()])


@torch.no_grad()
def hand_out(state: TrainingState, orders: Any, given: set[tuple[str, int, str]]) -> None:
    """Give every rank its slices of what the first one has read of a checkpoint; every rank calls it.

    Args:
        orders: gloo's group of all ranks.
        given: what that is, as `read_whole` has it on the first rank.
    """
    names = {id(optimizer.shards): name for name, optimizer in state.optimizers.items()}
    for shards, number, each, slot, own in _shared_out(state):
        if (names[id(shards)], number, slot) not in given:
            continue
        master = each.master.detach()
        if (found := shards.whole.pop((number, slot), None)) is not None:
            flat = in_memory_order(master, found)
        else:
            flat = torch.empty(master.numel(), dtype=own.dtype)
        dist.broadcast(flat, src=0, group=orders)
        own.copy_(flat[each.first : each.first + own.numel()])


def read_whole(state: TrainingState) -> set[tuple[str, int, str]]:
    """Optimizer, number of a parameter, and slot of all that this rank has whole."""
    shards = {name: optimizer.shards for name, optimizer in state.optimizers.items() if optimizer.shards is not None}
    return {(name, number, slot) for name, each in shards.items() for number, slot in each.whole}


def forget_whole(state: TrainingState) -> None:
    """Let go of what was collected."""
    for optimizer in state.optimizers.values():
        if optimizer.shards is not None:
            optimizer.shards.whole.clear()


def is_shared_out(state: TrainingState) -> bool:
    """Whether this rank has slices of any optimizer's state alone."""
    return any(True for _ in _shared_out(state))


def _shared_out(state: TrainingState) -> Iterator[tuple[OptimizerShards, int, Slice, str, Tensor]]:
    """Shards, number of the parameter, its slice, slot, and the statistic of that slice; in one order on all ranks."""
    for optimizer in state.optimizers.values():
        for number, each in enumerate(optimizer.shards.slices if optimizer.shards is not None else ()):
            for slot in optimizer.slots if not each.is_whole else ():
                assert optimizer.shards is not None
                yield optimizer.shards, number, each, slot, optimizer.state[each.own][slot]
