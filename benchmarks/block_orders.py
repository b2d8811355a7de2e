"""Compares orders in which recomputed blocks are given back: python benchmarks/block_orders.py [OUT.json] [RECIPE ...]

Where a plan recomputes, the search gives blocks of a network back, one after the other, until memory is full
(`planning/search.py`). Here every recipe that ships is planned for what drivers leave of common cards, in three orders:

- weights: most weights first, as the search does;
- seconds: most seconds of recomputation for each byte that a block keeps, both counted in a forward of the block;
- end: the last block of a network first.

Predicted; needs no card. Compared are the seconds of the plans, on cards where the search's own plan recomputes.
"""

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from frugan.contract.layers import Observer
from frugan.engine.plan import Plan
from frugan.engine.run.training import networks_used
from frugan.engine.state.working_weights import working_weights
from frugan.planning.network_costs import recorded_runs, without_data
from frugan.planning.plan_recipe import PlanOptions, planner_of
from frugan.planning.planner import Planner
from frugan.planning.predictions import prediction_version
from frugan.planning.search import Search
from frugan.recipes import built_in
from frugan.setup.recipe_setup import build_networks
from frugan.stepmemory.cards import Budget, left_bytes
from frugan.stepmemory.tracker import tensors_of
from frugan.stepmemory.work import SavedActivations, Work, WorkCounter
from frugan.torch_internals import FakeTensorMode
from frugan.wording import GIB
from what_fits import COMMON_CARDS_GIB

SAMPLES = 8
"""Of a forward in which blocks are counted, at least."""
CPU = torch.device("cpu")

Order = Mapping[str, Sequence[str]]
"""Network -> its blocks, those first that are given back first."""


@contextmanager
def watched(network: nn.Module, blocks: Sequence[str], found: dict[str, tuple[Work, int]]) -> Iterator[None]:
    """Count work and kept bytes of blocks while a network runs."""
    weights: tuple[Tensor, ...] = (*network.parameters(), *network.buffers())

    def watch(name: str) -> None:
        block, inside = network.get_submodule(name), ExitStack()
        counters: list[tuple[WorkCounter, SavedActivations]] = []

        def enter(_: nn.Module, inputs: object) -> None:
            counter, kept = WorkCounter(), SavedActivations((*weights, *tensors_of(inputs)))
            counters.append((counter, kept))
            inside.enter_context(kept.watch())
            inside.enter_context(counter)

        def leave(_: nn.Module, __: object, ___: object) -> None:
            inside.close()
            counter, kept = counters.pop()
            found[name] = counter.work, kept.saved_bytes

        undo.callback(block.register_forward_pre_hook(enter).remove)
        undo.callback(block.register_forward_hook(leave).remove)

    with ExitStack() as undo:
        for name in blocks:
            watch(name)
        yield


def seconds_per_byte(planner: Planner) -> dict[str, dict[str, float]]:
    """Network -> block -> seconds of its forward for each byte that it keeps for backward."""
    recipe, training = planner.recipe, planner.training
    networks = build_networks(recipe, "meta")
    runs = recipe.kind.forwards(recipe.networks) or recorded_runs(
        networks_used(networks, training.phases), training.phases, training.stages[0].sources, training.group
    )
    layout = Plan(1, planner.precision).layout(CPU)
    rates: dict[str, dict[str, float]] = {}
    for name, blocks in planner.search.space.blocks.items():
        found: dict[str, tuple[Work, int]] = {}
        with FakeTensorMode(allow_non_fake_inputs=True):
            network = without_data(networks[name], CPU).train()
            with (
                working_weights({name: network}, {name: layout}, (name,), Observer()),
                watched(network, blocks, found),
            ):
                runs[name](network, math.ceil(SAMPLES / training.group) * training.group)
        rates[name] = {
            block: planner.card.compared_seconds(found[block][0], planner.precision) / max(1, found[block][1])
            for block in blocks
        }
    return rates


def orders(planner: Planner) -> dict[str, Order]:
    """Name -> order of every network's blocks."""
    space, rates = planner.search.space, seconds_per_byte(planner)
    return {
        "weights": space.costly_blocks,
        "seconds": {name: sorted(blocks, key=lambda b: -rates[name][b]) for name, blocks in space.blocks.items()},
        "end": {name: blocks[::-1] for name, blocks in space.blocks.items()},
    }


def ordered(search: Search, order: Order) -> Search:
    """A search that gives blocks back in another order, from the same estimates."""
    space = replace(search.space)
    vars(space)["costly_blocks"] = order  # a cached property
    other = replace(search, space=space)
    vars(other).update(estimates=search.estimates, all_estimates=search.all_estimates)
    return other


def compared(name: str) -> dict[str, Any]:
    """GiB of a card -> order -> predicted seconds of its plan; of cards where the search's own plan recomputes."""
    planner = planner_of(name, (), PlanOptions())
    if not planner.search.space.blocks:
        return {}
    searches: dict[str, Search] = {word: ordered(planner.search, order) for word, order in orders(planner).items()}
    found = {}
    for gib in COMMON_CARDS_GIB:
        budget_bytes = Budget.on(planner.card, left_bytes(gib * GIB)).step_bytes
        if budget_bytes < sum(planner.search.space.fp32_bytes.values()):
            continue
        first = planner.search.within(budget_bytes)
        if first is None or not first.plan.recompute:
            continue
        plans = {word: search.within(budget_bytes) for word, search in searches.items()}
        found[str(gib)] = {word: round(plan.seconds, 5) for word, plan in plans.items() if plan is not None}
    return found


def main() -> None:
    """Compare, print, write."""
    words = sys.argv[1:]
    targets = [Path(word) for word in words if word.endswith(".json")]
    recipes: dict[str, Any] = {}
    for name in [word for word in words if not word.endswith(".json")] or built_in():
        began = time.perf_counter()
        recipes[name] = compared(name)
        print(f"{name}, {time.perf_counter() - began:.0f} s: {json.dumps(recipes[name])}", flush=True)
        for target in targets:
            record = {"version": prediction_version(), "recipes": recipes}
            target.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
