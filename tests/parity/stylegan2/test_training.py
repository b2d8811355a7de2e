"""Losses, penalties and gradients of each phase, and two iterations of training."""

from collections.abc import Mapping
from functools import cache

import pytest
import torch
from torch import Tensor

from frugan.engine.durations import Duration
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import AdaBeliefSettings, AdamSettings, with_lazy_phases
from frugan.engine.state.state import TrainingState
from frugan.engine.step.update import PhaseResult
from frugan.families.stylegan2.phases import PATH_LENGTH, phases
from parity.stylegan2.golden import CASES, load
from parity.stylegan2.updates import ORIGINAL_NAMES, Update, train, update_alone

LIMIT = 1e-5
"""Relative, of losses, penalties and each parameter's gradient. Measured: at most 6e-6."""

NOISE_LIMIT = 5e-5
"""Of the strength of noise, whose gradient is a sum of pixels of either sign: by order of sums 6e-6 to 2e-5."""

FAR, FAR_SHARE, P99 = 1e-4, 0.04, 3e-4
"""Of parameters after updates. Adam's first steps have the size of the rate and the gradient's sign: where a gradient
is rounding, they differ, for the release against itself with another order of sums too. Measured for the release
against an independent program with this demodulation: 99 % within 1.6e-4, 2 % beyond 1e-4."""

each_case = pytest.mark.parametrize("name", CASES)
each_trace = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "res32" else pytest.mark.long) for name in CASES]
)
"""Of several steps; every case is in what is compared of one."""
each_phase = pytest.mark.parametrize("phase", ORIGINAL_NAMES)


@cache
def alone(name: str, phase: str) -> Update:
    return update_alone(load(name), phase)


@cache
def trained(name: str, *, lazy: bool = True) -> tuple[TrainingState, list[list[PhaseResult]]]:
    return train(load(name), 2, lazy=lazy)


def recorded(name: str, phase: str, what: str) -> Tensor:
    return load(name).data[f"loss.{ORIGINAL_NAMES[phase]}.{what}"]


@each_phase
@each_case
def test_losses_and_penalties(name: str, phase: str) -> None:
    loss = {"G": "Loss/G/loss", "G_path": "Loss/G/reg", "D": "Loss/D/loss", "D_r1": "Loss/D/reg"}[phase]
    ours, reference = sum(alone(name, phase).terms.values()), float(recorded(name, phase, loss).mean())
    assert ours == pytest.approx(reference, rel=LIMIT)


@each_phase
@each_case
def test_gradient_norms(name: str, phase: str) -> None:
    """Of every parameter; and the same parameters as in the release have none, and a gradient of nothing but zeros."""
    norms = {key: float(value.norm()) for key, value in alone(name, phase).gradients.items()}
    prefix = f"loss.{ORIGINAL_NAMES[phase]}.gradnorm."
    reference = {k.removeprefix(prefix): float(v) for k, v in load(name).data.items() if k.startswith(prefix)}
    assert reference
    assert norms.keys() == {key for key, norm in reference.items() if norm >= 0}
    for key, norm in norms.items():
        limit = NOISE_LIMIT if key.endswith("noise_strength") else LIMIT
        assert norm == pytest.approx(reference[key], rel=limit), key


@each_phase
def test_every_entry_of_the_gradients(phase: str) -> None:
    prefix = f"grads.{ORIGINAL_NAMES[phase]}."
    reference = {k.removeprefix(prefix): v for k, v in load("res32").data.items() if k.startswith(prefix)}
    gradients = alone("res32", phase).gradients
    assert reference.keys() == gradients.keys()
    for key, value in reference.items():
        assert (gradients[key] - value).norm() <= LIMIT * value.norm(), key


@each_case
def test_what_moves_besides_weights(name: str) -> None:
    """The running mean of path lengths, and the mean style."""
    before, seen = load(name).data["loss.pl_mean_before"], alone(name, "G_path").path_length
    assert seen is not None
    carried = next(p for p in phases(load(name).networks, load(name).objective) if p.name == "G_path").carried
    moved = carried[PATH_LENGTH].update(before, seen, 2)
    assert float(moved) == pytest.approx(float(recorded(name, "G_path", "pl_mean_after")), rel=LIMIT)
    for phase in ("G", "G_path", "D"):
        mean = alone(name, phase).networks["G"].state_dict()["mapping.w_avg"]
        torch.testing.assert_close(mean, recorded(name, phase, "w_avg_after"), rtol=0, atol=LIMIT)


