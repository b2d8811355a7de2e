"""Keeps the predictions that ship after a change of the code that leaves training steps as they were.

    python benchmarks/confirm_predictions.py [RECIPE ...]

For each recipe the plain plan, the thriftiest and those that estimates come from are run again. Where all of them take
what the file says, the file is taken over for the present code; else it is left, and `what_fits.py` has to make it
anew. Exits 1 if any was left.
"""

import sys

from frugan.api.planner import shipped_predictions
from frugan.api.planning import PlanOptions, planner_of
from frugan.recipe import built_in


def main() -> None:
    """Run again, compare, take over."""
    left = 0
    for name in sys.argv[1:] or list(built_in()):
        planner, _ = planner_of(name, (), PlanOptions())
        file = shipped_predictions(name)
        search = planner.search
        _ = search.estimates.fastest_first
        search.run(search.least().plan)
        if file is not None and planner.store.ran == 0:
            verdict = "is of the present code"
        elif file is not None and planner.store.adopt(file):
            planner.store.save(file)
            verdict = f"stands: {planner.store.ran} runs take what it says"
        else:
            left += 1
            verdict = "is MISSING or says otherwise: run benchmarks/what_fits.py"
        planner.close()
        print(f"{name}: {verdict}", flush=True)
    raise SystemExit(left > 0)


if __name__ == "__main__":
    main()
