"""Draws memory over one training step, before and after savings, as the planner follows it.

    python benchmarks/memory_picture.py [OUT.png]

`biggan-imagenet-128`, batch 2048 in micro-batches of 32, bf16: nothing saved, and two savings at once. No card: two
micro-batches of each phase on tensors without data, as `frugan plan` runs them.
"""

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from frugan.accelerator.precision import Precision, resolve_precision
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.planning.prediction import HOST, step_memory
from frugan.recipe.loading import load_recipe
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.measurement import StepMemory
from frugan.stepmemory.tracker import Category
from frugan.wording import GIB

RECIPE = "biggan-imagenet-128"
COLOURS: dict[Category, str] = {
    "parameters": "#20355c",
    "optimizer": "#35598f",
    "averages": "#5b83b8",
    "working weights": "#8fb0d6",
    "gradients": "#e0a030",
    "batch": "#7a7a7a",
    "saved activations": "#c2513d",
    "temporaries": "#e8a79b",
}


def series(memory: StepMemory, points: int = 1500) -> tuple[list[int], dict[Category, list[float]], dict[str, int]]:
    """GiB by category over the events of a step, thinned; and the event at which each phase begins."""
    trace = memory.trace
    live: dict[Category, int] = dict.fromkeys(COLOURS, 0)
    at: list[int] = []
    sizes: dict[Category, list[float]] = {category: [] for category in COLOURS}
    begins: dict[str, int] = {}
    every = max(1, (len(trace.events) - memory.begins) // points)
    for number, event in enumerate(trace.events):
        storage = event if event >= 0 else -1 - event
        live[trace.categories[storage]] += trace.sizes_bytes[storage] if event >= 0 else -trace.sizes_bytes[storage]
        if event >= 0 and number >= memory.begins:
            begins.setdefault(trace.places[storage].split("/")[0], number - memory.begins)
        if number >= memory.begins and (number - memory.begins) % every == 0:
            at.append(number - memory.begins)
            for category, size in live.items():
                sizes[category].append(size / GIB)
    return at, sizes, begins


def plans(training: Training, precision: Precision) -> dict[str, Plan]:
    """Nothing saved, and two savings at once."""
    blocks = training.recomputable(training.build("meta"))
    return {
        "nothing saved": Plan(32, precision),
        "products kept, the rest made again; optimizer state on the host": Plan(
            32, precision, blocks, keep_products=True, optimizer_on_host=True
        ),
    }


def main() -> None:
    """Trace both, draw, write."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures/memory-over-a-step.png")
    training = training_of(load_recipe(RECIPE))
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.2), sharey=True)
    for axis, (title, plan) in zip(axes, plans(training, resolve_precision("bf16", HOST)).items(), strict=True):
        memory = step_memory(training, plan, "card", training.stages[0], rough=False)
        at, sizes, begins = series(memory)
        axis.stackplot(at, *sizes.values(), labels=list(sizes), colors=list(COLOURS.values()), linewidth=0)
        axis.axhline(memory.peak.size_bytes / GIB, color="black", linewidth=0.8, linestyle=":")
        axis.set_title(f"{title}: peak {memory.peak.size_bytes / GIB:.2f} GiB", fontsize=10)
        names = {"D": "D, two micro-batches", "G": "G, two micro-batches", "sheets": "sheets"}
        shown = {names[place]: number for place, number in begins.items() if place in names}
        axis.set_xticks(list(shown.values()), list(shown), ha="left", fontsize=8)
        axis.set_xlim(0, at[-1])
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0].set_ylabel("GiB that live")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="center right", fontsize=8, frameon=False)
    figure.suptitle(f"{RECIPE}: memory over one training step (predicted)", fontsize=11)
    figure.tight_layout(rect=(0, 0, 0.87, 1))
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
