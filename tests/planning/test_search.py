"""The solver: what is chosen fits, is the fastest that does, and never gets slower with more memory."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from contract.made_up import MadeUpFamily, MadeUpNetworks, MadeUpObjective
from contract.rig import BF16, FP32
from frugan.accelerator.precision import Precision
from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage, Training
from frugan.errors import BadInput
from frugan.families import families
from frugan.planning.estimates import Estimates
from frugan.planning.plan_space import SAVERS, PlanConstraints, savers_of
from frugan.planning.prediction import Prediction, Target, predict
from frugan.planning.search import Search
from planning.formula import MIB, PredictionsBy, predicted_by_formula, prediction
from planning.tasks import measured, search, task


@dataclass
class Formula:
    """Predictions by a formula instead of a run, so that many questions can be asked of the search."""

    sample_bytes: int = MIB
    blocks: int | None = None  # that may be recomputed, by which memory and time fall

    def __call__(self, plan: Plan, stage: Stage, *, rough: bool) -> Prediction:
        return prediction(plan, stage, 64, rough=rough, sample_bytes=self.sample_bytes, blocks=self.blocks)

    def ahead(self, jobs: object) -> None:
        """Formulas need no help."""


def by_formula(constraints: PlanConstraints | None = None, sample_bytes: int = MIB, ranks: int = 1) -> Search:
    of = replace(task(MadeUpFamily(), batch=64, group=4), ranks=ranks)
    of = replace(of, averaged={"maker": "copy"})
    asked = search(of, constraints=constraints)
    blocks = sum(map(len, asked.space.plan(4, "nothing").recompute.values()))
    return replace(asked, predict=Formula(sample_bytes, blocks))


@given(st.integers(60, 400), st.integers(60, 400), st.integers(1, 5))
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_more_memory_is_never_slower(one_mib: int, other_mib: int, sample_mib: int) -> None:
    asked = by_formula(sample_bytes=sample_mib * MIB)
    less, more = (asked.within(mib * MIB) for mib in sorted((one_mib, other_mib)))
    if less is not None:
        assert more is not None
        assert more.seconds <= less.seconds
        assert less.prediction.reserved_bytes <= min(one_mib, other_mib) * MIB


def test_it_is_the_fastest_of_all_that_fit() -> None:
    asked = by_formula()
    every = [asked.run(plan) for plan in asked.space.every_plan()]
    for budget in range(90, 330, 20):
        chosen = asked.within(budget * MIB)
        fitting = [each for each in every if each.prediction.reserved_bytes <= budget * MIB]
        assert (chosen is None) == (not fitting)
        if chosen is not None:
            assert chosen.seconds <= min(each.seconds for each in fitting)


def test_only_as_many_blocks_are_recomputed_as_have_to_be() -> None:
    """With memory for half of what they keep, half of the time is saved; asked for, all are recomputed."""
    others = frozenset({"keep-products", "ema-on-host", "optimizer-on-host"})
    no_products = PlanConstraints(micro_batch=64, avoid=others)
    asked = by_formula(no_products, sample_bytes=10 * MIB)
    every, none = (asked.run(asked.space.plan(64, keeping)) for keeping in ("nothing", "all"))
    number = sum(map(len, every.plan.recompute.values()))
    budget = (every.prediction.reserved_bytes + none.prediction.reserved_bytes) // 2
    chosen = asked.within(budget)
    assert chosen is not None
    recomputed = sum(map(len, chosen.plan.recompute.values()))
    assert 0 < recomputed <= number / 2 + 1
    assert chosen.prediction.reserved_bytes <= budget
    expected = none.seconds + recomputed / number * (every.seconds - none.seconds)
    assert chosen.seconds == pytest.approx(expected, rel=0.01)
    assert savers_of(chosen.plan, 64) == ("recompute",)
    costly = asked.space.costly_blocks
    for network, blocks in chosen.plan.recompute.items():  # the costliest are left out
        assert set(blocks) == set(costly[network][len(costly[network]) - len(blocks) :])
    wish = PlanConstraints(use=frozenset({"recompute"}), micro_batch=64)
    all_of_them = by_formula(wish, sample_bytes=10 * MIB).within(budget)
    assert all_of_them is not None
    assert sum(map(len, all_of_them.plan.recompute.values())) == number


def test_a_plan_takes_as_long_as_is_estimated_before_it_is_run() -> None:
    """Copies of what is offloaded included."""
    asked = by_formula()
    for plan in asked.space.every_plan():
        if 64 % plan.micro_batch:
            continue  # the formula knows no forward with fewer samples
        ran = asked.run(plan)
        took = asked.estimates.seconds(ran.work, plan)
        assert ran.seconds == asked.estimates.of(plan).seconds == pytest.approx(took, rel=1e-6)


def test_a_share_that_is_a_part_of_a_group_has_a_plan() -> None:
    of = task(MadeUpFamily(), batch=8, group=4)
    part = replace(of.shared_by(4, 2), in_parts=True, averaged={"maker": "copy"})
    chosen = replace(search(part), predict=Formula()).within(1000 * MIB)
    assert chosen is not None
    assert savers_of(chosen.plan, 2) == ()


def test_no_plan_goes_below_a_group_or_changes_the_batch() -> None:
    sizes = {plan.micro_batch for plan in by_formula().space.allowed_plans()}
    assert min(sizes) == 4
    assert max(sizes) == 64
    assert all(size % 4 == 0 for size in sizes)


def test_a_ladder_falls_from_the_fastest_to_the_smallest() -> None:
    rungs = by_formula().ladder()
    assert len(rungs) > 3
    sizes = [rung.prediction.reserved_bytes for rung in rungs]
    assert sizes == sorted(sizes, reverse=True)
    assert [rung.seconds for rung in rungs] == sorted(rung.seconds for rung in rungs)


def test_it_is_the_same_every_time() -> None:
    assert by_formula().within(150 * MIB) == by_formula().within(150 * MIB)


@pytest.mark.parametrize("saver", [name for name in SAVERS if name not in ("micro-batch", "dense-slices")])
def test_wishes_are_kept(saver: str) -> None:
    used = by_formula(PlanConstraints(use=frozenset({saver})), ranks=2).within(1000 * MIB)
    assert used is not None
    assert saver in savers_of(used.plan, 64)
    avoided = by_formula(PlanConstraints(avoid=frozenset({saver})), ranks=2).ladder()
    assert all(saver not in savers_of(rung.plan, 64) for rung in avoided)


def test_what_is_offloaded_takes_its_way_in_estimates() -> None:
    """Where copies take longer than the rest, each plan that sends more is slower; where they hide, none is free."""
    space, estimates = by_formula().space, by_formula().estimates
    slow = Estimates(space, replace(estimates.card, host_bytes_per_s=1e6), estimates.predict)
    for micro_batch in (4, 64):
        kept, sent = (space.plan(micro_batch, keeping) for keeping in ("nothing", "one ahead"))
        assert slow.of(sent).seconds == pytest.approx(2 * 64 * MIB / 1e6, rel=0.01)
        assert slow.of(kept).seconds < 0.1 * slow.of(sent).seconds
        here, away = (estimates.of(space.plan(micro_batch, "all", averages_away=away)) for away in (False, True))
        assert (here.seconds, here.added_seconds) < (away.seconds, away.added_seconds)


def test_what_is_offloaded_comes_back_ahead_where_there_is_room() -> None:
    constraints = PlanConstraints(
        micro_batch=64, use=frozenset({"offload"}), avoid=frozenset({"ema-on-host", "optimizer-on-host"})
    )
    asked = by_formula(constraints, sample_bytes=100 * MIB)
    asked = replace(asked, card=replace(asked.card, host_bytes_per_s=1e11))  # copies could hide
    ahead, lean = asked.ladder()
    assert (ahead.plan.bring_ahead, lean.plan.bring_ahead) == (True, False)
    for rung in (ahead, lean):
        assert asked.within(rung.prediction.reserved_bytes) == rung


def test_state_is_shared_out_before_it_goes_to_the_host() -> None:
    """Where it does not fit otherwise, and only between ranks: all weights once are less than statistics twice."""
    constraints = PlanConstraints(micro_batch=4, avoid=frozenset({"recompute", "keep-products", "ema-on-host"}))
    savers = {
        (ranks, mib): savers_of(choice.plan, 64)
        for ranks, mib in ((1, 180), (2, 180), (2, 1000))
        if (choice := by_formula(constraints, ranks=ranks).within(mib * MIB)) is not None
    }
    assert savers == {
        (1, 180): ("micro-batch", "optimizer-on-host"),
        (2, 180): ("micro-batch", "shard-optimizer"),
        (2, 1000): ("micro-batch",),
    }
    with pytest.raises(BadInput, match="shard-optimizer has no use here, because there is one rank"):
        by_formula(PlanConstraints(use=frozenset({"shard-optimizer"}))).within(1000 * MIB)


def test_the_thriftiest_plan_keeps_to_what_is_ruled_out() -> None:
    for avoid in ({"recompute"}, {"offload"}, {"keep-products", "recompute"}, {"optimizer-on-host", "ema-on-host"}):
        plan = by_formula(PlanConstraints(avoid=frozenset(avoid))).space.thriftiest()
        assert not {str(name) for name in savers_of(plan, 64)} & avoid


def test_what_is_asked_for_changes_no_estimate() -> None:
    free, asked = by_formula(), by_formula(PlanConstraints(micro_batch=16, use=frozenset({"recompute"})))
    plan = asked.space.plan(16, "nothing")
    assert free.estimates.of(plan) == asked.estimates.of(plan)
    assert free.estimates.fastest_seconds == asked.estimates.fastest_seconds == free.estimates.fastest_first[0].seconds
    assert asked.estimates.fastest_first[0].seconds > asked.estimates.fastest_seconds


def test_a_micro_batch_that_is_asked_for_is_the_only_one() -> None:
    assert {plan.micro_batch for plan in by_formula(PlanConstraints(micro_batch=8)).space.allowed_plans()} == {8}


@pytest.mark.parametrize(
    ("use", "avoid", "message"),
    [
        ({"recompute", "keep-products"}, set(), "recompute and keep-products contradict each other"),
        ({"recompute"}, {"recompute"}, "recompute is in both --use and --avoid"),
        ({"magic"}, set(), "'magic' is unknown; there are keep-products"),
        ({"offload"}, {"recompute"}, "offload keeps recomputed blocks' inputs: it contradicts recompute"),
        (set(), {"micro-batch"}, "by its size: --micro-batch"),
    ],
)
def test_savers_that_contradict_each_other_are_named(use: set[str], avoid: set[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        PlanConstraints(use=frozenset(use), avoid=frozenset(avoid))


def test_a_name_in_place_of_a_list_of_savers_is_refused() -> None:
    with pytest.raises(BadInput, match=r"avoid='recompute': expected a list .*, such as \['recompute'\]"):
        PlanConstraints(avoid="recompute")


@pytest.mark.parametrize("by", ["formula", pytest.param("run", marks=pytest.mark.long)])
def test_a_saver_that_torch_refuses_is_named(by: str, predictions_by: PredictionsBy) -> None:
    if by == "formula":
        predictions_by(_refusing)
    asked = search(
        task(families()["saehd"], batch=2, group=1), constraints=PlanConstraints(use=frozenset({"keep-products"}))
    )
    with pytest.raises(BadInput, match="torch refuses it here, because these networks write into results"):
        asked.within(10**12)


def _refusing(
    of: Training, plan: Plan, target: Target, stage: Stage, *, rough: bool = False, dataless: object = None
) -> Prediction:
    """As torch refuses it, whose words `planning/test_prediction.py` has from torch itself."""
    if plan.keep_products:
        raise RuntimeError("Tensor cached during selective activation checkpoint has been mutated")
    return predicted_by_formula(of, plan, target, stage, rough=rough)


def test_a_saver_that_there_is_nothing_for() -> None:
    with pytest.raises(BadInput, match="dense-slices has no use here, because no plain dense layer has 8,388,608"):
        by_formula(PlanConstraints(use=frozenset({"dense-slices"}))).within(10**12)


NETWORKS = st.builds(MadeUpNetworks, width=st.sampled_from([4, 8, 12]), batch_norm=st.booleans())
OBJECTIVES = st.builds(MadeUpObjective, penalty=st.sampled_from([0.5, 1.0]))
PHASES = st.sampled_from(["critic", "penalty", "maker"])
SHAPES = st.tuples(NETWORKS, OBJECTIVES, PHASES, st.integers(1, 4), st.integers(1, 6), st.sampled_from([FP32, BF16]))


def _random_task(networks: MadeUpNetworks, objective: MadeUpObjective, phase: str, group: int, groups: int) -> Training:
    @dataclass(frozen=True)
    class Sized(MadeUpFamily):
        def tiny(self) -> tuple[MadeUpNetworks, MadeUpObjective]:
            return networks, objective

    # the penalty sees half a batch: whole groups of it too
    of = task(Sized(), batch=2 * group * groups, group=group)
    alone = replace(of.stages[0], phases=tuple(p for p in of.phases if p.name == phase))
    return replace(of, stages=(alone, replace(of.stages[0], begins=1, objective="all")))


def _examples(count: int) -> settings:
    return settings(
        max_examples=count,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=True,
        phases=[Phase.generate],  # to shrink a failure would take longer than to read it
    )


def _assert_predicted(shape: tuple[MadeUpNetworks, MadeUpObjective, str, int, int, Precision], choice: int) -> None:
    networks, objective, phase, group, groups, precision = shape
    of = _random_task(networks, objective, phase, group, groups)
    larger = of.with_batch(2 * of.batch)
    less, more = (predict(t, Plan(t.batch, precision), "cpu", t.stages[0], rough=True).live_bytes for t in (of, larger))
    assert more >= less
    plans = list(search(of, target="cpu", precision=precision).space.every_plan())
    plan = plans[choice % len(plans)]
    predicted = predict(of, plan, "cpu", of.stages[0]).live_bytes
    # A micro-batch leaves its losses until the step ends; predicted are two micro-batches. In 150 KB they weigh 5 %.
    losses = 4 * 512 * (of.batch // plan.micro_batch)
    assert measured(of, plan).peak.size_bytes <= 1.01 * predicted + losses


@given(SHAPES, st.integers(0, 10**6))
@_examples(2)
def test_random_configurations(
    shape: tuple[MadeUpNetworks, MadeUpObjective, str, int, int, Precision], choice: int
) -> None:
    """More batch never takes less memory; any plan, run for real, stays under its prediction and 1 %."""
    _assert_predicted(shape, choice)


@pytest.mark.long
@given(SHAPES, st.integers(0, 10**6))
@_examples(50)
def test_many_random_configurations(
    shape: tuple[MadeUpNetworks, MadeUpObjective, str, int, int, Precision], choice: int
) -> None:
    _assert_predicted(shape, choice)
