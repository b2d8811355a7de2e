"""The engine on the made-up family: what each promise of the contract means, and that it holds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch
from pydantic import ValidationError

from contract.made_up import MadeUpNetworks
from contract.rig import FP16, FP32, OPTIMIZERS, Rig, adam, assert_same, largest_difference
from contract.trainings import FAMILY, ROUNDING, trained
from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine.durations import Duration
from frugan.engine.plan import Plan
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import OptimizerSettings
from frugan.engine.step.update import Probe
from frugan.planning.prediction import BlankPictures


def test_everything_that_may_move_moves() -> None:
    rig = Rig.create(FAMILY)
    before = rig.tensors()
    rig.run(1)
    after = rig.tensors()
    still = {k for k in before if torch.equal(before[k], after[k])}
    assert still == set()
    assert int(after["critic.bodies.0.norm.seen"]) == 4  # critic twice, penalty and maker once: one count per phase


@pytest.mark.parametrize(("fraction", "seen"), [(0.29, 29), (0.57, 57), (0.5, 50), (1.0, 100), (0.001, 1)])
def test_a_phase_sees_its_whole_share_of_the_batch(fraction: float, seen: int) -> None:
    """In floating point 100 x 0.29 and 100 x 0.57 are just below whole numbers."""
    assert replace(FAMILY.phases(*FAMILY.tiny())[0], fraction=fraction).samples(100) == seen


@pytest.mark.parametrize(
    ("smaller_groups", "micro_batch", "group", "own"),
    [(True, 12, 4, (6, 2)), (True, 3, 3, (2, 2)), (True, 5, 1, (5, 1)), (False, 12, 4, (12, 4))],
)
def test_a_phase_that_sees_half_may_look_at_half_as_many_samples_together(
    smaller_groups: bool, micro_batch: int, group: int, own: tuple[int, int]
) -> None:
    phase = replace(FAMILY.phases(*FAMILY.tiny())[0], fraction=0.5, smaller_groups=smaller_groups)
    assert (phase.micro_batch(micro_batch, group), phase.group(group)) == own


def test_phases_are_due_and_repeat_as_they_say() -> None:
    rig = Rig.create(FAMILY)
    ran = [[(r.phase, r.repeat) for r in results] for results in rig.run(3)]
    with_penalty = [("critic", 0), ("critic", 1), ("penalty", 0), ("maker", 0)]
    assert ran == [with_penalty, [x for x in with_penalty if x[0] != "penalty"], with_penalty]


@pytest.mark.parametrize("micro_batch", [12, *(pytest.param(size, marks=pytest.mark.long) for size in (4, 8))])
def test_micro_batch_changes_nothing(micro_batch: int) -> None:
    """Groups of 4 in a batch of 16 (12 leaves a remainder of one group)."""
    whole = trained(batch=16, micro_batch=16).tensors()
    split = trained(batch=16, micro_batch=micro_batch).tensors()
    difference, where = largest_difference(whole, split)
    assert difference < ROUNDING, where


def test_group_size_does_change_the_result() -> None:
    """The test above could not fail if batch norm were not there."""
    difference, _ = largest_difference(trained(group=4).tensors(), trained(group=8).tensors())
    assert difference > 1e-3


def test_accumulation_dropped_is_noticed() -> None:
    """The limit of the micro-batch test is below what the smallest fault would change."""
    rig = Rig.create(FAMILY, batch=16, micro_batch=4)
    whole = trained(batch=16, micro_batch=16).tensors()

    class Forgetful(Probe):
        def shown(self, sizes: Sequence[int]) -> Sequence[int]:
            return sizes[1:]

    rig.step = replace(rig.step, probe=Forgetful())
    rig.run(3)
    difference, _ = largest_difference(whole, rig.tensors())
    assert difference > 100 * ROUNDING


def _poisoned(rig: Rig, phase: str, at_step: int) -> None:
    """Make one phase's first term NaN in one step."""
    target = next(p for p in rig.phases if p.name == phase)
    first = target.parts[0]

    def poison(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        terms = first(networks, micro, state)
        if rig.state.step == at_step:
            return {name: term * torch.nan for name, term in terms.items()}
        return terms

    phases = tuple(replace(p, parts=(poison, *p.parts[1:])) if p.name == phase else p for p in rig.phases)
    rig.step = replace(rig.step, phases=phases)


@pytest.mark.parametrize(
    ("phase", "optimizers"),
    [
        pytest.param(phase, kind, marks=[] if phase == "critic" or kind is adam else pytest.mark.long)
        for phase, kind in product(("critic", "penalty", "maker"), OPTIMIZERS)
    ],
)
def test_non_finite_phase_commits_nothing(phase: str, optimizers: Callable[[float], OptimizerSettings]) -> None:
    """Weights, buffers, carried state, optimizer, EMA: the same as if the phase had never been."""
    rig, without = (Rig.create(FAMILY, optimizers=optimizers) for _ in range(2))
    rig.run(2)
    without.run(2)
    _poisoned(rig, phase, at_step=2)
    (results,) = rig.run(1)
    assert [bool(r.accepted) for r in results if r.phase == phase] == [False] * (2 if phase == "critic" else 1)
    assert all(bool(r.accepted) for r in results if r.phase != phase)
    without.step = replace(without.step, phases=tuple(p for p in without.phases if p.name != phase))
    without.run(1)
    assert_same(rig.tensors(), without.tensors())
    assert int(rig.state.skipped[phase]) == (2 if phase == "critic" else 1)


def test_gradients_flow_into_updated_networks_only_and_are_released() -> None:
    rig = Rig.create(FAMILY)
    seen: dict[str, set[str]] = {}

    def spy(networks: Networks) -> None:
        seen["with"] = {name for name, n in networks.items() if any(p.grad is not None for p in n.parameters())}

    phases = tuple(replace(p, grad_hook=spy) if p.name == "maker" else p for p in rig.phases)
    rig.step = replace(rig.step, phases=phases)
    rig.run(1)
    assert seen["with"] == {"maker"}
    assert all(p.grad is None for n in rig.state.networks.values() for p in n.parameters())


def test_fp16_overflow_rescales_one_optimizer_only() -> None:
    rig = Rig.create(FAMILY, precision=FP16)
    _poisoned(rig, "critic", at_step=0)
    before = {name: float(scale.scale) for name, scale in rig.state.loss_scales.items()}
    rig.run(1)
    after = {name: float(scale.scale) for name, scale in rig.state.loss_scales.items()}
    # Both critic updates were poisoned; the penalty shares its optimizer and may overflow by itself.
    assert after["critic"] <= before["critic"] / 4
    assert after["maker"] >= before["maker"] / 2


def test_fp16_gradients_are_unscaled() -> None:
    """What is reported, clipped and moved by is the gradient itself, whatever the loss scale."""
    exact, half = (Rig.create(FAMILY, precision=precision).run(1)[0] for precision in (FP32, FP16))
    for a, b in zip(exact, half, strict=True):
        assert float(b.loss_scale) > 1
        assert float(b.gradients.norm) == pytest.approx(float(a.gradients.norm), rel=0.2), a.phase


def test_fp16_finds_its_first_scale_without_losing_a_batch() -> None:
    """From far too high a scale, the run is the one that starts at the right scale, and nothing counts as skipped."""
    high, right = (Rig.create(FAMILY, precision=FP16) for _ in range(2))
    for scale in high.state.loss_scales.values():
        scale.scale.fill_(2.0**40)
    results = high.run(1)[0]
    assert all(bool(result.accepted) for result in results)
    assert sum(int(count) for count in high.state.skipped.values()) == 0
    for name, scale in right.state.loss_scales.items():
        used = [r.loss_scale for r, p in zip(results, _runs(high), strict=True) if p.optimizer == name]
        assert 1 < float(used[0]) < 2.0**40
        scale.scale.copy_(used[0])
    right.run(1)
    assert_same(high.tensors(), right.tensors())


def _runs(rig: Rig) -> list[Phase]:
    """The phase of each result of a first step."""
    return [phase for phase in rig.phases for _ in range(phase.repeats)]


@pytest.mark.parametrize("schedule", ["constant", "ramp", "half-life"])
def test_ema_schedules(schedule: str) -> None:
    half_life = 64.0 if schedule == "half-life" else None
    settings = EmaSettings.model_validate(
        {"schedule": schedule, "decay": 0.99, "half_life_images": half_life, "start": "3 steps"}
    )
    rig = Rig.create(FAMILY, ema=settings)
    averages = {k: v.clone() for k, v in rig.state.ema.networks["maker"].state_dict().items()}
    for _ in range(5):
        rig.run(1)
        source = rig.state.networks["maker"].state_dict()
        decay = settings.decay_at(rig.state.step, 8)
        for key, value in source.items():
            is_buffer = key in dict(rig.state.networks["maker"].named_buffers())
            kept = 0.0 if is_buffer else decay  # the family's rule: buffers are copied
            averages[key] = averages[key] * kept + value * (1 - kept) if value.is_floating_point() else value
    for key, value in rig.state.ema.networks["maker"].state_dict().items():
        torch.testing.assert_close(value, averages[key].to(value.dtype), rtol=1e-6, atol=1e-7)
    expected = {"constant": 0.99, "ramp": 0.99 * (1 - 2.718281828459045 ** (-5 / 2000)), "half-life": 0.5 ** (8 / 64)}
    assert settings.decay_at(2, 8) == 0
    assert settings.decay_at(5, 8) == pytest.approx(expected[schedule])


def test_the_ramp_is_a_field_and_may_be_in_images() -> None:
    settings = EmaSettings.model_validate({"schedule": "ramp", "decay": 0.9, "ramp": "80 images"})
    assert settings.decay_at(10, 8) == pytest.approx(0.9 * (1 - 2.718281828459045**-1))  # 10 steps of 8 images
    with pytest.raises(ValidationError, match="ramp goes with schedule = 'ramp', and only with it"):
        EmaSettings.model_validate({"ramp": "80 images"})
    with pytest.raises(ValidationError, match="ramp = 6h: expected steps or images"):
        EmaSettings.model_validate({"schedule": "ramp", "ramp": "6h"})


def test_originals_habit_moves_state_at_every_micro_batch() -> None:
    rig = Rig.create(FAMILY, batch=8, micro_batch=4)
    rig.step = replace(rig.step, originals=True)
    rig.run(1)
    assert int(rig.tensors()["critic.bodies.0.norm.seen"]) == 7  # 2 micro-batches x (2 critic + maker) + half a batch


@pytest.mark.long
@pytest.mark.parametrize("optimizers", OPTIMIZERS)
def test_step_never_asks_the_device(optimizers: Callable[[float], OptimizerSettings]) -> None:
    """Under fake tensors a look at a value raises: the step runs without one, so the planner can run it too.

    In every run of the tests `test_two_devices.py` sees to it, and `planning/test_prediction.py` has it predicted.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    with FakeTensorMode(allow_non_fake_inputs=True):
        rig = Rig.create(FAMILY, recompute=True, optimizers=optimizers)
        rig.step = replace(rig.step, pictures=BlankPictures(FAMILY.sources(*FAMILY.tiny())))
        results = rig.run(1)
    assert results[0][0].gradients.norm.shape == ()


def test_micro_batches_of_broken_groups_are_refused() -> None:
    rig = Rig.create(FAMILY, batch=8, micro_batch=6)
    with pytest.raises(ValueError, match="whole number of normalisation groups"):
        rig.run(1)


def test_masters_are_back_after_an_error() -> None:
    rig = Rig.create(FAMILY)
    before = {id(p) for n in rig.state.networks.values() for p in n.parameters()}

    def broken(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        raise torch.OutOfMemoryError("made up")

    rig.step = replace(rig.step, phases=tuple(replace(p, parts=(*p.parts, broken)) for p in rig.phases))
    state_before = rig.tensors()
    with pytest.raises(torch.OutOfMemoryError):
        rig.run(1)
    assert {id(p) for n in rig.state.networks.values() for p in n.parameters()} == before
    assert all(isinstance(p, torch.nn.Parameter) for n in rig.state.networks.values() for p in n.parameters())
    assert_same(state_before, rig.tensors())


def test_error_after_gradients_were_carried_leaves_none_behind() -> None:
    """A phase that is repeated must not add to the gradients of the attempt before."""
    rig, undisturbed = Rig.create(FAMILY), Rig.create(FAMILY)
    sound = rig.step

    def broken(networks: Networks) -> None:
        raise torch.OutOfMemoryError("made up")

    rig.step = replace(sound, phases=tuple(replace(p, grad_hook=broken) for p in rig.phases))
    with pytest.raises(torch.OutOfMemoryError):
        rig.run(1)
    assert all(p.grad is None for n in rig.state.networks.values() for p in n.parameters())
    rig.step = sound
    rig.run(1)
    undisturbed.run(1)
    assert_same(undisturbed.tensors(), rig.tensors())


def test_no_batch_norm_means_no_groups() -> None:
    networks = MadeUpNetworks(batch_norm=False)
    whole = trained(networks=networks, micro_batch=8, group=None).tensors()
    split = trained(networks=networks, micro_batch=3, group=None).tensors()
    assert largest_difference(whole, split)[0] < ROUNDING


def test_plan_lays_out_weights() -> None:
    rig = Rig.create(FAMILY)
    assert isinstance(rig.plan, Plan)
    assert rig.plan.layout(torch.device("cpu")).channels_last
    assert not rig.plan.layout(torch.device("cuda")).channels_last
    assert Duration.parse("2k steps").steps(8) == 2000
