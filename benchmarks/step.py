"""Times training steps of a recipe in several ways, side by side: python benchmarks/step.py [RECIPE] [KEY=VALUE ...]

Ways: fp32 as networks are written (NCHW), fp32 and half precision channels-last, and half precision with every block
recomputed. They take turns, step by step, so that a busy machine slows all of them; quoted is each way's least time.
What the machine's units can do is measured beside them: half precision can gain no more than a big matrix product does.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path

import torch

from frugan.api.devices import choose_device, choose_plan, normalisation_group
from frugan.api.networks import build_networks
from frugan.api.setup import setup_of
from frugan.engine.plan import Plan
from frugan.engine.precision import resolve_precision
from frugan.engine.state import TrainingState
from frugan.engine.step import Step
from frugan.engine.streams import Streams
from frugan.engine.working_weights import Layout
from frugan.memory.blank_pictures import BlankPictures
from frugan.memory.machine import measure_peaks
from frugan.recipe import Recipe
from frugan.recipe_loading import load_recipe
from machine import describe_machine

ROUNDS = 6


class PlainPlan(Plan):
    """A plan whose weights keep the layout they are written in."""

    def layout(self, device: torch.device) -> Layout:
        """NCHW."""
        return Layout(self.precision.dtype, channels_last=False)


def make(recipe: Recipe, way: str, device: torch.device) -> tuple[TrainingState, Step, Plan]:
    """A training set-up for one way."""
    torch.manual_seed(0)
    setup = setup_of(recipe)
    networks = setup.used(build_networks(recipe))
    for network in networks.values():
        network.to(device)
    group = normalisation_group(recipe, networks, setup.every_phase)
    precision = resolve_precision("fp32" if way.startswith("fp32") else "auto", device)
    blocks = recipe.kind.recomputable(networks) if way.endswith("recompute") else {}
    plan, _ = choose_plan(recipe, precision, group, None, blocks, ema_on_host=False)
    if way == "fp32 NCHW":
        plan = PlainPlan(**{field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)})
    pictures = BlankPictures(recipe.kind.sources(recipe.networks, recipe.objective))
    return setup.state(networks, plan, device), setup.step(pictures, Streams(0)), plan


def main() -> None:
    """Time the ways in turn and print JSON."""
    words = [word for word in sys.argv[1:] if not word.endswith(".json")]
    name, overrides = (words[0], words[1:]) if words else ("biggan-digits-32", [])
    recipe = load_recipe(name, overrides).at_step(0)
    device, _ = choose_device()
    automatic = resolve_precision("auto", device)
    half = automatic.name
    ways = ["fp32 NCHW", "fp32 channels-last"]
    if half != "fp32":
        ways += [f"{half} channels-last", f"{half} recompute"]
    dtypes = {"fp32": torch.float32, half: automatic.dtype}
    peaks = {precision: measure_peaks(device, dtype).macs_per_s for precision, dtype in dtypes.items()}
    setups = {way: make(recipe, way, device) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for round_ in range(ROUNDS + 1):
        for way, (state, step, plan) in setups.items():
            began = time.perf_counter()
            step.run(state, plan)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if round_:  # the first is warm-up
                seconds[way].append(time.perf_counter() - began)
    result = {
        "recipe": [name, *overrides],
        "least_seconds_per_step": {way: round(min(times), 4) for way, times in seconds.items()},
        "images_per_second": {way: round(recipe.training.batch / min(times), 1) for way, times in seconds.items()},
        "matrix_product_gmacs_per_second": {precision: round(peak / 1e9) for precision, peak in peaks.items()},
        "machine": describe_machine(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    for target in (word for word in sys.argv[1:] if word.endswith(".json")):
        Path(target).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
