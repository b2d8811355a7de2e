"""Trains `saehd-demo-64` from the same weights, on the same faces, in fp32, bf16 and fp16, and compares the losses.

    python benchmarks/saehd_precision.py [STEPS] [OUT.json]

On a processor fp16 products are rounded as a card's matrix units round them (see half_products.py): the numbers are
those of fp16, the speed is not. On a card everything is its own.
"""

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from frugan.api.devices import choose_device
from frugan.api.feed import feeding
from frugan.api.loss_history import sides_of
from frugan.api.networks import build_networks
from frugan.api.sources import open_sources
from frugan.data.faces.drawn.drawn_faceset import draw_workspace
from frugan.engine.plan import Plan
from frugan.engine.precision import PrecisionName, resolve_precision
from frugan.engine.readout import Readout
from frugan.engine.state import create_state
from frugan.engine.step import Step
from frugan.engine.streams import Streams
from frugan.recipe import load_recipe
from half_products import HalfProducts
from machine import describe_machine

PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "fp16", "bf16")
FACES = 120
LAST = 200
"""Steps whose mean loss is compared."""


def run(precision: PrecisionName, workspace: Path, steps: int) -> dict[str, Any]:
    """Train once; what became of the losses, the loss scale, and the largest values."""
    recipe = load_recipe("saehd-demo-64", [f"training.duration={steps} steps", f"training.precision={precision}"])
    device, _ = choose_device()
    phases = recipe.kind.phases(recipe.networks, recipe.objective)
    used = {name for phase in phases for name in phase.uses}
    networks = {name: n.to(device) for name, n in build_networks(recipe).items() if name in used}
    plan = Plan(recipe.training.batch, resolve_precision(precision, device))
    settings = recipe.optimizer_settings()
    state = create_state(networks, phases, settings, {}, recipe.ema, plan, None, device)
    sources = open_sources(recipe, workspace, lambda _: None, None)
    losses: dict[str, list[float]] = {}
    scales: list[float] = []
    emulated = HalfProducts() if device.type == "cpu" and precision == "fp16" else None
    began = time.perf_counter()
    with feeding(sources, recipe, pinned=device.type == "cuda", workers=0) as feed, emulated or nullcontext():
        step = Step(phases, settings, feed, Streams(recipe.training.seed), recipe.training.batch, steps)
        for at in range(steps):
            if emulated is not None:
                emulated.watch = at % 50 == 0
            results = step.run(state, plan)
            phases_read, _ = Readout.start(state.step, results, {}).read()
            for side, value in sides_of({"phases": phases_read}).items():
                losses.setdefault(side, []).append(value)
            scales.append(phases_read["autoencoder"]["loss_scale"])
            if state.step % 500 == 0:
                recent = {side: round(sum(values[-LAST:]) / LAST, 4) for side, values in losses.items()}
                print(precision, state.step, recent, flush=True)
    found: dict[str, Any] = {
        "precision": precision,
        "emulated": emulated is not None,
        "seconds": round(time.perf_counter() - began, 1),
        "final_loss": {side: sum(values[-LAST:]) / LAST for side, values in losses.items()},
        "every_100th_loss": {side: [round(v, 5) for v in values[99::100]] for side, values in losses.items()},
        "skipped": int(state.skipped["autoencoder"]),
        "loss_scale": {"first": scales[0], "least": min(scales), "last": scales[-1]},
    }
    if emulated is not None:
        found["largest_forward_product"] = emulated.largest_forward
        found["largest_backward_product"] = emulated.largest_backward
    return found


def main() -> None:
    """Train three times, print the comparison, write it if a path is given."""
    words = sys.argv[1:]
    steps = next((int(w) for w in words if w.isdigit()), 3000)
    out = next((Path(w) for w in words if w.endswith(".json")), None)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        draw_workspace(Path(folder), FACES, seed=0, size=96)
        for precision in PRECISIONS:
            row = run(precision, Path(folder), steps)
            exact = (rows or [row])[0]["final_loss"]
            row["apart_from_fp32"] = {side: row["final_loss"][side] / exact[side] - 1 for side in exact}
            rows.append(row)
            print(precision, row["final_loss"], {side: f"{v:+.2%}" for side, v in row["apart_from_fp32"].items()})
            if out is not None:
                result = {"recipe": "saehd-demo-64", "steps": steps, "rows": rows, "machine": describe_machine()}
                out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
