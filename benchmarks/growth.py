"""How time and memory of a step grow.

    python benchmarks/growth.py [RECIPE] [KEY=VALUE ...] [--axis NAME] [--out RESULT.json]
    python benchmarks/growth.py --counts [--out RESULT.json]

With `--counts` nothing is timed: steps of large recipes are counted as on a card, against the side of pictures,
channels, samples in one forward, and cards that share a batch; `growth_picture.py` draws them.

Otherwise along five axes: the batch in one forward, accumulation (more micro-batches of one size), the micro-batch
(of one batch), the picture's side, and recompute. Times are the least of several rounds, in which all points of an
axis take turns; memory, FLOPs and bytes are those of the planner's run without data, and on a card what its allocator
has counted stands beside. A line is fitted through each axis; what is furthest from it is quoted. Products are
counted exactly: time that leaves its line where they do not is the machine's doing, not the step's. Along the side of
pictures no line is expected, as networks for larger pictures have fewer channels at each side.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from frugan.accelerator.precision import Precision
from frugan.engine.plan import Plan
from frugan.planning.links import GUESSED, seconds_between, sums_of
from frugan.planning.plan_recipe import PlanOptions, planner_of
from frugan.planning.prediction import step_memory
from frugan.planning.predictions import prediction_version
from frugan.recipe.loading import load_recipe
from frugan.setup.devices import choose_device
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.cards import named_card
from frugan.wording import GIB
from machine import describe_machine
from set_up import SetUp, set_up
from step import in_turn, kinds_of_steps, timed


@dataclass(frozen=True)
class Point:
    """One way to run the recipe."""

    x: float  # where it stands on its axis
    overrides: tuple[str, ...]  # of the recipe
    micro_batch: int  # samples in one forward
    recompute: bool = False  # every block


def axes(group: int, side: int) -> dict[str, list[Point]]:
    """Axis -> its points, for groups of so many samples and pictures of such a side."""

    def batch(size: int) -> str:
        return f"training.batch={size}"

    return {
        "batch in one forward": [Point(k * group, (batch(k * group),), k * group) for k in (1, 2, 3, 4)],
        "accumulation": [Point(k, (batch(k * group),), group) for k in (1, 2, 3, 4)],
        "micro-batch": [Point(k * group, (batch(4 * group),), k * group) for k in (1, 2, 4)],
        "pixels": [
            Point(of**2, (batch(group), f"networks.resolution={of}"), group) for of in (side, 2 * side, 4 * side)
        ],
        "recompute": [Point(on, (batch(group),), group, recompute=bool(on)) for on in (0, 1)],
    }


def make(
    recipe_name: str, overrides: Sequence[str], point: Point, device: torch.device
) -> tuple[SetUp, dict[int, float]]:
    """A set-up that can be run, and the kinds of its steps."""
    recipe = load_recipe(recipe_name, [*overrides, *point.overrides]).at_step(0)
    made = set_up(recipe, device, recipe.training.precision, micro_batch=point.micro_batch, recompute=point.recompute)
    return made, kinds_of_steps(training_of(recipe).stages[0].phases)


def measured(
    recipe_name: str, overrides: Sequence[str], points: Sequence[Point], device: torch.device
) -> list[dict[str, float]]:
    """What each point of an axis takes."""
    ways: dict[str, SetUp] = {}
    for number, point in enumerate(points):
        ways[str(number)], kinds = make(recipe_name, overrides, point, device)
    seconds = in_turn({name: partial(timed, way, device) for name, way in ways.items()}, kinds)
    rows = []
    for number, point in enumerate(points):
        planner = planner_of(recipe_name, [*overrides, *point.overrides], PlanOptions())
        training = planner.training
        memory = step_memory(training, ways[str(number)][2], "card", training.stages[0])
        row = {
            "x": point.x,
            "micro_batch": point.micro_batch,
            "seconds": round(min(seconds[str(number)]), 4),
            "predicted_peak_mib": round(memory.peak.size_bytes / 2**20, 1),
            "gmacs": round(memory.work.macs / 1e9, 2),
            "moved_mib": round(memory.work.bytes_moved / 2**20, 1),
        }
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            state, step, plan = make(recipe_name, overrides, point, device)[0]
            step.run(state, plan)
            row["allocated_peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
        rows.append(row)
    return rows


BF16 = Precision("bf16", torch.bfloat16, "counted")
CARD = "rtx-3060"
"""Card that seconds are predicted for."""


@dataclass(frozen=True)
class Counted:
    """A recipe whose step is counted."""

    x: float  # where it stands on its axis
    recipe: str  # built-in name
    overrides: tuple[str, ...]  # of the recipe
    micro_batch: int = 32  # samples in one forward
    cards: int = 1  # that share the batch


def counted_axes() -> dict[str, list[Counted]]:
    """Axis -> its points."""
    biggan, stylegan = "biggan-imagenet-128", "stylegan2-ffhq-256"

    def batch(size: int, group: int) -> tuple[str, ...]:
        return f"training.batch={size}", f"training.normalisation_batch={group}"

    def channels(number: int) -> tuple[str, ...]:
        return f"networks.generator_channels={number}", f"networks.discriminator_channels={number}"

    sides = (64, 128, 256, 512, 1024)
    return {
        "side": [Counted(side, stylegan, (f"networks.resolution={side}", "training.batch=32")) for side in sides],
        "channels": [Counted(n, biggan, (*channels(n), *batch(32, 32))) for n in (24, 48, 96, 192)],
        "samples": [Counted(n, biggan, batch(n, n), n) for n in (8, 16, 32, 64, 128)],
        "cards": [Counted(n, biggan, batch(256, 32), cards=n) for n in (1, 2, 4, 8)],
    }


def counts_of(point: Counted) -> dict[str, float]:
    """What a step takes of each card."""
    training = training_of(load_recipe(point.recipe, point.overrides))
    training = training.shared_by(point.cards, training.batch // point.cards)
    stage = training.stages[0]
    memory = step_memory(training, Plan(point.micro_batch, BF16), "card", stage)
    sums = sums_of(stage, training.build("meta"))
    return {
        "x": point.x,
        "gflop": round(2 * memory.work.macs / 1e9, 1),
        "gbyte": round(memory.work.bytes_moved / 1e9, 3),
        "launches": round(memory.work.operations, 1),
        "peak_gib": round(memory.live_on_card_bytes / GIB, 3),
        "sent_gbyte": round(sum(GUESSED.sent_bytes(s.size_bytes, point.cards) * s.updates for s in sums) / 1e9, 3),
        "predicted_seconds": round(
            named_card(CARD).seconds(memory.work, BF16) + seconds_between(GUESSED, sums, point.cards), 4
        ),
    }


def exponents(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Quantity -> power of x that it grows with, fitted over all points; of those that are nowhere 0."""
    x = np.log([row["x"] for row in rows])
    names = [name for name in rows[0] if name != "x" and all(row[name] for row in rows)]
    found = {name: float(np.polyfit(x, np.log([row[name] for row in rows]), 1)[0]) for name in names}
    return {name: round(power, 2) + 0.0 for name, power in found.items()}  # no -0.0


