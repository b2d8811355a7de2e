"""No plan that fits by a run of its own is faster than the one that is taken."""

from dataclasses import dataclass, replace
from itertools import product

import pytest

from contract.made_up import MadeUpFamily
from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage
from frugan.planning.candidate import PlanCandidate
from frugan.planning.plan_recipe import PlanOptions, planner_of
from frugan.planning.plan_recipe import plan as make_plan
from frugan.planning.plan_space import Keeping, savers_of
from frugan.planning.prediction import Prediction
from frugan.planning.search import Search
from frugan.recipes import built_in
from frugan.stepmemory.work import Work
from planning.formula import MIB
from planning.tasks import search, task

BUDGETS = 12
NEAR = 1.04
"""Of plans that are left out unrun because they take more than a budget at least, those are run for which that is
closest."""
TIME = 0.02
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
    for rival in rivals:
        if taken is None or asked.estimates.of(rival).seconds < taken.seconds:
            ran = asked.run(rival, budget)
            assert ran.prediction.reserved_bytes > budget, _said(asked, rival, budget, taken)


def _said(asked: Search, rival: Plan, budget: int, taken: PlanCandidate | None) -> str:
    batch = asked.space.training.batch
    instead = None if taken is None else (taken.plan.micro_batch, savers_of(taken.plan, batch))
    return f"{rival.micro_batch} {savers_of(rival, batch)} fits {budget} and is faster than {instead}"


def _assert_estimates(asked: Search, like: Plan) -> None:
    """A run takes no less than was said of it before, and as long."""
    estimates, stage = asked.estimates, asked.estimates.heaviest_stage
    ran = asked.predict(like, stage, rough=False)
    assert estimates.least_bytes(like) <= ran.live_bytes
    assert estimates.of(like).seconds == pytest.approx(estimates.seconds(ran.work, like), rel=TIME)


def _plans(asked: Search) -> list[Plan]:
    """All that torch does not refuse."""
    return [each.plan for each in asked.all_estimates.fastest_first]


def test_of_the_whole_space_of_a_made_up_family() -> None:
    """By real runs of every plan; the batch of 8 in groups of 2 is added up in 4, 2 and 1 forwards."""
    asked = search(replace(task(MadeUpFamily(), batch=8, group=2), averaged={}))
    plans = _plans(asked)
    assert len(plans) == 30
    for each in plans:
        assert asked.estimates.least_bytes(each) <= asked.run(each).prediction.live_bytes
    for budget in _budgets(asked):
        _assert_fastest(asked, budget, plans)


@pytest.mark.long
@pytest.mark.parametrize("keeping", ["all", "nothing"])
def test_of_two_forwards_whose_gradients_add_up_in_half(keeping: Keeping) -> None:
    """More than two add up in fp32 from the first on: a line through these says too much of two."""
    asked = planner_of("saehd-df-ud-512", ("training.batch=16",), PlanOptions()).search
    plan = asked.space.plan(8, keeping)
    assert asked.estimates.least_bytes(plan) <= asked.run(plan).prediction.live_bytes


@dataclass
class WithGradients:
    """Takes most in backward, whose gradients are kept where a further forward adds to them, or while all lives."""

    static_mib: int = 120
    working_mib: int = 30
    gradients_mib: int = 40
    sample_mib: int = 8

    def __call__(self, plan: Plan, stage: Stage, *, rough: bool) -> Prediction:
        adds = plan.micro_batch < 8
        static = self.static_mib - 80 * plan.optimizer_on_host
        forward = static + self.sample_mib * plan.micro_batch + self.gradients_mib * (adds and not rough)
        backward = static + self.working_mib + self.gradients_mib * adds
        live = max(forward, backward) * MIB
        parts = {
            "parameters": 40 * MIB,
            "optimizer": (static - 40) * MIB,
            "gradients": self.gradients_mib * MIB * (adds and (backward > forward or not rough)),
        }
        parts["saved activations"] = live - sum(parts.values())
        host = 160 * MIB * plan.optimizer_on_host
        work = Work(1e12, 1e10, 8000 / plan.micro_batch, host + 1e9 * bool(plan.recompute))
        place = stage.phases[0].name
        return Prediction(live, live, f"{place}/block", stage.name, parts, {place: live}, work)

    def ahead(self, jobs: object) -> None:
        """Formulas need no help."""


def test_gradients_that_a_single_forward_does_not_add_up_are_not_counted() -> None:
    """The whole batch at once takes 184 MiB, one sample at a time 190: it is the fastest, and fits where that does."""
    asked = search(task(MadeUpFamily(), batch=8, group=1))
    asked = Search(asked.space, asked.card, WithGradients())
    for mib, expected in ((183, (8, ("optimizer-on-host",))), (184, (8, ())), (500, (8, ()))):
        taken = asked.within(mib * MIB)
        assert taken is not None
        assert (taken.plan.micro_batch, savers_of(taken.plan, 8)) == expected
        _assert_fastest(asked, mib * MIB, _plans(asked))


def test_the_least_plan_is_not_one_whose_least_is_known_badly() -> None:
    """Most lives in backward with one or two samples, so that eight promise no more; they take 200 MiB, and not 110."""
    asked = search(task(MadeUpFamily(), batch=8, group=1))
    asked = Search(asked.space, asked.card, WithGradients(sample_mib=20))
    least = asked.least()
    every = [asked.run(each).prediction.reserved_bytes for each in _plans(asked)]
    assert least.prediction.reserved_bytes == min(every)


