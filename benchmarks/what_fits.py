"""What fits which card: every recipe that ships in what drivers leave of cards, by the planner; needs no card.

    python benchmarks/what_fits.py [--fp32] [OUT.json] [RECIPE ...]
    python benchmarks/predicted_pages.py

The first prints the table of docs/memory.md and writes it as JSON; with --fp32 the other one, for cards without
half-precision units (GTX 10xx and 16xx), which train in fp32. The second writes the page, from
benchmarks/results/what-fits.json and what-fits-fp32.json. The predictions that are made on the way are kept in
`src/frugan/predictions`, so that `frugan plan` answers at once; run it again when a change moves what a step
takes (and raise VERSION in planning/predictions.py).
"""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frugan.planning.plan_recipe import PlanOptions, planner_of
from frugan.planning.planner import Planner
from frugan.planning.predictions import prediction_version
from frugan.recipes import SMALLEST_CARDS, SMALLEST_FP32_CARDS, built_in, smallest_cards
from frugan.stepmemory.cards import DESKTOP_BYTES, TooSmall, left_bytes
from frugan.wording import GIB
from machine import describe_machine
from page_tables import table

SHIPPED = Path(__file__).parents[1] / "src" / "frugan" / "predictions"
COMMON_CARDS_GIB = (4, 6, 8, 11, 12, 16, 24)
"""Memory of the cards that people have."""
FP32_CARDS_GIB = (4, 6, 8, 11, 12)
"""Memory of those among them that have no half-precision units."""
FP32_CARD = "gtx-1060"
"""Whose precision and speed the fp32 table is for: the most common one, and the others are alike."""
SHORT = {
    "keep-products": "k",
    "recompute": "r",
    "offload": "h",
    "dense-slices": "d",
    "ema-on-host": "e",
    "optimizer-on-host": "o",
}


def answers(planner: Planner, cards_gib: Sequence[int], *, ladder: bool) -> dict[str, Any]:
    """A recipe on every card, alone and beside a desktop, and its ladder, so that its predictions are kept."""
    fits: dict[str, Any] = {}
    for gib in cards_gib:
        budget_bytes = left_bytes(gib * GIB)
        beside = answer(planner, budget_bytes - DESKTOP_BYTES, 0)
        fits[str(gib)] = answer(planner, budget_bytes, math.inf if ladder else 0) | {"beside_desktop": beside}
    if ladder:
        planner.report(None)
    return fits


def answer(planner: Planner, budget_bytes: int, nearest_seconds: float) -> dict[str, Any]:
    """A recipe in a budget."""
    try:
        report = planner.report(budget_bytes, nearest_seconds=nearest_seconds)
    except TooSmall:
        return {"budget_bytes": budget_bytes, "fits": False}
    return {
        "budget_bytes": budget_bytes,
        "fits": report.fits,
        "peak_bytes": report.peak_bytes,
        "micro_batch": report.micro_batch,
        "savers": report.savers,
        "extra_compute": report.extra_compute,
        "extra_time": report.chosen.extra_time,
        "nearest_change": report.nearest_change,
    }


def cell(found: Mapping[str, Any]) -> str:
    """One field of the table: micro-batch, savings, extra time where it matters."""
    if not found["fits"]:
        return "no"
    savers = "".join(SHORT[saver] for saver in found["savers"] if saver in SHORT)
    extra = f" +{found['extra_time']:.0%}" if found["extra_time"] >= 0.005 else ""
    return f"{found['micro_batch']}{' ' + savers if savers else ''}{extra}"


def table_of(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table: every recipe on every card."""
    cards_gib = list(next(iter(rows.values())))
    lines = [[f"`{name}`", *(cell(fits[gib]) for gib in cards_gib)] for name, fits in rows.items()]
    return table(["recipe", *(f"{gib} GB" for gib in cards_gib)], lines)


def main() -> None:
    """Plan, print, write."""
    fp32 = "--fp32" in sys.argv
    words = [word for word in sys.argv[1:] if word != "--fp32"]
    options = PlanOptions(card=FP32_CARD) if fp32 else PlanOptions()
    cards_gib = FP32_CARDS_GIB if fp32 else COMMON_CARDS_GIB
    kept_in = SHIPPED / (SMALLEST_FP32_CARDS if fp32 else SMALLEST_CARDS)
    out = next((Path(w) for w in words if w.endswith(".json")), None)
    names = [w for w in words if not w.endswith(".json")] or list(built_in())
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        begun = time.perf_counter()
        planner = planner_of(name, (), options)
        rows[name] = answers(planner, cards_gib, ladder=not fp32)
        planner.store.save(SHIPPED / f"{name}.json")
        fits_gib = next((gib for gib in cards_gib if rows[name][str(gib)]["fits"]), None)
        smallest = smallest_cards(fp32=fp32) | {name: fits_gib}
        ordered = {known: smallest[known] for known in built_in() if known in smallest}
        kept_in.write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")
        planner.store.close()
        print(f"{name}: {time.perf_counter() - begun:.0f} s, {planner.store.ran} runs", file=sys.stderr, flush=True)
        if out is not None:
            result = {"version": prediction_version(), "machine": describe_machine(), "recipes": rows}
            out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(table_of(rows))


if __name__ == "__main__":
    main()
