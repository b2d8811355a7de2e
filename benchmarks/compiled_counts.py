"""Counts what a compiled step asks of a card: python benchmarks/compiled_counts.py [NAME ...] [--out RESULT.json]

NAME is a case of benchmarks/counts.py. Every phase is traced and handed to torch's compiler up to where it has grouped
operations into kernels; kernels are not made. So the counts are of the compiler's own grouping (for processors, as no
card is asked for, and with convolutions as they are): kernels started, and what they read and write. What stays as it
is written (weights made ready, gradients carried over, updates, averages) is added from the count of the written step.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._dynamo import lookup_backend
from torch._inductor import config, ir, memory, scheduler
from torch._inductor.virtualized import V
from torch.fx import GraphModule
from torch.utils._ordered_set import OrderedSet

from frugan.engine.compiled_phases import INDUCTOR, CompiledPhases, Operations
from frugan.recipe.loading import load_recipe
from machine import describe_machine
from set_up import set_up
from step_counts import MICRO_BATCHES, Case, Counts, StepCounts, count_case, shipped_cases

CASES = ("biggan-imagenet-128, 16 channels", "saehd-df-ud-256", "stylegan2-ffhq-256")
"""For which goals were set."""


@dataclass(frozen=True)
class Grouped:
    """One phase's work on a micro-batch."""

    operations: int  # of the graph, views included
    kernels: int  # that they were grouped into
    bytes_moved: int  # by all of them
    peak_bytes: int  # most that lives at once of what they store, by torch's estimate


class _Grouped(Exception):
    """The rest, making kernels, is not needed."""


def grouped(graph: GraphModule, given: Sequence[Tensor]) -> Grouped:
    """What torch's compiler makes of a graph."""
    groups: list[Grouped] = []
    operations = sum(node.op == "call_function" for node in graph.graph.nodes)

    def spy(self: scheduler.Scheduler) -> None:
        nodes = [node for node in self.nodes if _is_a_kernel(node)]
        groups.append(Grouped(operations, len(nodes), V.graph.count_bytes()[0], _peak_bytes(self)))
        raise _Grouped

    with (
        patch.object(scheduler.Scheduler, "codegen", spy),
        config.patch(force_disable_caches=True),
        torch.backends.mkldnn.flags(enabled=False),  # or convolutions take in what follows them, as on no card
        torch.no_grad(),
    ):
        try:
            lookup_backend(INDUCTOR)(graph, list(given))
        except Exception:
            if not groups:
                raise
    return groups[0]


def _peak_bytes(made: scheduler.Scheduler) -> int:
    inputs, outputs = OrderedSet(V.graph.graph_inputs), OrderedSet(V.graph.get_output_names())
    memory.assign_memory_planning_info_for_scheduler_buffers(made.nodes, made.name_to_buf)
    freeable = memory.get_freeable_input_buf(made.nodes, inputs)
    memory.assign_memory_planning_info_for_scheduler_nodes(
        made.nodes, made.name_to_fused_node, made.name_to_buf, freeable
    )
    return int(memory.estimate_peak_memory(made.nodes, freeable, outputs)[0])


def _is_a_kernel(node: scheduler.BaseSchedulerNode) -> bool:
    """Whether something is started for it; not for one of several results, nor for what needs no work."""
    return not isinstance(node, scheduler.NopKernelSchedulerNode) and not isinstance(node.node, ir.MultiOutput)


def phases_of(case: Case) -> dict[str, Grouped]:
    """Phase -> its work on a micro-batch, of a usual step of the first stage."""
    groups: list[Grouped] = []

    def backend(graph: GraphModule, given: Sequence[Tensor]) -> Operations:
        groups.append(grouped(graph, given))
        (output,) = graph.graph.find_nodes(op="output")
        results = [node.meta["val"] for node in output.args[0]]
        return lambda *_: [torch.zeros(each.shape, dtype=each.dtype) for each in results]

    micro_batch = _micro_batch(case)
    words = [*case.overrides, f"training.batch={MICRO_BATCHES * micro_batch}"]
    recipe = load_recipe(case.recipe, words).at_step(0)
    compiled = CompiledPhases(lambda line: print(line, flush=True), _refuse, backend=backend)
    state, step, plan = set_up(recipe, torch.device("cpu"), case.precision, micro_batch=micro_batch, backward=compiled)
    state.step = 1
    step.run(state, plan)
    ran = [phase.name for phase in step.phases if phase.due(1)]
    return dict(zip(ran, groups, strict=True))


def _micro_batch(case: Case) -> int:
    recipe = load_recipe(case.recipe, list(case.overrides))
    return case.micro_batch or recipe.training.normalisation_batch or max(1, recipe.training.batch // MICRO_BATCHES)


def _refuse(line: str) -> None:
    raise RuntimeError(line)


def inside(step: StepCounts) -> dict[str, Counts]:
    """Phase -> what the written step does there in forward, losses and backward of all micro-batches."""
    counts_of: dict[str, Counts] = {}
    for (phase, place, _), counts in step.by_operation.items():
        if "/" in place or place == "losses":
            counts_of[phase] = counts_of.get(phase, Counts()) + counts
    return counts_of


def compared(case: Case) -> dict[str, Any]:
    """The written step beside the compiled one."""
    written = list(count_case(case).values())
    step = written[1] if len(written) > 1 else written[0]  # the usual one, where phases are not always due
    eager, work, phases = step.total, inside(step), phases_of(case)
    launches, moved = eager.launches, eager.bytes_moved
    for name, made in phases.items():
        launches += MICRO_BATCHES * made.kernels - work[name].launches
        moved += MICRO_BATCHES * made.bytes_moved - work[name].bytes_moved
    return {
        "written": {"launches": eager.launches, "bytes_moved": eager.bytes_moved},
        "compiled": {"launches": launches, "bytes_moved": moved},
        "written_phases": {name: {"launches": c.launches, "bytes_moved": c.bytes_moved} for name, c in work.items()},
        "micro_batches": MICRO_BATCHES,
        "phases": {name: asdict(made) for name, made in phases.items()},
    }


def main() -> None:
    """Count, and print JSON."""
    words = sys.argv[1:]
    target = None
    if "--out" in words:
        at = words.index("--out")
        target = Path(words[at + 1])
        del words[at : at + 2]
    known = shipped_cases()
    result = {name: compared(known[name]) for name in words or CASES}
    text = json.dumps({**result, "machine": describe_machine()}, indent=1)
    print(text)
    if target is not None:
        target.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
