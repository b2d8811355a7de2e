"""Recorded runs of twenty steps in fp32: losses, movement, weights, optimizer state and pictures.

Both optimizers take steps of nearly one size whatever the gradient is, so where it is nearly 0 rounding decides, and
single weights differ by whole steps. What is compared are all tensors together, and a quantile. Limits are made of what
rounding alone does (`rounding.py`).
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from parity.saehd.errors import joint_error, loss_error, weight_error
from parity.saehd.golden import FOLDER, LONG, built, nchw, record, recording
from parity.saehd.rounding import RATE, STEPS, limits
from parity.saehd.runs import Run, final_weights, pictures, run, statistics
from parity.saehd.weights import read

IN_SHORT = ("df-ud_adabelief",)
"""The other architecture is in `test_forward.py` and `test_terms.py`, the other optimizer in `test_optimizers.py`."""


def in_short(*names: str) -> list[Any]:
    """Recordings as parameters; those that are not in short are `long`."""
    return [pytest.param(name, marks=[] if name in IN_SHORT else pytest.mark.long) for name in names]


FAULTS = {"df-ud_rmsprop": {"decay": 0.89}, "df-ud_adabelief": {"beta1": 0.89}}


@cache
def sound(name: str) -> Run:
    return run(recording(name))


@pytest.mark.parametrize("name", in_short(*LONG))
def test_losses(name: str) -> None:
    assert sound(name).losses["src_loss"].shape == (STEPS, 2)
    assert loss_error(recording(name), sound(name)) <= limits(name)["losses"]


@pytest.mark.parametrize("name", in_short(*LONG))
def test_movement(name: str) -> None:
    case, ours = recording(name), sound(name)
    assert joint_error(case.movement(1), ours.movement[1]) <= limits(name)["first movement"]
    assert joint_error(case.movement(STEPS), ours.movement[STEPS]) <= limits(name)["movement"]


@pytest.mark.parametrize("name", in_short(*LONG))
def test_weights_one_by_one(name: str) -> None:
    ours = final_weights(sound(name))
    for path in (FOLDER / "train" / name / "step20").iterdir():
        network = path.stem.removeprefix("golden_SAEHD_")
        assert weight_error(read(path), ours[network]) <= limits(name)["weights"] * STEPS * RATE, network


@pytest.mark.parametrize("name", in_short(*FAULTS))
def test_state_of_the_optimizer(name: str) -> None:
    recorded = record(f"train/{name}/state20.json")
    optimizer = sound(name).state.optimizers["autoencoder"]
    assert int(optimizer.counts["updates"]) == recorded.pop("iters:0") == STEPS
    for slot, ours in statistics(sound(name)).items():
        expected = {key: np.array(values) for key, values in recorded.items() if key.startswith(f"{slot}_")}
        assert ours.keys() == expected.keys()
        assert joint_error(expected, ours) <= limits(name)["state"], slot


@pytest.mark.parametrize("name", ["df-ud_adabelief", "liae-ud_adabelief"])
def test_pictures_before_training(name: str) -> None:
    case = recording(name)
    for key, picture in pictures(case, built(case.networks, case.seed)).items():
        assert (picture - nchw(case.trace[f"pred_{key}_step0"])).abs().max() <= 1e-5, key  # measured: 9e-7


@pytest.mark.parametrize("name", ["df-ud_adabelief"])
def test_pictures_after_training(name: str) -> None:
    case = recording(name)
    for key, picture in pictures(case, sound(name).state.networks).items():
        assert (picture - nchw(case.trace[f"pred_{key}_final"])).abs().max() <= limits(name)["pictures"], key


@pytest.mark.long
@pytest.mark.parametrize("name", in_short(*FAULTS))
def test_another_constant_of_the_optimizer_is_noticed(name: str) -> None:
    case = recording(name)
    faulty = run(replace(case, faults=FAULTS[name]), steps=10)
    assert loss_error(case, faulty) > 2 * limits(name)["losses"]
