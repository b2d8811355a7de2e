"""Optimizer settings."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from contract.made_up import MadeUpFamily
from contract.rig import Rig
from frugan.engine.durations import Course
from frugan.engine.state.optimizer_settings import AdamSettings, networks_of
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe


def test_learning_rate_falls_in_a_straight_line() -> None:
    rig = Rig.create(MadeUpFamily())
    settings = {name: AdamSettings(learning_rate=1e-2, final_learning_rate=0.0) for name in ("critic", "maker")}
    rig.step = replace(rig.step, settings=settings, course=Course(4 * rig.step.batch))
    rates = []
    for _ in range(5):
        rig.run(1)
        rates.append(rig.state.optimizers["maker"].param_groups[0]["lr"])
    assert rates == pytest.approx([1e-2, 7.5e-3, 5e-3, 2.5e-3, 0.0])


def test_no_rate_means_no_movement() -> None:
    rig = Rig.create(MadeUpFamily())
    rig.run(1)
    before = {k: v.clone() for k, v in rig.state.networks["maker"].named_parameters()}
    settings = {name: AdamSettings(learning_rate=1e-2, final_learning_rate=0.0) for name in ("critic", "maker")}
    rig.step = replace(rig.step, settings=settings, course=Course(rig.step.batch))
    rig.run(1)
    assert all(torch.equal(v, before[k]) for k, v in rig.state.networks["maker"].named_parameters())


def test_falling_rates_need_a_countable_duration() -> None:
    words = ["optimizers.G.final_learning_rate=0", "training.duration=2h"]
    with pytest.raises(BadInput, match="duration in steps or images"):
        load_recipe("biggan-cifar10-32", words)


def test_a_shared_optimizer_moves_each_network_once() -> None:
    family = MadeUpFamily()
    phases = family.phases(*family.tiny())
    assert networks_of("critic", phases) == ("critic",)
    assert [phase.name for phase in phases if phase.optimizer == "critic"] == ["critic", "penalty"]


def test_nesterov_needs_momentum() -> None:
    word = "optimizers.default.kind=sgd"
    rate = "optimizers.default.learning_rate=0.1"
    with pytest.raises(BadInput, match="momentum = 0: set it"):
        load_recipe("saehd-demo-64", [word, rate, "optimizers.default.momentum=0", "optimizers.default.nesterov=true"])


def test_beta_of_zero_may_be_written_as_an_integer() -> None:
    assert isinstance(AdamSettings.model_validate({"learning_rate": 1, "beta1": 0}).beta1, float)
    with pytest.raises(ValidationError):
        AdamSettings.model_validate({"learning_rate": 0})
