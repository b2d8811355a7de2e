"""A step that is timed beforehand leaves no trace."""

import time
from dataclasses import replace

import pytest
import torch

from contract.made_up import MadeUpFamily
from contract.rig import Rig, assert_same
from frugan.contract.family import Family
from frugan.contract.phase import MicroBatch, Networks, PhaseState, Terms
from frugan.engine.run.threads import rehearse
from frugan.families import families


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(MadeUpFamily(), id="made-up"),
        *(pytest.param(family, id=name, marks=pytest.mark.long) for name, family in families().items()),
    ],
)
def test_a_rehearsal_leaves_no_trace(family: Family) -> None:
    plain, rehearsed = Rig.create(family), Rig.create(family)
    random = torch.get_rng_state()
    assert rehearse(rehearsed.step, rehearsed.state, rehearsed.plan) > 0
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for n in rehearsed.state.networks.values() for p in n.parameters())
    assert_same(plain.tensors(), rehearsed.tensors())
    rehearse(rehearsed.step, rehearsed.state, rehearsed.plan, 3)
    plain.run(1)
    rehearsed.run(1)
    assert_same(plain.tensors(), rehearsed.tensors())


def test_one_micro_batch_stands_for_all() -> None:
    rig = Rig.create(MadeUpFamily(), batch=16, micro_batch=4)
    ran: list[str] = []

    def slow(networks: Networks, micro: MicroBatch, state: PhaseState, name: str, part: object) -> Terms:
        ran.append(name)
        time.sleep(0.03)
        return part(networks, micro, state)  # type: ignore[operator, no-any-return]

    def slowed(name: str, part: object) -> object:
        return lambda networks, micro, state: slow(networks, micro, state, name, part)

    phases = tuple(replace(p, parts=tuple(slowed(p.name, each) for each in p.parts)) for p in rig.phases)  # type: ignore[misc]
    seconds = rehearse(replace(rig.step, phases=phases), rig.state, rig.plan)
    assert ran == ["critic", "critic", "penalty", "maker"]
    # 4 micro-batches: the critic's two parts twice each; the penalty every other step, on half a batch; the maker
    assert seconds > 0.03 * (4 * 2 * 2 + 2 / 2 + 4)
