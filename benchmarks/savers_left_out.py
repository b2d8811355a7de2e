"""What savings would bring that frugan does not have; needs no card.

    python benchmarks/savers_left_out.py [OUT.json] [RECIPE ...]

Three that other programs have, held against what is there, for every recipe that ships, at its smallest micro-batch:

- activations sent to host memory and back, instead of recomputed: the time that their way takes, against the time that
  recompute takes, on published figures of cards. All that a step keeps for its backward is sent, each tensor once.
- recompute of several blocks at once: at most what blocks are given could be saved, and that is all that a step which
  recomputes every block keeps.
- each gradient released once its parameter has moved: it would have to be the only one, so there must be no
  accumulation; the table says how many micro-batches add up in 6 GiB.
"""

import json
import sys
from pathlib import Path
from typing import Any

from frugan.planning.plan_recipe import PlanOptions, planner_of
from frugan.planning.prediction import step_memory
from frugan.recipes import built_in
from frugan.stepmemory.cards import named_card
from frugan.wording import GIB
from machine import describe_machine

CARDS = ("gtx-1080-ti", "rtx-2060", "rtx-3060", "rtx-4090")


def compared(name: str) -> dict[str, Any]:
    """A recipe's figures."""
    planner = planner_of(name, (), PlanOptions())
    search = planner.search
    space, estimates = search.space, search.estimates
    smallest = space.micro_batches()[0]
    plans = {keeping: space.plan(smallest, keeping) for keeping in ("all", "nothing")}
    plain, thrifty = (search.run(plan) for plan in plans.values())
    given = thrifty.prediction.categories.get("saved activations", 0)
    stage = estimates.heaviest_stage
    trace = step_memory(space.training, plans["all"], "card", stage).trace
    traced = min(2, space.training.batch // smallest)
    kept = sum(
        size
        for category, size in zip(trace.categories, trace.sizes_bytes, strict=True)
        if category == "saved activations"
    )
    count = space.training.batch / smallest / traced
    cards = {}
    for card in map(named_card, CARDS):
        again, before = (card.seconds(each.work, planner.precision) for each in (thrifty, plain))
        cards[card.name] = {
            "sent_seconds": 2 * kept * count / card.host_bytes_per_s,
            "recomputed_seconds": again - before,
        }
    within = search.within(6 * GIB - planner.card.context_bytes - planner.card.workspace_bytes)
    planner.store.close()
    return {
        "heaviest_stage": stage.name,
        "kept_bytes_per_micro_batch": kept / traced,
        "given_to_blocks_share": given / thrifty.prediction.live_bytes,
        "micro_batches_in_6_gib": None if within is None else -(-space.training.batch // within.plan.micro_batch),
        "cards": cards,
    }


def main() -> None:
    """Compare, print, write."""
    words = sys.argv[1:]
    out = next((Path(w) for w in words if w.endswith(".json")), None)
    rows = {}
    heads = [f"sent / recomputed on {card}" for card in CARDS]
    print("| recipe | " + " | ".join(heads) + " | given to blocks | micro-batches in 6 GiB |")
    print("|---" * (len(CARDS) + 3) + "|")
    for name in [w for w in words if not w.endswith(".json")] or list(built_in()):
        rows[name] = row = compared(name)
        times = [each["sent_seconds"] / each["recomputed_seconds"] for each in row["cards"].values()]
        cells = [f"{time:.1f}" for time in times]
        added = row["micro_batches_in_6_gib"] or "does not fit"
        print(f"| `{name}` | {' | '.join(cells)} | {row['given_to_blocks_share']:.0%} | {added} |", flush=True)
    if out is not None:
        out.write_text(json.dumps({"machine": describe_machine(), "recipes": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
