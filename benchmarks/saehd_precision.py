"""Trains `saehd-demo-64` from the same weights, on the same faces, in fp32, bf16 and fp16, and compares the losses.

    python benchmarks/saehd_precision.py [WAY ...] [STEPS] [OUT.json]

Ways: fp32, fp16 and bf16, and with -1 or -2 behind the name (fp16-2) the same from weights that are a ten-thousandth
off: two runs in fp32 end percents from each other, so that one run of each tells nothing; the means are compared. Those
named (all nine, if none is) are run and written beside those that OUT.json has.

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

import torch

from frugan.accelerator.precision import PrecisionName, resolve_precision
from frugan.engine.plan import Plan
from frugan.engine.run.step_log import Readout
from frugan.engine.streams import Streams
from frugan.faces.data.drawn_faces import write_drawn_faces
from frugan.recipe.loading import load_recipe
from frugan.reporting.loss_history import sides_of
from frugan.setup.devices import choose_device
from frugan.setup.recipe_setup import training_of
from frugan.setup.run_data_sources import feeding, open_sources
from half_products import HalfProducts
from machine import describe_machine

PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "fp16", "bf16")
STARTS = (0, 1, 2)
WAYS = {f"{name}-{start}" if start else name: (name, start) for name in PRECISIONS for start in STARTS}
NUDGE = 1e-4
LAST = 200
"""Steps whose mean loss is compared."""


def run(way: str, workspace: Path, steps: int) -> dict[str, Any]:
    """Train once; what became of the losses, the loss scale, and the largest values."""
    precision, start = WAYS[way]
    recipe = load_recipe("saehd-demo-64", [f"training.duration={steps} steps", f"training.precision={precision}"])
    device, _ = choose_device()
    training = training_of(recipe)
    networks = {name: network.to(device) for name, network in training.make().items()}
    if start:
        random = torch.Generator(device).manual_seed(start)
        with torch.no_grad():
            for parameter in (p for network in networks.values() for p in network.parameters()):
                parameter.mul_(1 + NUDGE * torch.randn(parameter.shape, generator=random, device=device))
    plan = Plan(recipe.training.batch, resolve_precision(precision, device))
    state = training.state(plan, device, networks=networks)
    sources = open_sources(recipe, workspace, lambda _: None, None)
    losses: dict[str, list[float]] = {}
    scales: list[float] = []
    emulated = HalfProducts() if device.type == "cpu" and precision == "fp16" else None
    began = time.perf_counter()
    with (
        feeding(sources, recipe, device, workers=0) as feed,
        emulated or nullcontext(),
    ):
        step = training.step(feed, Streams(recipe.training.seed))
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
                print(way, state.step, recent, flush=True)
    result: dict[str, Any] = {
        "way": way,
        "emulated": emulated is not None,
        "seconds": round(time.perf_counter() - began, 1),
        "final_loss": {side: sum(values[-LAST:]) / LAST for side, values in losses.items()},
        "every_100th_loss": {side: [round(v, 5) for v in values[99::100]] for side, values in losses.items()},
        "skipped": int(state.skipped["autoencoder"]),
        "loss_scale": {"first": scales[0], "least": min(scales), "last": scales[-1]},
    }
    if emulated is not None:
        result["largest_forward_product"] = emulated.largest_forward
        result["largest_backward_product"] = emulated.largest_backward
    return result


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each precision: its runs, their mean final losses, how far those are from fp32's, and the runs' spread."""
    spreads: dict[str, dict[str, Any]] = {}
    for precision in PRECISIONS:
        losses = [row["final_loss"] for way, row in rows.items() if WAYS[way][0] == precision]
        if not losses:
            continue
        means = {side: sum(loss[side] for loss in losses) / len(losses) for side in losses[0]}
        spread = {side: (max(x[side] for x in losses) - min(x[side] for x in losses)) / means[side] for side in means}
        spreads[precision] = {"runs": len(losses), "mean_final_loss": means, "largest_less_least": spread}
    if "fp32" in spreads:
        exact = spreads["fp32"]["mean_final_loss"]
        for row in spreads.values():
            row["mean_apart_from_fp32"] = {side: row["mean_final_loss"][side] / exact[side] - 1 for side in exact}
    return spreads


def main() -> None:
    """Train in each way, print the comparison, write it if a path is given."""
    words = sys.argv[1:]
    steps = next((int(w) for w in words if w.isdigit()), 3000)
    out = next((Path(w) for w in words if w.endswith(".json")), None)
    rows: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory() as folder:
        workspace = write_drawn_faces(Path(folder) / "workspace")
        for way in [w for w in words if w in WAYS] or WAYS:
            row = run(way, workspace, steps)
            if out is not None and out.is_file():
                rows |= {known["way"]: known for known in json.loads(out.read_text("utf-8"))["rows"]}
            rows[way] = row
            means = summary(rows)
            print(way, row["final_loss"], means)
            if out is not None:
                results = {
                    "recipe": "saehd-demo-64",
                    "steps": steps,
                    "means": means,
                    "rows": list(rows.values()),
                    "machine": describe_machine(),
                }
                out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
