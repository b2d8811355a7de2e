"""Predicted is measured: every family, every saver, on real CPU steps under the same tracker."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
import torch

from contract.made_up import MadeUpFamily
from contract.rig import BF16, FP16, FP32
from frugan.accelerator.precision import Precision
from frugan.augment.augmentation import OPERATIONS, AugmentationSettings
from frugan.contract.family import Family
from frugan.engine.ranks.ranks import OneRank
from frugan.engine.state.optimizer_settings import AdaBeliefSettings, OptimizerSettings, RMSpropSettings, SGDSettings
from frugan.engine.state.state import TrainingState
from frugan.families import families
from frugan.families.stylegan2.config import StyleGAN2Networks, StyleGAN2Objective
from frugan.families.stylegan2.family import StyleGAN2Family
from frugan.planning.prediction import predict, step_memory
from frugan.planning.step_memory import measure_step
from frugan.stepmemory.dataless import Dataless
from frugan.stepmemory.measurement import StepMemory
from frugan.stepmemory.tracker import Tracker
from limits import Limit
from planning.tasks import measured, measured_once, plan_of, predicted_once, real_step, task

MADE_UP = MadeUpFamily()
FAMILIES = tuple(families().values())
ALL = (MADE_UP, *FAMILIES)


def in_short(short: Collection[str], *choices: Family) -> list[Any]:
    """Families as parameters; those that are not named only run with `-m long`."""
    return [pytest.param(f, id=f.name, marks=[] if f.name in short else pytest.mark.long) for f in choices or ALL]


made_up_in_short = pytest.mark.parametrize("family", in_short(("made-up",)))
"""That families run without data is seen in `contract/test_families.py` and in predictions that ship."""


@made_up_in_short
def test_the_smallest_micro_batches(family: Family) -> None:
    """By phase, and without asking for an address: tensors without data have none."""
    predicted, real = predicted_once(family.name, "cpu"), measured_once(family.name)
    _assert_near(predicted.peak.size_bytes, real.peak.size_bytes)
    for phase, peak in real.by_phase.items():
        _assert_near(predicted.by_phase[phase].size_bytes, peak.size_bytes)


@pytest.mark.parametrize(
    ("micro_batch", "precision"),
    [(6, BF16), pytest.param(2, FP32, marks=pytest.mark.long), pytest.param(8, BF16, marks=pytest.mark.long)],
    ids=str,
)
@made_up_in_short
def test_micro_batches_and_precisions(family: Family, micro_batch: int, precision: Precision) -> None:
    of = task(family, batch=8)
    plan = plan_of(of, micro_batch, precision)
    _assert_near(predict(of, plan, "cpu", of.stages[0]).live_bytes, measured(of, plan).peak.size_bytes)


def test_what_other_plans_left_changes_nothing() -> None:
    """Plans of a task share a table of what operations give."""
    of, dataless = task(MADE_UP, batch=8), Dataless()
    plans = [plan_of(of, 2, BF16), plan_of(of, 4, BF16, keeping="nothing"), plan_of(of, 4, FP32)]
    for plan in plans:
        alone = predict(of, plan, "card", of.stages[0])
        assert predict(of, plan, "card", of.stages[0], dataless=dataless) == alone


class Augmented(StyleGAN2Family):
    """StyleGAN2 under all of ADA."""

    def tiny(self) -> tuple[StyleGAN2Networks, StyleGAN2Objective]:
        networks, objective = super().tiny()
        augmentation = AugmentationSettings.model_validate({"method": "ada", "operations": OPERATIONS["ada"]})
        return networks, objective.model_copy(update={"augmentation": augmentation})


@pytest.mark.long
@pytest.mark.parametrize("micro_batch", [2, 8])
def test_augmentation_is_counted(micro_batch: int) -> None:
    """In every phase, the double backward of R1 included; and it takes something."""
    of = task(Augmented())
    plan = plan_of(of, micro_batch)
    predicted, real = predict(of, plan, "cpu", of.stages[0]), measured(of, plan)
    without = predict(task(StyleGAN2Family()), plan, "cpu", task(StyleGAN2Family()).stages[0])
    for phase in of.phases:
        _assert_near(predicted.by_phase[phase.name], real.by_phase[phase.name].size_bytes)
    assert predicted.by_phase["D_r1"] > without.by_phase["D_r1"]


@pytest.mark.long
def test_fp16() -> None:
    of = task(MadeUpFamily())
    plan = plan_of(of, 2, FP16)
    _assert_near(predict(of, plan, "cpu", of.stages[0]).live_bytes, measured(of, plan).peak.size_bytes)


SAVED = (
    {"keeping": "nothing"},
    {"keeping": "nothing here"},
    {"keeping": "products"},
    {"slices": True},
    {"slices": True, "keeping": "nothing"},
    {"parts_in_sequence": False},
)
SHORT = (SAVED[2], SAVED[4])
"""The others are contained in these, or are offloading, whose way another test counts, and the order of parts."""


@pytest.mark.parametrize(
    ("family", "savers"),
    [
        pytest.param(
            family,
            savers,
            id=f"{family.name}-{savers}",
            marks=[] if family is MADE_UP and savers in SHORT else pytest.mark.long,
        )
        for family in ALL
        for savers in SAVED
    ],
)
def test_savers(family: Family, savers: dict[str, object], limit: Limit) -> None:
    limit("elements of a slice", 512)
    limit("bytes sent to the host", 512)
    of = task(family)
    plan = plan_of(of, 2, **savers)  # type: ignore[arg-type]
    if plan.keep_products and family.name in ("saehd", "stylegan2"):  # activations write into what would be kept
        with pytest.raises(RuntimeError, match="mutated"):
            predict(of, plan, "cpu", of.stages[0])
        return
    predicted, real = predict(of, plan, "cpu", of.stages[0]), measured(of, plan)
    _assert_near(predicted.live_bytes, real.peak.size_bytes)
    for phase in of.phases:
        _assert_near(predicted.by_phase[phase.name], real.by_phase[phase.name].size_bytes)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(RMSpropSettings(), marks=pytest.mark.long),
        AdaBeliefSettings(dropout=0.5),
        pytest.param(SGDSettings(learning_rate=1e-3), marks=pytest.mark.long),
    ],
    ids=["rmsprop", "adabelief", "sgd"],
)
@pytest.mark.parametrize("family", in_short(("made-up",), MADE_UP, families()["saehd"]))
def test_optimizers(family: Family, settings: OptimizerSettings) -> None:
    of = task(family, settings=settings, batch=4)
    plan = plan_of(of, 2)
    _assert_near(predict(of, plan, "cpu", of.stages[0]).live_bytes, measured(of, plan).peak.size_bytes)


def _assert_near(predicted_bytes: int, real_bytes: int) -> None:
    assert predicted_bytes == pytest.approx(real_bytes, rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("savers", [{}, {"keeping": "nothing"}], ids=str)
@made_up_in_short
def test_naming_what_is_saved_changes_no_memory(family: Family, savers: dict[str, str]) -> None:
    """Against a tracker that only looks: hooks on saved tensors can keep a graph alive."""
    of = task(family)
    plan = plan_of(of, 2, **savers)  # type: ignore[arg-type]
    named = measured(of, plan)
    state, step = real_step(of, plan)
    networks = (*state.networks.values(), *state.ema.networks.values())
    slots = (slots for optimizer in state.optimizers.values() for slots in optimizer.state.values())
    held = [t for n in networks for t in (*n.parameters(), *n.buffers())] + [v for s in slots for v in s.values()]
    with Tracker({"parameters": held}) as looking:
        step.run(state, plan, count_zeros=True)
    _assert_near(named.peak.size_bytes, looking.peak_bytes)


@made_up_in_short
def test_the_way_of_what_is_offloaded_is_counted_for_the_whole_step(family: Family, limit: Limit) -> None:
    """On the card less is kept; the made-up family has nothing to save there that its peak holds."""
    limit("bytes sent to the host", 512)
    of = task(family, batch=8)
    plans = (plan_of(of, 2, keeping=keeping) for keeping in ("nothing", "nothing here"))
    kept, sent = (step_memory(of, plan, "card", of.stages[0], rough=True) for plan in plans)
    assert kept.work.beside_bytes == 0
    # torch makes a block again in each backward that goes through it, and a penalty takes two
    most = 2 if any(phase.penalises_gradients and phase.every == 1 for phase in of.phases) else 1
    assert most * sent.work.beside_bytes >= sent.work.host_bytes > 0
    if family is not MADE_UP:
        assert _most_saved_bytes(sent) < _most_saved_bytes(kept)
    twice = of.with_batch(2 * of.batch)
    more = step_memory(twice, plan_of(of, 2, keeping="nothing here"), "card", twice.stages[0], rough=True)
    assert more.work.beside_bytes == pytest.approx(2 * sent.work.beside_bytes)


def test_what_is_too_small_to_go_to_the_host_is_counted(limit: Limit) -> None:
    """It stays until the end of the micro-batch."""
    of = task(MADE_UP, batch=8)
    limit("bytes sent to the host", 1)
    assert predict(of, plan_of(of, 2, keeping="nothing here"), "card", of.stages[0]).stayed_bytes == 0
    sent_bytes = step_memory(of, plan_of(of, 8, keeping="nothing here"), "card", of.stages[0]).work.beside_bytes
    limit("bytes sent to the host", 2**30)
    stayed = [predict(of, plan_of(of, n, keeping="nothing here"), "card", of.stages[0]).stayed_bytes for n in (2, 4, 8)]
    assert stayed == [0.25 * stayed[2], 0.5 * stayed[2], stayed[2]]
    assert 0 < stayed[2] <= sent_bytes


def _most_saved_bytes(of: StepMemory) -> int:
    """Most of what is saved for backward that lives at once."""
    trace, live, most = of.trace, 0, 0
    for event in trace.events:
        number = event if event >= 0 else -1 - event
        if trace.categories[number] == "saved activations":
            live += trace.sizes_bytes[number] if event >= 0 else -trace.sizes_bytes[number]
            most = max(most, live)
    return most


@made_up_in_short
def test_work_is_that_of_the_whole_step(family: Family) -> None:
    """Counted on two micro-batches of four, and on all of them; real halves take two operations to be added in fp32."""
    predicted, real = predicted_once(family.name, "cpu").work, measured_once(family.name).work
    assert predicted.macs == pytest.approx(real.macs, rel=1e-6)
    assert predicted.bytes_moved == pytest.approx(real.bytes_moved, rel=0.01)
    assert predicted.operations == pytest.approx(real.operations, rel=0.015)


@made_up_in_short
def test_the_rest_of_an_uneven_batch_is_counted_too(family: Family) -> None:
    """Of micro-batches of 8, 8, 8 and 4 the third is left out."""
    of = task(family).with_batch(28)
    plan = plan_of(of, 8)
    predicted, real = predict(of, plan, "cpu", of.stages[0]).work, measured(of, plan).work
    assert predicted.macs == pytest.approx(real.macs, rel=1e-6)
    assert predicted.operations == pytest.approx(real.operations, rel=0.01)


@made_up_in_short
def test_roughly_is_near(family: Family) -> None:
    full, rough = (predicted_once(family.name, "card", rough=r) for r in (False, True))
    assert 0.7 * full.peak.size_bytes < rough.peak.size_bytes <= 1.01 * full.peak.size_bytes
    assert rough.work.macs == pytest.approx(full.work.macs, rel=1e-6)


@made_up_in_short
def test_state_on_the_host_is_not_on_the_card(family: Family) -> None:
    of = task(family)
    away = replace(plan_of(of, of.group), ema_on_host=True, optimizer_on_host=True)
    on_card, on_host = predicted_once(family.name, "card"), step_memory(of, away, "card", of.stages[0])
    moved = on_card.static["optimizer"] + on_card.static.get("averages", 0)
    assert on_host.static.get("averages", 0) == 0
    assert on_card.peak.size_bytes - on_host.peak.size_bytes > 0.5 * moved
    largest_phase = max(of.phases, key=lambda phase: phase.repeats)
    assert on_host.work.host_bytes >= largest_phase.repeats * 0.2 * on_card.static["optimizer"]
    assert on_card.work.host_bytes == 0


@pytest.mark.long
@made_up_in_short
def test_parts_of_groups_are_counted(family: Family) -> None:
    """Of a rank that shares normalisation groups: in elementary operations, which keep more than torch's batch norm."""
    of = replace(task(family), in_parts=True)
    plan = plan_of(of, of.group)
    state, step = real_step(of, plan)
    there = replace(step, ranks=OneRank(in_parts=True))
    real = measure_step(there, state, plan, of.recomputable(state.networks), count_zeros=True)
    predicted = step_memory(of, plan, "cpu", of.stages[0])
    _assert_near(predicted.peak.size_bytes, real.peak.size_bytes)


