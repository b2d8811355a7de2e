"""The planner's predictions against what a step really takes.

    python benchmarks/memory.py [OUT.json] [--small]

On a CUDA card: `torch.cuda.max_memory_allocated` and `max_memory_reserved` of three real steps of every configuration
below, each in a process of its own, beside what was predicted without the card, workspaces as calibrated. On a CPU:
the live bytes of the same steps under the tracker (with `--small`, at sizes that a CPU trains in seconds).
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from frugan.accelerator.precision import resolve_precision
from frugan.contract import cpu_ways
from frugan.engine.plan import Plan
from frugan.engine.state.gradients import sliceable
from frugan.engine.streams import Streams
from frugan.files import Folders
from frugan.planning.prediction import BlankPictures, predict
from frugan.planning.step_memory import measure_step
from frugan.recipe.loading import load_recipe
from frugan.setup.devices import choose_device
from frugan.setup.recipe_setup import build_networks, training_of
from frugan.stepmemory.calibration import calibrate, choose_card, save_calibration
from frugan.wording import GIB
from machine import describe_machine

Configuration = tuple[str, str, int, int, str]
"""Recipe, precision, micro-batch, batch, savers."""

LARGE: tuple[Configuration, ...] = (
    ("biggan-imagenet-128", "bf16", 32, 96, ""),
    ("biggan-imagenet-128", "bf16", 32, 96, "recompute"),
    ("biggan-imagenet-128", "bf16", 32, 96, "keep-products"),
    ("biggan-imagenet-128", "bf16", 64, 192, "recompute"),
    ("biggan-imagenet-128", "fp16", 32, 96, ""),
    ("biggan-imagenet-128", "fp32", 32, 96, ""),
    ("biggan-imagenet-128", "bf16", 32, 96, "optimizer-on-host ema-on-host"),
    ("biggan-imagenet-256", "bf16", 32, 96, "recompute"),
    ("biggan-deep-imagenet-128", "bf16", 32, 96, "keep-products"),
    ("biggan-deep-imagenet-256", "bf16", 32, 96, "recompute"),
    ("biggan-deep-imagenet-256", "bf16", 32, 96, "recompute offload"),
    ("biggan-cifar10-32", "fp32", 50, 50, ""),
    ("sagan-imagenet-128", "bf16", 64, 256, ""),
    ("sngan-imagenet-128", "fp16", 64, 64, ""),
    ("saehd-df-ud-256", "fp32", 8, 8, ""),
    ("saehd-df-ud-256", "fp16", 8, 8, ""),
    ("saehd-df-ud-512", "bf16", 8, 8, ""),
    ("saehd-df-ud-512", "bf16", 4, 8, "dense-slices"),
    ("saehd-df-ud-512", "fp16", 4, 8, "dense-slices"),
    ("saehd-df-ud-512", "bf16", 2, 8, "dense-slices recompute optimizer-on-host"),
    ("saehd-liae-udt-320", "bf16", 4, 8, "recompute"),
    ("stylegan2-ffhq-256", "bf16", 16, 32, ""),
    ("stylegan2-ffhq-1024", "fp16", 4, 8, ""),
    ("stylegan2-ffhq-1024", "bf16", 4, 8, "optimizer-on-host"),
    ("stylegan2-finetune-512", "bf16", 8, 8, "recompute"),
)
SMALL: tuple[Configuration, ...] = (
    ("biggan-digits-32", "fp32", 24, 72, ""),
    ("biggan-digits-32", "bf16", 24, 72, "recompute"),
    ("stylegan2-small-64", "fp32", 8, 16, ""),
    ("stylegan2-small-64", "bf16", 16, 16, ""),
    ("stylegan2-small-64", "bf16", 16, 16, "recompute"),
    ("saehd-demo-64", "fp32", 8, 8, ""),
    ("saehd-demo-64", "bf16", 2, 8, "recompute"),
    ("saehd-demo-64", "bf16", 4, 8, ""),
)


def one(configuration: Configuration) -> dict[str, Any]:
    """Predict and measure a configuration in this process."""
    name, precision, micro_batch, batch, savers = configuration
    device, _ = choose_device()
    group = load_recipe(name).training.normalisation_batch
    words = [f"training.batch={batch}", f"training.precision={precision}"]
    words += [f"training.normalisation_batch={min(group, micro_batch)}"] if group else []
    recipe = load_recipe(name, words)
    training = training_of(recipe)
    stage = training.stages[0]
    networks = build_networks(recipe)
    networks = {key: network.to(device) for key, network in networks.items() if key in training.build("meta")}
    blocks = training.recomputable(networks)
    plan = Plan(
        micro_batch,
        resolve_precision(precision, device),  # type: ignore[arg-type]
        blocks if {"recompute", "keep-products"} & {*savers.split()} else {},
        keep_products="keep-products" in savers,
        offload="offload" in savers,
        in_slices={k: v for k, n in networks.items() if (v := sliceable(n))} if "dense-slices" in savers else {},
        ema_on_host="ema-on-host" in savers,
        optimizer_on_host="optimizer-on-host" in savers,
    )
    on_card = device.type == "cuda"
    predicted = predict(replace(training, make_grids=None), plan, "card" if on_card else "cpu", stage)
    state = training.state(plan, device, networks=networks)
    for scale in state.loss_scales.values():
        scale.found = True
    step = training.step(BlankPictures(stage.sources), Streams(0))
    result = {
        "configuration": list(configuration),
        "predicted_live_bytes": predicted.live_bytes,
        "predicted_reserved_bytes": predicted.unlimited_bytes,
    }
    if not on_card:
        with patch.object(cpu_ways, "taken_for", lambda _: False):  # the step of a card is what is predicted
            measured = measure_step(step, state, plan, blocks, count_zeros=True)
        return result | {"live_bytes": measured.peak.size_bytes, "reserved_bytes": None}
    for _ in range(3):
        step.run(state, plan, count_zeros=True)
    torch.cuda.synchronize()
    return result | {
        "live_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def main() -> None:
    """Run all configurations, print a table, write JSON."""
    words = sys.argv[1:]
    if words[:1] == ["--one"]:
        print(json.dumps(one(json.loads(words[1]))))
        return
    out = next((Path(w) for w in words if w.endswith(".json")), None)
    device, _ = choose_device()
    if device.type == "cuda":
        save_calibration(calibrate(device), Folders.from_environment().cache)
    card = choose_card(None, device)
    workspace = card.workspace_bytes if device.type == "cuda" else 0
    rows = []
    for configuration in SMALL if "--small" in words else LARGE:
        call = [sys.executable, __file__, "--one", json.dumps(configuration)]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{configuration}: failed: {done.stderr.strip().splitlines()[-1]}", flush=True)
            rows.append({"configuration": list(configuration), "failed": done.stderr.strip().splitlines()[-1]})
            continue
        row = json.loads(done.stdout.strip().splitlines()[-1])
        row["predicted_reserved_with_workspaces_bytes"] = row["predicted_reserved_bytes"] + workspace
        rows.append(row)
        print(_line(row), flush=True)
    if out is not None:
        result = {
            "machine": describe_machine(),
            "card": card.name if device.type == "cuda" else None,
            "context_bytes": card.context_bytes,
            "workspace_bytes": workspace,
            "rows": rows,
        }
        out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def _line(row: dict[str, Any]) -> str:
    name, precision, micro_batch, batch, savers = row["configuration"]
    live = f"live {row['live_bytes'] / GIB:7.3f}, off by {row['predicted_live_bytes'] / row['live_bytes'] - 1:+.2%}"
    reserved = ""
    if row["reserved_bytes"] is not None:
        off = row["predicted_reserved_with_workspaces_bytes"] / row["reserved_bytes"] - 1
        reserved = f"; reserved {row['reserved_bytes'] / GIB:7.3f}, off by {off:+.2%}"
    return f"{name:26} {precision} {micro_batch:3} of {batch:3} {savers or '-':42} {live}{reserved}"


if __name__ == "__main__":
    main()
