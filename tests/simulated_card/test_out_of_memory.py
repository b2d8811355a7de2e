"""Memory runs out at every allocation of a step in turn: the step ends as if it had not, or says that it cannot."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from contract.made_up import MadeUpFamily
from contract.rig import BF16, Rig, assert_same
from frugan.accelerator.choice import accelerator_of
from frugan.contract.family import Family
from frugan.engine.plan import Plan
from frugan.engine.state.state import TrainingState
from frugan.errors import TrainingFailed
from frugan.families import families
from limits import Limit

Cards = Callable[..., Any]
CARD = torch.device("privateuseone", 0)  # torch's name of the first simulated card until it is registered
FAMILIES = [MadeUpFamily(), *families().values()]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"precision": BF16},
    "saving": {"recompute": True, "offload": True, "bring_ahead": True, "ema_on_host": True, "optimizer_on_host": True},
}
SHORT = {"made-up": 61}
LONG = {
    "made-up": 1,
    "biggan": 17,
    "stylegan2": 23,
    "stylegan3": 23,
    "saehd": 17,
    "r3gan": 23,
    "xseg": 23,
    "quick96": 17,
    "amp": 17,
}
"""Family -> every how manieth allocation is refused, in a step of its own."""
RARER = {"plain": 1, "saving": 7}
"""Setting -> so many times that: with all savings a step takes several times as long, and allocates more often."""


def cases() -> list[Any]:
    short = [pytest.param(name, every, "plain", id=f"{name}-plain") for name, every in SHORT.items()]
    long = [
        pytest.param(name, every * rarer, saving, id=f"{name}-{saving}-every-{every * rarer}", marks=pytest.mark.long)
        for name, every in LONG.items()
        for saving, rarer in RARER.items()
    ]
    return short + long


def family_named(name: str) -> Family:
    return next(each for each in FAMILIES if each.name == name)


def _copied(state: TrainingState) -> TrainingState:
    accelerator_of(CARD).synchronize()  # what is on its way to the host
    copied = copy.deepcopy(state)
    for name, optimizer in copied.optimizers.items():
        optimizer.on_host = state.optimizers[name].on_host  # torch copies statistics and groups alone
    return copied


def same_plan(plan: Plan, phase: str, message: str) -> Plan:
    return plan


@pytest.mark.parametrize(("name", "every", "saving"), cases())
def test_a_step_that_runs_out_of_memory_anywhere_ends_as_one_that_does_not(
    name: str, every: int, saving: str, cards: Cards, limit: Limit
) -> None:
    limit("bytes sent to the host", 1)
    memory = cards().memory[0]
    tight, free = (Rig.create(family_named(name), device=CARD, **SETTINGS[saving]) for _ in range(2))
    for rig in (tight, free):
        rig.run(1)  # what is made once and kept, and scales that are looked for
    repeated, told = 0, 0
    refused = 1
    while True:
        before = memory.settle().live_bytes
        number = memory.allocations + refused
        memory.refused = range(number, number + 1)
        try:
            tight.step.run(tight.state, tight.plan, next_plan=same_plan)
            could_not = False
        except TrainingFailed as error:
            could_not = "memory ran out in the midst of" in str(error)
            assert could_not, error  # noqa: PT017  (whether a step can be repeated depends on the place)
        repeated, told = repeated + (not could_not), told + could_not
        came_to_it = memory.allocations >= number
        gc.collect()
        memory.refused = range(0)
        assert memory.settle().live_bytes == before, f"allocation {refused}: memory is held"
        free.run(1)
        if not came_to_it:
            break
        if could_not:
            tight.state = _copied(free.state)
            for rig in (tight, free):
                rig.run(1)
        accelerator_of(CARD).synchronize()
        assert_same(tight.tensors(), free.tensors())
        refused += every
    assert repeated > 2 * told
