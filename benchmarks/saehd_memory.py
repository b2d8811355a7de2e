"""Peak of live bytes of a SAEHD training step, by category, on tensors without data: needs no GPU and no memory.

    python benchmarks/saehd_memory.py [RECIPE] [OUT.json]

Counts what torch's operations allocate in the second step (optimizer state is there by then), for one micro-batch of
the whole batch, in fp32, fp16 and bf16, with and without recompute of every block, for RMSprop and AdaBelief.
Workspaces that a card's libraries take by themselves are not in it.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from blank import Blank
from frugan.engine.leras_optimizers import LerasOptimizer
from frugan.engine.optimizers import AdaBeliefSettings, RMSpropSettings
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision
from frugan.engine.state import TrainingState, create_state
from frugan.engine.step import Step
from frugan.engine.streams import Streams
from frugan.engine.working_weights import pending_gradient
from frugan.memory.tracker import LiveBytes, storages_bytes
from frugan.recipe import Recipe, load_recipe
from machine import describe_machine

GIB = 2**30
PRECISIONS = {
    "fp32": Precision("fp32", torch.float32, "benchmark"),
    "fp16": Precision("fp16", torch.float16, "benchmark"),
    "bf16": Precision("bf16", torch.bfloat16, "benchmark"),
}
WAYS = (("fp32", False), ("fp32", True), ("fp16", False), ("fp16", True), ("bf16", False), ("bf16", True))
OPTIMIZERS: dict[str, RMSpropSettings | AdaBeliefSettings] = {
    "rmsprop": RMSpropSettings(),
    "adabelief": AdaBeliefSettings(),
}


def _tensors(state: TrainingState) -> Iterator[tuple[str, Tensor]]:
    """Everything whose owner is known, with its category."""
    masters = {p for optimizer in state.optimizers.values() for g in optimizer.param_groups for p in g["params"]}
    for master in masters:
        yield "parameters", master
        if master.grad is not None:
            yield "gradients", master.grad
    for network in state.networks.values():
        for parameter in network.parameters():
            if parameter not in masters:
                yield "working weights", parameter
                gradient = pending_gradient(parameter)
                if gradient is not None:
                    yield "gradients", gradient
    for optimizer in state.optimizers.values():
        if isinstance(optimizer, LerasOptimizer):
            for slots in optimizer.state.values():
                for value in slots.values():
                    yield "optimizer", value


def _categories(state: TrainingState, live: LiveBytes) -> dict[str, int]:
    seen: set[int] = set()
    found: dict[str, int] = {}
    for category, tensor in _tensors(state):
        storage = tensor.untyped_storage()
        if id(storage) not in seen:
            seen.add(id(storage))
            found[category] = found.get(category, 0) + storages_bytes([tensor])
    found["batch, activations, temporaries"] = live.live_bytes - sum(found.values())
    return found


def _step(
    recipe: Recipe, optimizer: str, precision: str, *, recompute: bool, at: int = -1
) -> tuple[LiveBytes, dict[str, int]]:
    """Track the second step; at allocation `at` take the categories."""
    networks = recipe.kind.build(recipe.networks)
    phases = recipe.kind.phases(recipe.networks, recipe.objective)
    used = {name for phase in phases for name in phase.uses}
    networks = {name: network for name, network in networks.items() if name in used}
    blocks = recipe.kind.recomputable(networks) if recompute else {}
    plan = Plan(recipe.training.batch, PRECISIONS[precision], blocks)
    settings = dict.fromkeys(recipe.kind.optimizers, OPTIMIZERS[optimizer])
    device = torch.device("cpu")
    state = create_state(networks, phases, settings, {}, recipe.ema, plan, None, device)
    for scale in state.loss_scales.values():
        scale.found = True  # tensors without data cannot be asked
    step = Step(phases, settings, Blank(recipe), Streams(0), recipe.training.batch)
    step.run(state, plan)
    found: dict[str, int] = {}
    existing = [tensor for _, tensor in _tensors(state)]
    with LiveBytes(existing, at, lambda live: found.update(_categories(state, live))) as live:
        step.run(state, plan)
    return live, found


def measure(recipe: Recipe, optimizer: str, precision: str, *, recompute: bool) -> dict[str, Any]:
    """Peak of one way to run a recipe's step."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        first, _ = _step(recipe, optimizer, precision, recompute=recompute)
        _, categories = _step(recipe, optimizer, precision, recompute=recompute, at=first.peak_allocation)
    return {
        "optimizer": optimizer,
        "precision": precision,
        "recompute": recompute,
        "peak_gib": first.peak_bytes / GIB,
        "categories_gib": {name: size / GIB for name, size in categories.items()},
    }


def main() -> None:
    """Print a table, and write it as JSON if a path is given."""
    words = sys.argv[1:]
    name = next((w for w in words if not w.endswith(".json")), "saehd-df-ud-512")
    out = next((Path(w) for w in words if w.endswith(".json")), None)
    recipe = load_recipe(name).at_step(0)
    rows = []
    for optimizer in OPTIMIZERS:
        for precision, recompute in WAYS:
            row = measure(recipe, optimizer, precision, recompute=recompute)
            rows.append(row)
            parts = ", ".join(f"{k} {v:.2f}" for k, v in row["categories_gib"].items())
            way = "recompute" if recompute else "plain"
            print(f"{optimizer:9} {precision} {way:9} {row['peak_gib']:6.2f} GiB: {parts}")
    if out is not None:
        result = {"recipe": name, "batch": recipe.training.batch, "machine": describe_machine(), "rows": rows}
        out.write_text(json.dumps(result, indent=1), "utf-8")


if __name__ == "__main__":
    main()