def count_all() -> dict[str, object]:
    """Points of all axes and the powers that they follow."""
    axes = {}
    for axis, points in counted_axes().items():
        rows = list(map(counts_of, points))
        axes[axis] = {"recipe": points[0].recipe, "points": rows, "exponents": exponents(rows)}
        print(axis, json.dumps(axes[axis]), flush=True)
    return {"version": prediction_version(), "card": CARD, "axes": axes}


def line_through(rows: Sequence[Mapping[str, float]], name: str) -> dict[str, float]:
    """Least squares, and by how much of its value a point is off the line at most."""
    x, y = (np.array([row[key] for row in rows], float) for key in ("x", name))
    slope, intercept = np.polyfit(x, y, 1)
    off = np.abs(intercept + slope * x - y) / y
    return {"slope": float(f"{slope:.4g}"), "intercept": float(f"{intercept:.4g}"), "furthest": round(off.max(), 3)}


def main() -> None:
    """Measure all axes and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="biggan-digits-32")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    parser.add_argument("--group", type=int, default=8, help="samples of a normalisation group")
    parser.add_argument("--axis", help="one alone: recompute, for instance")
    parser.add_argument("--counts", action="store_true", help="time nothing, count steps of large recipes")
    parser.add_argument("--out", type=Path)
    given = parser.parse_intermixed_args()
    results = count_all() if given.counts else time_all(parser, given)
    if given.out is not None:
        given.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def time_all(parser: argparse.ArgumentParser, given: argparse.Namespace) -> dict[str, object]:
    """Times, memory and work of all axes of a recipe, or of one."""
    overrides = [*given.overrides, f"training.normalisation_batch={given.group}"]
    recipe = load_recipe(given.recipe, given.overrides)
    device, _ = choose_device()
    results: dict[str, object] = {}
    chosen = axes(given.group, recipe.networks.resolution)  # type: ignore[attr-defined]
    if given.axis is not None and given.axis not in chosen:
        parser.error(f"--axis {given.axis}: expected one of {', '.join(chosen)}")
    for axis, points in chosen.items():
        if given.axis not in (None, axis):
            continue
        rows = measured(given.recipe, overrides, points, device)
        names = [name for name in rows[0] if name not in ("x", "micro_batch")]
        lines = {name: line_through(rows, name) for name in names} if len(rows) > 2 else {}
        results[axis] = {"points": rows, "lines": lines}
        print(axis, json.dumps(results[axis]), flush=True)
    return {"recipe": [given.recipe, *overrides], "axes": results, "machine": describe_machine()}


if __name__ == "__main__":
    main()
