"""What compiling block by block would leave of a compiled phase: python benchmarks/compiled_blocks.py [JSON]

Kernels of a phase's work on a micro-batch, as the planner's model counts them (`frugan.memory.compiled`): as it is
written, with each block's forward and each block's backward compiled by itself and the rest as written, and compiled
whole; and how many of its blocks are alike, which a compiler would have to see only once.
"""

import json
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from frugan.accelerator.precision import resolve_precision
from frugan.engine.plan import Plan
from frugan.memory import compiled
from frugan.memory.compiled import JointGraph, Kernel, OperationKind, kernels_of
from frugan.planning.prediction import predict
from frugan.recipe.loading import load_recipe
from frugan.setup.recipe_setup import training_of
from machine import describe_machine
from step_counts import Case, shipped_cases

CASES = ("biggan-digits-32", "biggan-imagenet-128, 16 channels", "saehd-df-ud-256", "stylegan2-ffhq-256")


def graphs_of(case: Case) -> dict[str, JointGraph]:
    """Phase -> its joint graph, of the last stage."""
    recipe = load_recipe(case.recipe, list(case.overrides))
    training = replace(training_of(recipe), compiled=True)
    micro_batch = case.micro_batch or training.micro_batch
    graphs: dict[str, JointGraph] = {}

    def keep(graph: JointGraph) -> list[Kernel]:
        graphs[graph.operations[0].place.split("/")[0]] = graph
        return kernels_of(graph)

    with patch.object(compiled, "kernels_of", keep):
        plan = Plan(micro_batch, resolve_precision(case.precision, torch.device("cpu")))
        predict(training.with_batch(micro_batch), plan, "card", training.distinct_stages[-1], rough=True)
    return graphs


def in_blocks(graph: JointGraph) -> JointGraph:
    """The same with nothing fused but what lies in one block's forward, or in one block's backward."""
    made_in: dict[int, str] = {}
    crossing: set[int] = set()
    operations = []
    for operation in graph.needed():
        for number in operation.makes:
            made_in[number] = operation.place
        crossing |= {number for number in operation.reads if made_in.get(number, operation.place) != operation.place}
        is_inside = "/" in operation.place
        operations.append(operation if is_inside else replace(operation, kind=OperationKind.OWN))
    return JointGraph(graph.values, operations, (*graph.results, *crossing))


def alike(graph: JointGraph) -> tuple[int, int]:
    """Forwards of blocks, and how many different ones there are, by their operations and the sizes of results."""
    blocks: defaultdict[str, list[Any]] = defaultdict(list)
    for operation in graph.needed():
        if "/" in operation.place and "backward" not in operation.place:
            sizes = tuple(graph.values[number].size_bytes for number in operation.makes)
            blocks[operation.place].append((operation.func, sizes))
    return len(blocks), len({tuple(each) for each in blocks.values()})


def started(kernels: list[Kernel]) -> int:
    """Kernels that move something."""
    return sum(kernel.bytes_moved > 0 for kernel in kernels)


def compared(case: Case) -> dict[str, Any]:
    """Phase -> kernels by each way."""
    with patch.object(compiled, "_DECOMPOSED", ()), patch.object(compiled, "_OF_CONVOLUTIONS", {}):
        graphs = graphs_of(case)
        written = {phase: sum(each.cost[0] > 0 for each in graph.needed()) for phase, graph in graphs.items()}
    results: dict[str, Any] = {}
    for phase, graph in graphs_of(case).items():
        blocks, different = alike(graph)
        results[phase] = {
            "written": written[phase],
            "by_blocks": started(kernels_of(in_blocks(graph))),
            "whole": started(kernels_of(graph)),
            "blocks": blocks,
            "different_blocks": different,
        }
        print(case.recipe, phase, results[phase], file=sys.stderr, flush=True)
    return results


def main() -> None:
    """Count, and print JSON."""
    known = shipped_cases()
    text = json.dumps({**{name: compared(known[name]) for name in CASES}, "machine": describe_machine()}, indent=1)
    print(text)
    for target in sys.argv[1:]:
        Path(target).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
