"""Counts what a training step asks of a card: kernels started, bytes moved, FLOPs, waits. Needs no card.

    python benchmarks/counts.py                          every recipe that ships, and renews the record
    python benchmarks/counts.py RECIPE ... [KEY=VALUE ...] [--precision fp32] [--micro-batch N]     prints, by phase
        and by place; with --operations by operation too

A step here is of two micro-batches, each of one normalisation group, or of half the batch where nothing is normalised
over samples. Operations are counted as torch dispatches them, on tensors without data, laid out as on a card; views
cost nothing. Phases that are not due at every step are counted in a step where all are ("all due") and in a usual one.

The record, benchmarks/results/counts.json, is held by tests/test_step_counts.py: whoever makes a step dearer by
more than 2 % renews it on purpose, by the first command, or with the names of the recipes and --renew.
"""

import json
import sys
from pathlib import Path
from typing import Any, cast

import torch

from frugan.accelerator.precision import PrecisionName
from step_counts import Case, Counts, StepCounts, count_case, shipped_cases

RECORD = Path(__file__).parent / "results" / "counts.json"


def as_json(counts: Counts) -> dict[str, int]:
    """For the record."""
    return {
        "launches": counts.launches,
        "bytes_moved": counts.bytes_moved,
        "flops": counts.flops,
        "syncs": counts.syncs,
    }


def record_of(steps: dict[str, StepCounts]) -> dict[str, Any]:
    """What is kept of one case: step -> totals, and shares by phase and by place."""
    return {
        name: {
            **as_json(step.total),
            "by_phase": {phase: as_json(counts) for phase, counts in step.by(0).items()},
            "by_place": {place: as_json(counts) for place, counts in step.by(1).items()},
        }
        for name, step in steps.items()
    }


def show(name: str, steps: dict[str, StepCounts], *, operations: bool) -> None:
    """Print a case as tables."""
    for step, step_counts in steps.items():
        print(f"\n{name}, {step}")
        _row("all", step_counts.total)
        for title, part in (("phase", 0), ("place", 1), *((("operation", 2),) if operations else ())):
            print(f"  by {title}")
            for key, counts in sorted(step_counts.by(part).items(), key=lambda each: -each[1].launches):
                _row(f"  {key}", counts)


def _row(name: str, counts: Counts) -> None:
    size, work = counts.bytes_moved / 1e6, counts.flops / 1e9
    print(f"  {name:40} {counts.launches:6} launches {size:10.1f} MB {work:10.2f} GFLOP {counts.syncs:4} syncs")


def renew(cases: dict[str, Case]) -> None:
    """Count cases and put them into the record."""
    before = json.loads(RECORD.read_text("utf-8"))["cases"] if RECORD.is_file() else {}
    now = {name: record_of(count_case(case)) for name, case in cases.items()}
    kept = {name: now.get(name, before.get(name)) for name in shipped_cases() if name in now or name in before}
    RECORD.write_text(_lines({"torch": str(torch.__version__), "cases": kept}, depth=3) + "\n", "utf-8")


def _lines(tree: Any, depth: int, margin: str = "") -> str:
    """JSON with a line for each entry down to some depth: a change of one step is a change of one line."""
    if depth == 0 or not isinstance(tree, dict):
        return json.dumps(tree)
    entries = [f"{margin} {json.dumps(key)}: {_lines(tree[key], depth - 1, margin + ' ')}" for key in tree]
    return "{\n" + ",\n".join(entries) + f"\n{margin}}}"


def main() -> None:
    """Count and print, or renew the record."""
    words = sys.argv[1:]
    options = {word for word in words if word in ("--renew", "--operations")}
    words = [word for word in words if word not in options]
    values: dict[str, str] = {}
    for option in ("--precision", "--micro-batch"):
        if option in words:
            at = words.index(option)
            values[option] = words[at + 1]
            del words[at : at + 2]
    overrides = tuple(word for word in words if "=" in word)
    names = [word for word in words if "=" not in word]
    known = shipped_cases()
    if not names or "--renew" in options:
        renew({name: known[name] for name in names or known})
        return
    for name in names:
        case = known.get(name) or Case(name)
        case = Case(
            case.recipe,
            (*case.overrides, *overrides),
            int(values["--micro-batch"]) if "--micro-batch" in values else case.micro_batch,
            cast(PrecisionName, values.get("--precision", case.precision)),
        )
        show(name, count_case(case), operations="--operations" in options)


if __name__ == "__main__":
    main()