def _statistics(state: TrainingState) -> list[torch.Tensor]:
    return [v for optimizer in state.optimizers.values() for each in optimizer.state.values() for v in each.values()]


@made_up_in_short
def test_a_card_has_its_share_of_the_state_alone(family: Family, limit: Limit) -> None:
    limit("elements shared out", 1)
    limit("alignment of shares", 1)
    of = replace(task(family), ranks=4)
    shards = replace(plan_of(of, of.group), shard_optimizer=True)
    whole, mine = predicted_once(family.name, "card"), step_memory(of, shards, "card", of.stages[0])
    states = [real_step(of, shards, ranks)[0] for ranks in (OneRank(0, 4), OneRank())]
    kept, all_of_it = map(_statistics, states)
    counts = (count for optimizer in states[0].optimizers.values() for count in optimizer.counts.values())
    numbers = [*counts, *states[0].skipped.values(), *states[0].carried.values()]
    numbers += [number for scale in states[0].loss_scales.values() for number in (scale.scale, scale.good)]
    given = sum(-(-value.nbytes // 512) * 512 for value in (*kept, *numbers))  # by the allocator
    assert mine.static["optimizer"] == given
    assert sum(value.nbytes for value in kept) < 0.3 * sum(value.nbytes for value in all_of_it)
    assert whole.peak.size_bytes - mine.peak.size_bytes > 0.5 * (whole.static["optimizer"] - mine.static["optimizer"])
    assert mine.work.host_bytes > 0


@made_up_in_short
def test_a_card_holds_micro_batches_and_not_the_batch(family: Family) -> None:
    on_card, on_cpu = predicted_once(family.name, "card"), predicted_once(family.name, "cpu")
    assert on_card.peak.categories["batch"] < on_cpu.peak.size_bytes
    assert on_card.peak.size_bytes <= on_cpu.peak.size_bytes


@made_up_in_short
def test_reserved_is_at_least_what_lives(family: Family) -> None:
    predicted = predicted_once(family.name, "card")
    assert predicted.needed_on_card_bytes >= predicted.peak.size_bytes
    assert sum(predicted.peak.categories.values()) == predicted.peak.size_bytes
