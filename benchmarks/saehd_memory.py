"""Peak of live bytes of a SAEHD training step, by category, on tensors without data: needs no GPU and no memory.

    python benchmarks/saehd_memory.py [RECIPE] [OUT.json]

Counts what torch's operations allocate in the second step (optimizer state is there by then), for one micro-batch of
the whole batch, in fp32, fp16 and bf16, with and without recompute of every block, for RMSprop and AdaBelief.
Workspaces that a card's libraries take by themselves are not in it.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from frugan.accelerator.precision import Precision
from frugan.engine.plan import Plan
from frugan.engine.state.optimizer_settings import AdaBeliefSettings, RMSpropSettings
from frugan.engine.streams import Streams
from frugan.planning.prediction import BlankPictures
from frugan.planning.step_memory import measure_step
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.setup.recipe_setup import training_of
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


def measure(recipe: Recipe, optimizer: str, precision: str, *, recompute: bool) -> dict[str, Any]:
    """Peak of one way to run a recipe's step."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        settings = dict.fromkeys(recipe.kind.optimizers, OPTIMIZERS[optimizer])
        training = training_of(recipe)
        training = replace(training, stages=(replace(training.stages[0], settings=settings),))
        networks = training.build("cpu")
        blocks = recipe.kind.recomputable(networks)
        plan = Plan(recipe.training.batch, PRECISIONS[precision], blocks if recompute else {})
        state = training.state(plan, torch.device("cpu"), networks=networks)
        for scale in state.loss_scales.values():
            scale.found = True  # tensors without data cannot be asked
        step = training.step(BlankPictures(training.stages[0].sources), Streams(0))
        step.run(state, plan)
        memory = measure_step(step, state, plan, blocks)
    return {
        "optimizer": optimizer,
        "precision": precision,
        "recompute": recompute,
        "peak_gib": memory.peak.size_bytes / GIB,
        "reserved_gib": memory.needed_on_card_bytes / GIB,
        "place": memory.peak.place,
        "categories_gib": {name: size / GIB for name, size in memory.peak.categories.items()},
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
            sizes = f"{row['peak_gib']:6.2f} GiB, reserved {row['reserved_gib']:6.2f}"
            print(f"{optimizer:9} {precision} {way:9} {sizes}, in {row['place']}: {parts}")
    if out is not None:
        result = {"recipe": name, "batch": recipe.training.batch, "machine": describe_machine(), "rows": rows}
        out.write_text(json.dumps(result, indent=1), "utf-8")


if __name__ == "__main__":
    main()
