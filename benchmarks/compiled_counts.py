"""Counts what a compiled step asks of a card: python benchmarks/compiled_counts.py [RECIPE ...] [--out RESULT.json]

Of phases the launches and bytes are those of the programs that torch's compiler wrote for a described card
(benchmarks/compiled_for_cards.py, whose record is read). What stays as it is written (weights made ready, gradients
carried over, updates, averages) is added from the count of the written step.
"""

import json
import sys
from pathlib import Path
from typing import Any

from machine import describe_machine
from step_counts import MICRO_BATCHES, Case, Counts, StepCounts, count_case

CASES = ("biggan-imagenet-128", "saehd-df-ud-256", "stylegan2-ffhq-256")
"""For which goals were set."""
PROGRAMS = Path(__file__).parent / "results" / "compiled-for-cards.json"
TARGET = "sm_86"


def inside(step: StepCounts) -> dict[str, Counts]:
    """Phase -> what the written step does there in forward, losses and backward of all micro-batches."""
    counts_of: dict[str, Counts] = {}
    for (phase, place, _), counts in step.by_operation.items():
        if "/" in place or place == "losses":
            counts_of[phase] = counts_of.get(phase, Counts()) + counts
    return counts_of


def compared(recipe: str, programs: dict[str, Any]) -> dict[str, Any]:
    """The written step beside the compiled one: a usual one of the last stage, of two micro-batches."""
    steps = list(count_case(Case(recipe)).values())
    eager, work = steps[-1].total, inside(steps[-1])
    launches, moved = eager.launches, eager.bytes_moved
    phases = {name: found for name, found in programs["phases"].items() if name in work}
    for name, found in phases.items():
        launches += MICRO_BATCHES * (found["triton_launches"] + found["library_calls"]) - work[name].launches
        moved += MICRO_BATCHES * found["bytes_moved"] - work[name].bytes_moved
    return {
        "written": {"launches": eager.launches, "bytes_moved": eager.bytes_moved},
        "compiled": {"launches": launches, "bytes_moved": moved},
        "written_phases": {name: {"launches": c.launches, "bytes_moved": c.bytes_moved} for name, c in work.items()},
        "micro_batches": MICRO_BATCHES,
        "phases": sorted(phases),
    }


def main() -> None:
    """Count, and print JSON."""
    words = sys.argv[1:]
    target = None
    if "--out" in words:
        at = words.index("--out")
        target = Path(words[at + 1])
        del words[at : at + 2]
    programs = json.loads(PROGRAMS.read_text("utf-8"))
    result = {name: compared(name, programs[name][TARGET]) for name in words or CASES}
    text = json.dumps({**result, "machine": describe_machine()}, indent=1)
    print(text)
    if target is not None:
        target.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
