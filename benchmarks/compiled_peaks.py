"""Holds the planner's model of compiled phases to torch's own compiler: python benchmarks/compiled_peaks.py [CASE ...]
[RESULT.json]

For each phase of a few recipes, with everything kept and with every block recomputed: kernels, bytes that they move,
and the most that lives at once, by `frugan.memory.compiled` and by torch's scheduler (for processors; it stops
before kernels are made, and takes a minute for a thousand operations, which is why no plan waits for it).
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
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

from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine.compiled_phases import INDUCTOR, PhaseGraph, PhaseWork
from frugan.engine.plan import Plan
from frugan.engine.step.update import forward_and_backward
from frugan.memory.compiled import kernels_of, peak_bytes, record
from frugan.recipe.loading import load_recipe
from frugan.stepmemory.dataless import META, Dataless, fused_attention, resting_collector
from machine import describe_machine
from set_up import set_up

CASES: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "biggan-digits-32": ("biggan-digits-32", 24, ()),
    "stylegan2-digits-32": ("stylegan2-digits-32", 8, ()),
    "saehd-demo-64": ("saehd-demo-64", 4, ()),
    "biggan-imagenet-128, 16 channels": (
        "biggan-imagenet-128",
        8,
        ("networks.generator_channels=16", "networks.discriminator_channels=16", "training.normalisation_batch=8"),
    ),
}
"""Recipe, micro-batch, overrides; in bf16."""


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


def compared(recipe: str, micro_batch: int, overrides: tuple[str, ...], *, recompute: bool) -> dict[str, Any]:
    """Phase -> the model's figures beside torch's."""
    results: dict[str, Any] = {}

    def backward(
        phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
    ) -> Terms:
        began = time.perf_counter()
        work = PhaseWork(phase, networks, micro, own, factor, plan)
        with resting_collector(), fused_attention():
            joint = record(work, [_without_data(each) for each in work.examples()], Dataless(), lambda: phase.name)
        kernels = kernels_of(joint)
        modelled = time.perf_counter()
        graph = PhaseGraph.trace(phase, networks, micro, own, factor, plan)
        theirs = grouped(graph.module, [work.given.tensors[name].detach() for name in graph.inputs])
        results[phase.name] = {
            "model": {
                "kernels": sum(kernel.bytes_moved > 0 for kernel in kernels),
                "bytes_moved": sum(kernel.bytes_moved for kernel in kernels),
                "peak_bytes": peak_bytes(joint, kernels),
                "seconds": round(modelled - began, 2),
            },
            "torch": {
                "kernels": theirs.kernels,
                "bytes_moved": theirs.bytes_moved,
                "peak_bytes": theirs.peak_bytes,
                "seconds": round(time.perf_counter() - modelled, 1),
            },
        }
        print(
            recipe, "recomputed" if recompute else "kept", phase.name, results[phase.name], file=sys.stderr, flush=True
        )
        return forward_and_backward(phase, networks, micro, own, factor, plan)

    loaded = load_recipe(recipe, [*overrides, f"training.batch={micro_batch}"]).at_step(0)
    state, step, plan = set_up(
        loaded, torch.device("cpu"), "bf16", micro_batch=micro_batch, recompute=recompute, backward=backward
    )
    step.run(state, plan)
    return results


def _without_data(tensor: Tensor) -> Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
    return made.requires_grad_(tensor.requires_grad)


def main() -> None:
    """Compare, and print JSON; a file keeps what it has of other cases, and is written after each."""
    words = sys.argv[1:]
    out = Path(words.pop()) if words and words[-1].endswith(".json") else None
    result: dict[str, Any] = json.loads(out.read_text("utf-8")) if out is not None and out.exists() else {}
    for name in words or CASES:
        case = CASES[name]
        result[name] = {"kept": compared(*case, recompute=False), "recomputed": compared(*case, recompute=True)}
        result["machine"] = describe_machine()
        if out is not None:
            out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