def distances(name: str, step: int, state: TrainingState) -> dict[str, Tensor]:
    """Network -> absolute differences of all its entries from the recorded ones."""
    networks = {"G": state.networks["G"], "D": state.networks["D"], "G_ema": state.ema.networks["G"]}
    distances_of = {}
    for network, module in networks.items():
        prefix, ours = f"steps_out.step{step}.{network}.", module.state_dict()
        reference = {k.removeprefix(prefix): v for k, v in load(name).data.items() if k.startswith(prefix)}
        assert reference
        distances_of[network] = torch.cat([(ours[key] - value).abs().flatten() for key, value in reference.items()])
    return distances_of


def beyond(distances_of: Mapping[str, Tensor]) -> set[str]:
    return {
        network
        for network, off in distances_of.items()
        if float(off.quantile(0.99)) > P99 or float((off > FAR).float().mean()) > FAR_SHARE
    }


@each_trace
def test_two_iterations(name: str) -> None:
    state, results = trained(name)
    assert [[result.phase for result in each] for each in results] == [list(ORIGINAL_NAMES), ["G", "D"]]
    assert not beyond(distances(name, 1, state))
    data = load(name).data
    for step, each in enumerate(results):
        for result in each:
            total = float(data[f"steps_in.step{step}.{ORIGINAL_NAMES[result.phase]}.grad_norm_total"])
            # Measured: 5e-3 in res32's G_path, where each of the release's micro-batches moves the mean that the next
            # one is held to; 8e-3 in res64's second G. Otherwise at most 2e-3, and 8e-6 before the first update.
            assert float(result.gradients.norm) == pytest.approx(total, rel=1e-2), (step, result.phase)
    for phase in ("G", "D"):
        first = next(result for result in results[0] if result.phase == phase)
        total = float(data[f"steps_in.step0.{ORIGINAL_NAMES[phase]}.grad_norm_total"])
        assert float(first.gradients.norm) == pytest.approx(total, rel=5e-5), phase


@pytest.mark.long
@each_trace
def test_rates_that_are_not_slowed_down_are_noticed(name: str) -> None:
    state, _ = trained(name, lazy=False)
    assert {"G"} <= beyond(distances(name, 1, state))


def test_lazy_phases_slow_an_optimizer_down() -> None:
    case = load("res32")
    run = phases(case.networks, case.objective)
    adam = AdamSettings(
        learning_rate=0.0025, final_learning_rate=0.001, beta1=0.5, beta2=0.99, lazy_regularisation=True
    )
    slowed = with_lazy_phases(adam, run, "G")
    assert isinstance(slowed, AdamSettings)
    assert (slowed.learning_rate, slowed.final_learning_rate) == pytest.approx((0.002, 0.0008))
    assert (slowed.beta1, slowed.beta2) == pytest.approx((0.5**0.8, 0.99**0.8))
    assert with_lazy_phases(slowed, run, "G") == slowed
    other = AdaBeliefSettings(learning_rate=0.0025)
    assert with_lazy_phases(other, run, "G") is other
    assert with_lazy_phases(adam, run, "D").learning_rate == pytest.approx(0.0025 * 16 / 17)


@each_case
def test_decay_of_the_average(name: str) -> None:
    o = load(name).settings
    settings = EmaSettings(
        schedule="half-life",
        half_life_images=o["ema_kimg"] * 1000,
        half_life_share=o["ema_ramp"],
        start=Duration.parse("0 steps"),
    )
    for step in (0, 1):
        reference = float(load(name).data[f"steps_in.step{step}.ema_beta"])
        assert settings.decay_at(step + 1, o["batch"]) == pytest.approx(reference, rel=1e-9)
    with pytest.raises(ValueError, match="half_life_share goes with schedule = 'half-life'"):
        EmaSettings(decay=0.9, half_life_share=0.05)
