"""No plan that fits by a run of its own is faster than the one that is taken, and what is said of plans not run holds."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

import frugan
from contract.made_up import MadeUpFamily
from frugan.api.plan.plan_recipe import PlanOptions, planner_of
from frugan.engine.plan import Plan
from frugan.engine.training import Stage
from frugan.memory.plan_space import Wishes, savers_of
from frugan.memory.prediction import Prediction
from frugan.memory.search import Choice, Search
from frugan.recipes import built_in
from memory.formula import MIB, prediction
from memory.tasks import search, task

BUDGETS = 12
NEAR = 1.04
"""Of plans that are left out unrun because they take more than a budget at least, those are run for which that is
closest."""
TIME = 0.01
"""Share by which an estimated time is off from that of the plan's own run."""
SMALL = ("biggan-digits-32", "saehd-demo-64", "stylegan2-digits-32")


def _budgets(asked: Search) -> list[int]:
    """From too little for any plan to enough for the fastest, and just below what plans take: there it is decided."""
    rungs = sorted(rung.prediction.reserved_bytes for rung in asked.ladder())
    least, most = 0.97 * rungs[0], 1.02 * rungs[-1]
    spread = [int(least * (most / least) ** (at / (BUDGETS - 1))) for at in range(BUDGETS)]
    return [*spread, *(size - 1 for size in rungs)]


def _assert_fastest(asked: Search, budget: int, rivals: list[Plan]) -> None:
    """Of some plans none fits that is faster than the one that is taken."""
    taken = asked.within(budget)
    if taken is not None:
        assert taken.prediction.reserved_bytes <= budget
    for plan in rivals:
        estimate = asked.estimates.of(plan)
        faster = taken is None or estimate.seconds < taken.seconds
        if faster or asked.run(plan).whole_seconds < (1 - TIME) * taken.whole_seconds:  # type: ignore[union-attr]
            ran = asked.run(plan, budget)
            assert ran.prediction.reserved_bytes > budget, _said(asked, plan, budget, taken)


def _said(asked: Search, plan: Plan, budget: int, taken: Choice | None) -> str:
    batch = asked.space.training.batch
    instead = None if taken is None else (taken.plan.micro_batch, savers_of(taken.plan, batch))
    return f"{plan.micro_batch} {savers_of(plan, batch)} fits {budget} and is faster than {instead}"


def _assert_estimates(asked: Search, plan: Plan) -> None:
    """A run takes no less than was said of it before, and as long."""
    estimates, stage = asked.estimates, asked.estimates.heaviest_stage
    ran = asked.predict(plan, stage, rough=False)
    assert estimates.least_bytes(plan) <= ran.live_bytes
    assert estimates.of(plan).seconds == pytest.approx(asked.card.seconds(ran.work, plan.precision), rel=TIME)


def _plans(asked: Search) -> list[Plan]:
    """All that torch does not refuse."""
    return [each.plan for each in asked._all_estimates.fastest_first]


def test_of_the_whole_space_of_a_made_up_family() -> None:
    """By real runs of every plan; the batch of 8 in groups of 2 is added up in 4, 2 and 1 forwards."""
    asked = search(task(MadeUpFamily(), batch=8, group=2))
    plans = _plans(asked)
    assert len(plans) == 24
    for plan in plans:
        assert asked.estimates.least_bytes(plan) <= asked.run(plan).prediction.live_bytes
    for budget in _budgets(asked):
        _assert_fastest(asked, budget, plans)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", SMALL)
def test_of_the_whole_space_of_small_recipes(name: str, precision: str) -> None:
    with planner_of(name, [f"training.precision={precision}"], PlanOptions()) as planner:
        asked = planner.search
        plans = _plans(asked)
        for plan in plans:
            _assert_estimates(asked, plan)
        for budget in _budgets(asked):
            _assert_fastest(asked, budget, plans)


@pytest.mark.long
@pytest.mark.parametrize("name", built_in())
def test_of_every_recipe_that_ships(name: str) -> None:
    """Of the plans that are faster those are run whose least is next to the budget: if any, they would fit."""
    with planner_of(name, (), PlanOptions()) as planner:
        asked = planner.search
        estimates = asked._all_estimates
        for budget in _budgets(asked):
            taken = asked.within(budget)
            rivals = [
                each.plan
                for each in estimates.fastest_first
                if taken is None or each.seconds < taken.seconds
                if estimates.least_bytes(each.plan) <= NEAR * budget
            ]
            _assert_fastest(asked, budget, rivals)
            for plan in (*rivals, *(() if taken is None else (taken.plan,))):
                _assert_estimates(asked, plan)
