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
from tempfile import TemporaryDirectory
from typing import Any

from frugan.api.plan.plan_recipe import PlanOptions, planner_of
from frugan.memory.prediction import prediction_version, versions_of, write_predictions
from frugan.recipes import built_in, smallest_cards
from what_fits import COMMON_CARDS_GIB, FP32_CARD, FP32_CARDS_GIB, SHIPPED, answers


def made_anew(recipe: str) -> dict[str, dict[str, Any]]:
    """All predictions that ship with a recipe, by key."""
    made: dict[str, dict[str, Any]] = {}
    ways = [(PlanOptions(), COMMON_CARDS_GIB, True)]
    ways += [(PlanOptions(card=FP32_CARD), FP32_CARDS_GIB, False)] if recipe in smallest_cards(fp32=True) else []
    for options, cards_gib, ladder in ways:
        planner = replace(planner_of(recipe, (), options), name="")  # finds nothing that ships
        answers(planner, cards_gib, ladder=ladder)
        planner.store.close()
        made |= planner.store.known
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


def differing(shipped: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    """Keys of predictions that are not equal, or that only one of the two has."""
    return sorted(key for key in {*shipped, *made} if shipped.get(key) != made.get(key))


def hold(recipe: str) -> list[str]:
    """Compare a recipe's predictions, and note in their file whether they hold for this torch.

    Returns:
        Keys of those that do not.
    """
    file = SHIPPED / f"{recipe}.json"
    shipped = json.loads(file.read_text("utf-8"))["predictions"]
    differ = differing(shipped, made_anew(recipe))
    holds = set() if differ else {prediction_version()}
    write_predictions(file, sorted({*versions_of(file)} - {prediction_version()} | holds), shipped)
    return differ


def main() -> None:
    """Compare, note and print."""
    differ: dict[str, list[str]] = {}
    with TemporaryDirectory() as cache:  # one that is in use may hold predictions of an earlier state of the code
        os.environ["FRUGAN_CACHE"] = cache
        for recipe in sys.argv[1:] or built_in():
            differ[recipe] = hold(recipe)
            print(f"{recipe}: {len(differ[recipe])} differ", file=sys.stderr, flush=True)
    equal = [recipe for recipe, keys in differ.items() if not keys]
    result = {"version": prediction_version(), "equal": equal, "differ": {k: v for k, v in differ.items() if v}}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
