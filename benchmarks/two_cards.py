"""Two cards: a network on each, or both on each and half the batch. Predicted; needs no card.

    python benchmarks/two_cards.py       # prints the table of docs/cluster.md, writes results/two-cards.json

With a network on each card (G on one, D on the other; encoder and decoders), the cards work in turn, as each needs what
the other has made. So two cards are at best one card with twice the memory, which is what stands here: an even split
of everything, and nothing for what crosses over.
"""

import json
from pathlib import Path
from typing import Any

from frugan.planning.plan_recipe import PlanOptions, plan
from frugan.planning.plan_report import PlanReport
from machine import describe_machine

CARD, LINK = "rtx-2060", "8GB/s"
MEMORY_GIB = (4, 6)
"""Of a card; the smaller is what is left of a 6 GB one beside a desktop and a browser, or of an older card."""
RECIPES = (
    "biggan-imagenet-128",
    "biggan-imagenet-256",
    "stylegan2-ffhq-1024",
    "saehd-df-ud-512",
    "r3gan-ffhq-256",
)


def main() -> None:
    """Plan each recipe both ways, print, write."""
    rows: list[dict[str, Any]] = []
    for recipe in RECIPES:
        for gib in MEMORY_GIB:
            ways = {
                "one card": answer(recipe, gib, 1),
                "a network on each, at best": answer(recipe, 2 * gib, 1),
                "half the batch on each": answer(recipe, gib, 2),
            }
            rows.append({"recipe": recipe, "memory_gib": gib, **ways})
            print(f"| `{recipe}`, {gib} GiB | " + " | ".join(map(cell, ways.values())) + " |", flush=True)
    out = Path(__file__).parent / "results" / "two-cards.json"
    record = {"machine": describe_machine(), "speed_of": CARD, "link": LINK, "rows": rows}
    out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def answer(recipe: str, memory_gib: int, gpus: int) -> dict[str, Any]:
    """The fastest plan: seconds of a step, peak on each card, savings."""
    options = PlanOptions(card=CARD, gpus=gpus, link=LINK if gpus > 1 else None)
    report: PlanReport = plan(recipe, memory=f"{memory_gib}GiB", options=options)
    seconds = report.together.step_seconds if report.together is not None else report.step_seconds
    return {
        "fits": report.fits,
        "step_seconds": seconds,
        "peak_bytes": report.peak_bytes,
        "micro_batch": report.micro_batch,
        "savers": [name for name in report.savers if name != "micro-batch"],
    }


def cell(found: dict[str, Any]) -> str:
    """One field of the table."""
    if not found["fits"]:
        return "no"
    savers = ", ".join(found["savers"])
    return f"{found['step_seconds']:.3g} s{f' ({savers})' if savers else ''}"


if __name__ == "__main__":
    main()
