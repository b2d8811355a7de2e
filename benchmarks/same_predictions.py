"""Which predictions that ship hold for the torch that runs this: python benchmarks/same_predictions.py [RECIPE ...]

Makes those of each recipe (all, if none is named) anew as `what_fits.py` makes them, and compares figure by figure. A
file whose every prediction is equal names this torch from then on, so that `frugan plan` answers from it; one of which
any differs does not, and there it is planned anew. Prints what was found as JSON. `card_twin.py` runs it in each torch.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from frugan.planning.plan_recipe import PlanOptions, planner_of
from frugan.planning.predictions import prediction_version, versions_of, write_predictions
from frugan.recipes import built_in, smallest_cards
from what_fits import COMMON_CARDS_GIB, FP32_CARD, FP32_CARDS_GIB, SHIPPED, answers


def made_anew(recipe: str) -> dict[str, dict[str, Any]]:
    """All predictions that ship with a recipe, by key."""
    planner = replace(planner_of(recipe, (), PlanOptions()), name="")  # finds nothing that ships
    answers(planner, COMMON_CARDS_GIB, ladder=True)
    if recipe in smallest_cards(fp32=True):
        in_fp32 = replace(planner_of(recipe, (), PlanOptions(card=FP32_CARD)), known=planner.store)
        answers(in_fp32, FP32_CARDS_GIB, ladder=False)
    planner.store.close()
    return json.loads(json.dumps(planner.store.known))  # type: ignore[no-any-return]


def note(file: Path, made: Mapping[str, Any]) -> list[str]:
    """Compare a recipe's predictions with those made by this torch, and let their file say whether they hold for it.

    What is not made any more, as that of a recipe as it was before, cannot be held to anything: where the rest is equal
    it goes.

    Returns:
        Keys of those that differ.
    """
    shipped = json.loads(file.read_text("utf-8"))["predictions"]
    again = {key: prediction for key, prediction in shipped.items() if key in made}
    differ = [key for key in again if again[key] != made[key]]
    others = {*versions_of(file)} - {prediction_version()}
    if differ:
        write_predictions(file, sorted(others), shipped)
    else:
        write_predictions(file, sorted({*others, prediction_version()}), again)
    return differ


def main() -> None:
    """Compare, note and print."""
    differ: dict[str, list[str]] = {}
    with TemporaryDirectory() as cache:  # one that is in use may hold predictions of an earlier state of the code
        os.environ["FRUGAN_CACHE"] = cache
        for recipe in sys.argv[1:] or built_in():
            differ[recipe] = note(SHIPPED / f"{recipe}.json", made_anew(recipe))
            print(f"{recipe}: {len(differ[recipe])} differ", file=sys.stderr, flush=True)
    equal = [recipe for recipe, keys in differ.items() if not keys]
    result = {"version": prediction_version(), "equal": equal, "differ": {k: v for k, v in differ.items() if v}}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