def test_what_blocks_are_larger_than_tensors_is_not_what_grows() -> None:
    """Four samples happen to leave 16 MiB of blocks unused, and no other number does: a line says too much of eight."""
    formula = WithGradients(sample_mib=20)

    class InBlocks(WithGradients):
        def __call__(self, plan: Plan, stage: Stage, *, rough: bool) -> Prediction:
            exact = formula(plan, stage, rough=rough)
            unused = 16 * MIB * (plan.micro_batch == 4)
            by_phase = {name: size + unused for name, size in exact.by_phase.items()}
            live = exact.live_bytes + unused
            return replace(exact, live_bytes=live, reserved_bytes=live, by_phase=by_phase)

    asked = search(task(MadeUpFamily(), batch=8, group=1))
    asked = Search(asked.space, asked.card, InBlocks())
    for each in _plans(asked):
        assert asked.estimates.least_bytes(each) <= asked.run(each).prediction.live_bytes


def test_what_is_too_small_to_go_to_the_host_goes_in_larger_micro_batches() -> None:
    """Ten of 0.3 MiB of each sample: of two samples they stay, as they are less than 1 MiB, and of four they go."""

    class InBlocks(WithGradients):
        def __call__(self, plan: Plan, stage: Stage, *, rough: bool) -> Prediction:
            exact = super().__call__(plan, stage, rough=rough)
            stayed = round(10 * 0.3 * plan.micro_batch * MIB) if plan.offload and plan.micro_batch < 4 else 0
            live = exact.live_bytes + stayed
            by_phase, parts = dict.fromkeys(exact.by_phase, live), exact.categories | {"saved activations": stayed}
            parts["saved activations"] += exact.categories["saved activations"]
            ran = replace(exact, live_bytes=live, reserved_bytes=live, by_phase=by_phase, categories=parts)
            return replace(ran, stayed_bytes=stayed)

    asked = search(task(MadeUpFamily(), batch=32, group=1))
    asked = Search(asked.space, asked.card, InBlocks(working_mib=0, gradients_mib=0, sample_mib=1))
    of_two = asked.run(asked.space.plan(2, "nothing here"))
    for each in _plans(asked):
        ran = asked.run(each).prediction.live_bytes
        assert asked.estimates.least_bytes(each) <= ran
        assert asked.estimates.least_bytes(each, [of_two]) <= ran


def test_blocks_that_are_made_again_read_their_weights_at_every_forward() -> None:
    """Of one sample at a time that is 8 times, of all at once only once."""

    class ByForwards(WithGradients):
        def __call__(self, plan: Plan, stage: Stage, *, rough: bool) -> Prediction:
            forwards, keeps_less = -(-8 // plan.micro_batch), 1 + bool(plan.recompute)
            work = Work(1e9, keeps_less * (1e10 + forwards * 1e10), keeps_less * forwards * 100)
            return replace(super().__call__(plan, stage, rough=rough), work=work)

    asked = search(task(MadeUpFamily(), batch=8, group=1))
    asked = Search(asked.space, asked.card, ByForwards())
    for keeping, micro_batch in product(asked.space.keepings, asked.space.micro_batches()):
        plan = asked.space.plan(micro_batch, keeping)
        ran = asked.estimates.seconds(asked.run(plan).work, plan)
        assert asked.estimates.of(plan).seconds == pytest.approx(ran)


@pytest.mark.long
@pytest.mark.parametrize(
    ("optimizer", "memory", "peak_gib"), [("rmsprop", "6GiB", 5.37), ("adabelief", "6.5GiB", 6.31)]
)
@pytest.mark.parametrize("micro_batch", [None, 8])
def test_large_faces_on_the_card_that_trained_them(
    optimizer: str, memory: str, peak_gib: float, micro_batch: int | None
) -> None:
    """All eight at once, without savings."""
    words = [f"optimizers.default.kind={optimizer}"]
    report = make_plan("saehd-df-ud-512", memory, words, PlanOptions(card="rtx-2060", micro_batch=micro_batch))
    assert (report.micro_batch, report.savers, report.chosen.extra_time) == (8, (), 0)
    assert report.peak_bytes / 2**30 == pytest.approx(peak_gib, abs=0.05)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", SMALL)
def test_of_the_whole_space_of_small_recipes(name: str, precision: str) -> None:
    with planner_of(name, [f"training.precision={precision}"], PlanOptions()) as planner:
        asked = planner.search
        plans = _plans(asked)
        for each in plans:
            _assert_estimates(asked, each)
        for budget in _budgets(asked):
            _assert_fastest(asked, budget, plans)


@pytest.mark.long
@pytest.mark.parametrize("name", built_in())
def test_of_every_recipe_that_ships(name: str) -> None:
    """Of the plans that are faster those are run whose least is next to the budget: if any, they would fit."""
    with planner_of(name, (), PlanOptions()) as planner:
        asked = planner.search
        estimates = asked.all_estimates
        for budget in _budgets(asked):
            taken = asked.within(budget)
            rivals = [
                each.plan
                for each in estimates.fastest_first
                if taken is None or each.seconds < taken.seconds
                if estimates.least_bytes(each.plan) <= NEAR * budget
            ]
            _assert_fastest(asked, budget, rivals)
            for plan_run in (*rivals, *(() if taken is None else (taken.plan,))):
                _assert_estimates(asked, plan_run)
