"""What recomputation saves once kernels are fused: python benchmarks/compile_memory.py [JSON]

A chain of residual blocks, forward and backward as one graph, with everything kept and with every block recomputed: the
most that lives at once when the graph's operations run one by one, and by torch's own estimate for fused kernels.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo import lookup_backend
from torch._inductor import config, memory
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from machine import describe_machine

BLOCKS = 8


class _Estimated(Exception):
    """The rest, making kernels, is not needed."""


def block(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """A residual block [B, C, H, W] -> the same."""
    h = F.silu(F.conv2d(F.silu(x), first, padding=1))
    return x + F.silu(F.conv2d(F.silu(h) * 2, second, padding=1))


def chain(recompute: bool) -> Callable[..., list[Tensor | None]]:
    """Forward and backward of all blocks: (input, weights) -> gradients of the weights."""

    def work(x: Tensor, *weights: Tensor) -> list[Tensor | None]:
        for i in range(BLOCKS):
            given = (x, weights[2 * i], weights[2 * i + 1])
            x = checkpoint(block, *given, use_reentrant=False, preserve_rng_state=False) if recompute else block(*given)
        x.square().mean().backward()
        return [weight.grad for weight in weights]

    return work


def live_bytes(graph: GraphModule) -> int:
    """Most that lives at once of what a graph makes, in its own order, each storage until its last use."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    size: dict[int, int] = {}
    nodes = list(graph.graph.nodes)
    for place, node in enumerate(nodes):
        for seen in (node, *node.all_input_nodes):
            value = seen.meta.get("val")
            for tensor in value if isinstance(value, tuple | list) else (value,):
                if isinstance(tensor, Tensor):
                    storage = tensor.untyped_storage()
                    first.setdefault(storage._cdata, place if node.op == "call_function" else -1)
                    size[storage._cdata], last[storage._cdata] = storage.nbytes(), place
    made = [key for key, place in first.items() if place >= 0]
    return max(sum(size[key] for key in made if first[key] <= at <= last[key]) for at in range(len(nodes)))


def fused_bytes(graph: GraphModule, given: list[Tensor]) -> int:
    """Most that lives at once when fused kernels run, by torch's estimate."""
    found: list[int] = []
    reorder = memory.reorder_for_peak_memory

    def spy(nodes: Any, buffers: Any, fused: Any, inputs: Any, outputs: Any, *rest: Any) -> None:
        ordered = reorder(nodes, buffers, fused, inputs, outputs, *rest)
        found.append(memory.estimate_peak_memory(ordered, memory.get_freeable_input_buf(ordered, inputs), outputs)[0])
        raise _Estimated

    settings = config.patch(force_disable_caches=True, reorder_for_peak_memory=True)
    with patch.object(memory, "reorder_for_peak_memory", spy), settings, torch.no_grad():
        try:
            lookup_backend("inductor")(graph, given)
        except Exception:
            if not found:
                raise
    return found[0]


def main() -> None:
    """Count, and print JSON."""
    x = torch.randn(32, 16, 32, 32)
    weights = [(torch.randn(16, 16, 3, 3) * 0.1).requires_grad_() for _ in range(2 * BLOCKS)]
    result: dict[str, object] = {"blocks": BLOCKS, "input": list(x.shape)}
    for name, recompute in (("everything kept", False), ("every block recomputed", True)):
        graph = make_fx(chain(recompute), tracing_mode="fake")(x, *weights)
        graph.graph.eliminate_dead_code()
        fused = fused_bytes(graph, [x, *(weight.detach() for weight in weights)])
        result[name] = {"one_by_one_mib": live_bytes(graph) / 2**20, "fused_mib": fused / 2**20}
    text = json.dumps({**result, "machine": describe_machine()}, indent=1)
    print(text)
    for target in sys.argv[1:]:
        Path(target).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
