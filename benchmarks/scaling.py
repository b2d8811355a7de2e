"""What several ranks cost and gain: measured for 1 and 2 over gloo here, predicted for 8, 64 and 512 cards.

    python benchmarks/scaling.py [--card a100] [--gigabytes-per-second 12.5] [--microseconds 20] [--no-measuring]

Writes `benchmarks/results/scaling.json` and prints two tables.

Measured: `biggan-digits-32`, a batch of 32 in groups of 16, on blank pictures, one thread a rank: seconds of a step
(median), and bytes that each rank adds up with the others in it.

Predicted, nothing of it measured: each card takes its share of the recipe's batch, but no less than a normalisation
group (or a sample); where that makes the batch larger, it is another training. Nothing travels while a card computes,
as in training here. With N cards, per-card bandwidth B and latency L of the slowest link, and for each update of a
phase V bytes of gradients:

    seconds = compute(share) + sum over updates of  2 (N - 1) / N * V / B  +  2 ceil(log2 N) * L
    efficiency = compute(share) / seconds

(`frugan.stepmemory.cards`, which `frugan plan --gpus N` goes by too). `compute` is the planner's time for the share on
a card by its maker's figures, give or take 30 %.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from frugan.accelerator.precision import Precision
from frugan.engine.plan import Plan
from frugan.engine.ranks.group import RankGroup
from frugan.engine.ranks.joining import joined
from frugan.engine.ranks.place import Place
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.engine.streams import Streams
from frugan.planning.links import Link, seconds_between, sums_of
from frugan.planning.prediction import BlankPictures, predict
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.cards import named_card
from machine import describe_machine

RECORD = Path(__file__).parent / "results" / "scaling.json"
MEASURED = ("biggan-digits-32", ["training.batch=32", "training.normalisation_batch=16"])
PREDICTED = ("biggan-imagenet-128", "stylegan2-ffhq-1024", "saehd-df-ud-512")
CARDS = (8, 64, 512)
STEPS = 12
"""After one that is not timed."""
BF16 = Precision("bf16", torch.bfloat16, "benchmark")
FP32 = Precision("fp32", torch.float32, "benchmark")


def compute_seconds(recipe: Recipe, share: int, card: str) -> float:
    """Of a step on one card's share."""
    training = training_of(recipe).with_batch(share)
    work = predict(training, Plan(share, BF16), "card", training.stages[0], rough=True).work
    return named_card(card).seconds(work, BF16)


def predicted(name: str, card: str, link: Link) -> dict[str, Any]:
    """A recipe on 8, 64 and 512 cards."""
    recipe = load_recipe(name)
    group = recipe.training.normalisation_batch or 1
    shares = {n: max(group, recipe.training.batch // n) for n in CARDS}
    training = training_of(recipe)
    sums = sums_of(training.stages[0], training.build("meta"))
    compute = {share: compute_seconds(recipe, share, card) for share in {*shares.values()}}
    cards = {}
    for n, share in shares.items():
        between = seconds_between(link, sums, n)
        cards[n] = {
            "share": share,
            "batch": share * n,
            "compute_seconds": compute[share],
            "between_seconds": between,
            "step_seconds": compute[share] + between,
            "efficiency": compute[share] / (compute[share] + between),
        }
    summed = sum(each.size_bytes * each.updates for each in sums)
    return {"batch": recipe.training.batch, "summed_bytes_per_step": summed, "cards": cards}


def timed(ranks: Ranks) -> dict[str, Any]:
    """Seconds of a step on this rank, and what it added up with others."""
    recipe = load_recipe(*MEASURED)
    training = training_of(recipe)
    state = training.state(Plan(16, FP32), torch.device("cpu"))
    blank = BlankPictures(training.stages[0].sources)
    step = replace(training.step(blank, Streams(recipe.training.seed)), ranks=ranks)
    plan, seconds = Plan(16, FP32), []
    step.run(state, plan)
    before = ranks.summed_bytes if isinstance(ranks, RankGroup) else 0
    for _ in range(STEPS):
        began = time.perf_counter()
        step.run(state, plan)
        seconds.append(time.perf_counter() - began)
    summed = (ranks.summed_bytes - before) / STEPS if isinstance(ranks, RankGroup) else 0.0
    return {"step_seconds": median(seconds), "summed_bytes_per_step": round(summed), "batch": recipe.training.batch}


def measured(size: int) -> dict[str, Any]:
    """The same by so many processes of this program."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    places = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank"],
            env={**os.environ, **places, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = [process.communicate()[0] for process in started]
    values: dict[str, Any] = json.loads(said[0].splitlines()[-1])
    return values


def main() -> None:
    """Measure, predict, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", default="a100")
    parser.add_argument("--gigabytes-per-second", type=float, default=12.5, help="of the slowest link, per card")
    parser.add_argument("--microseconds", type=float, default=20.0, help="latency of a message on that link")
    parser.add_argument("--no-measuring", action="store_true", help="keep what was measured before")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        torch.set_num_threads(1)
        place = Place.here()
        if place.alone:
            print(json.dumps(timed(OneRank())))
        else:
            with joined(place, torch.device("cpu")) as ranks:
                values = timed(ranks)
            print(json.dumps(values))
        return

    before = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}
    result: dict[str, Any] = {
        "measured": before["measured"]
        if asked.no_measuring
        else {
            "machine": describe_machine(),
            "load": os.getloadavg()[0],
            "recipe": [MEASURED[0], *MEASURED[1]],
            "ranks": {str(size): measured(size) for size in (1, 2)},
        },
        "predicted": {
            "card": asked.card,
            "bytes_per_second": asked.gigabytes_per_second * 1e9,
            "latency_seconds": asked.microseconds * 1e-6,
            "time_range": list(named_card(asked.card).times),
            "recipes": {
                name: predicted(name, asked.card, Link(asked.gigabytes_per_second * 1e9, asked.microseconds * 1e-6))
                for name in PREDICTED
            },
        },
    }
    RECORD.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print("| ranks (gloo) | s per step | MB added up per step |\n|---|---|---|")
    for size, row in result["measured"]["ranks"].items():
        print(f"| {size} | {row['step_seconds']:.3f} | {row['summed_bytes_per_step'] / 1e6:.2f} |")
    print("\n| recipe | GB added up | " + " | ".join(f"{n} cards" for n in CARDS) + " |")
    print("|---" * (2 + len(CARDS)) + "|")
    for name, row in result["predicted"]["recipes"].items():
        cells = [
            f"{one['efficiency']:.0%} of {one['step_seconds']:.2f} s (batch {one['batch']:,})"
            for one in row["cards"].values()
        ]
        print(f"| `{name}` | {row['summed_bytes_per_step'] / 1e9:.2f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
