"""How near steps come to the published peaks of cards, by predictions: python benchmarks/card_limit.py [OUT.json]

Of each recipe the plan for a card is counted, on tensors without data, by phase and kind of work. A place's seconds are
those that the planner predicts; its floor is how long its products would take at the card's published peak, or its
bytes at the published bandwidth, whichever is longer. What the card is predicted to wait for its host is a place of its
own, at a floor of nothing. Nothing here was measured on a card.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage, Training
from frugan.planning.plan_recipe import PlanOptions, planner_of
from frugan.planning.predictions import prediction_version
from frugan.stepmemory.cards import PUBLISHED, Card, Published
from frugan.stepmemory.work import Work
from limit import kind_of, shapes_of
from step_counts import AVERAGES, count_step

CARDS = ("rtx-3060", "a100")
RECIPES = (
    "biggan-imagenet-128",
    "biggan-small-64",
    "r3gan-cifar10-32",
    "saehd-df-ud-256",
    "stylegan2-ffhq-256",
    "stylegan3-t-256",
)
FORWARDS = (3, 4)
"""Micro-batches of counted steps, which tell what longer ones take: gradients of exactly two are added up apart."""
TOLERANCES = {"macs": 0.001, "bytes_moved": 0.02}
"""Shares by which counted work may be off the planner's own run of a plan, which also counts zeros among gradients."""

Place = tuple[str, str, str]
"""Phase, kind of work, and an operation with its shapes."""


def counted(training: Training, plan: Plan, stage: Stage, forwards: int) -> dict[Place, Work]:
    """Work of an average step of so many micro-batches, by place."""
    every = {phase.name: phase.every for phase in stage.phases}
    step = count_step(
        training.with_batch(forwards * plan.micro_batch),
        plan,
        stage,
        named=lambda name, args: f"{kind_of(name, args)}/{name} {shapes_of(args)}",
    )
    found: dict[Place, Work] = {}
    for (phase, _, name), counts in step.by_operation.items():
        kind, _, operation = name.partition("/")
        work = Work(
            macs=counts.flops / 2,
            bytes_moved=counts.bytes_moved,
            operations=counts.launches,
            fp32_macs=counts.fp32_flops / 2,
        )
        place = (phase, kind, operation)
        found[place] = found.get(place, Work()) + work * (1 / every.get(phase, 1))
    return found


def average_step(training: Training, plan: Plan, stage: Stage) -> dict[Place, Work]:
    """Work of an average step of a plan, by place."""
    forwards = training.batch / plan.micro_batch
    if forwards <= FORWARDS[-1]:
        return counted(training, plan, stage, round(forwards))
    fewer, more = (counted(training, plan, stage, count) for count in FORWARDS)
    further = forwards - FORWARDS[-1]
    return {place: work + (work - fewer.get(place, Work())) * further for place, work in more.items()}


def floor_seconds(work: Work, published: Published) -> float:
    """Seconds that work would take at a card's published peaks."""
    products = (work.macs - work.fp32_macs) / published.half + work.fp32_macs / published.fp32
    return max(products / (1e12 / 2), work.bytes_moved / (1e9 * published.gb_per_s))


def check_counts(step: str, found: Mapping[Place, Work], planned: Work) -> None:
    """Hold what was counted to the planner's run of the plan, which leaves out the averages behind the last phase.

    Raises:
        RuntimeError: they differ.
    """
    phases = sum((work for place, work in found.items() if place[0] != AVERAGES), Work())
    for name, tolerance in TOLERANCES.items():
        counts, expected = getattr(phases, name), getattr(planned, name)
        if abs(counts / expected - 1) > tolerance:
            raise RuntimeError(
                f"{step}: {counts:.5g} {name} were counted, and the planner has {expected:.5g}; see whether "
                f"micro-batches beyond {FORWARDS[-1]} do the same work"
            )


def limit_on(card_name: str, recipe: str) -> dict[str, Any]:
    """Predicted table of an average step of a recipe's plan on a card.

    Raises:
        RuntimeError: what was counted is not the work by which the plan was chosen.
    """
    planner = planner_of(recipe, (), PlanOptions(card=card_name))
    card: Card = planner.card
    with planner:
        chosen = planner.report(card.memory_bytes, nearest_seconds=0).chosen
    found = average_step(planner.training, chosen.plan, planner.search.estimates.heaviest_stage)
    check_counts(f"{recipe} on {card_name}", found, chosen.work)
    rows: dict[tuple[str, str], Work] = {}
    floors: dict[tuple[str, str], float] = {}
    for (phase, kind, _), work in found.items():
        rows[phase, kind] = rows.get((phase, kind), Work()) + work
        floors[phase, kind] = floors.get((phase, kind), 0.0) + floor_seconds(work, PUBLISHED[card_name])
    busy = {
        place: card.compared_seconds(replace(work, operations=0), planner.precision) for place, work in rows.items()
    }
    total = sum(rows.values(), Work(host_bytes=chosen.work.host_bytes, beside_bytes=chosen.work.beside_bytes))
    seconds = card.seconds(total, planner.precision)
    return {
        "card": card_name,
        "recipe": recipe,
        "seconds": round(seconds, 4),
        "seconds_waiting": round(max(0.0, seconds - sum(busy.values())), 4),
        "precision": planner.precision.name,
        "micro_batch": chosen.plan.micro_batch,
        "rows": [
            {
                "phase": phase,
                "kind": kind,
                "launches": round(work.operations),
                "gflop": round(2 * work.macs / 1e9, 3),
                "gbyte": round(work.bytes_moved / 1e9, 3),
                "seconds": round(busy[phase, kind], 6),
                "floor_seconds": round(floors[phase, kind], 6),
            }
            for (phase, kind), work in sorted(rows.items(), key=lambda row: -busy[row[0]])
        ],
    }


def words(step: Mapping[str, Any]) -> str:
    """A step's table as text."""
    lines = [f"{step['recipe']} on {step['card']}, micro-batch {step['micro_batch']}, {step['precision']}"]
    head = ("ms", "of step", "GFLOP", "GB", "launches", "of peak")
    lines.append(f"{'phase':18} {'kind':14} " + " ".join(f"{word:>10}" for word in head))
    for row in step["rows"]:
        share = row["floor_seconds"] / row["seconds"] if row["seconds"] else 0.0
        lines.append(
            f"{row['phase']:18} {row['kind']:14} {1e3 * row['seconds']:10.2f} {row['seconds'] / step['seconds']:10.1%} "
            f"{row['gflop']:10.1f} {row['gbyte']:10.2f} {row['launches']:10} {share:10.1%}"
        )
    floor = sum(row["floor_seconds"] for row in step["rows"])
    waiting = step["seconds_waiting"] / step["seconds"]
    lines.append(f"waiting for the host {waiting:.1%}; of the limit {floor / step['seconds']:.1%}, predicted")
    return "\n".join(lines)


def main() -> None:
    """Print the tables, and write the figures if a file is named."""
    steps = []
    for card in CARDS:
        for recipe in RECIPES:
            steps.append(limit_on(card, recipe))
            print(words(steps[-1]), end="\n\n", flush=True)
    for target in sys.argv[1:]:
        record = {"version": prediction_version(), "steps": steps}
        Path(target).write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
