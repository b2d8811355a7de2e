"""A step beside a card, without a card: what a card would hold is on `meta`, pictures and draws are on the host.

Every operation is looked at: none may mix the two, look at a value, or copy between them so that the host waits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.made_up import Looking, MadeUpFamily
from contract.rig import BF16, OPTIMIZERS, Rig, adam
from contract.stand_in import META, Watcher
from contract.test_families import Augmented
from frugan.contract.family import Family
from frugan.doctor.trial import HostDraws
from frugan.engine.run.step_log import Readout
from frugan.engine.state.optimizer_settings import OptimizerSettings
from frugan.engine.streams import Streams
from frugan.families import families
from limits import Limit

ALL = [MadeUpFamily(), *families().values()]


class Lent(torch.Generator):
    """The host's generator in place of the one that `meta` does not have."""

    def __new__(cls, device: torch.device | str = "cpu") -> "Lent":
        return super().__new__(cls, "cpu" if torch.device(device).type == "meta" else device)  # type: ignore[call-arg]


@contextmanager
def beside_a_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    """What only a card has is lent to `meta`: generators of its own."""
    monkeypatch.setattr(torch, "Generator", Lent)
    with Watcher() as faults:
        yield faults


def rig_on(device: torch.device, family: Family, **settings: Any) -> Rig:
    rig = Rig.create(family, device=device, **settings)
    rig.step = replace(rig.step, draws=HostDraws(7))
    return rig


@pytest.mark.parametrize(
    ("family", "optimizers"),
    [
        *(
            pytest.param(family, kind, marks=[] if kind is adam or family.name == "made-up" else pytest.mark.long)
            for family, kind in product(ALL, OPTIMIZERS)
        ),
        pytest.param(Augmented(), adam, marks=pytest.mark.long),  # alone: `augment/test_ada.py`
    ],
    ids=lambda value: getattr(value, "name", None) or value.__name__,
)
def test_a_step_mixes_no_devices_and_waits_for_none(
    family: Family, optimizers: Callable[[float], OptimizerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_on(META, family, optimizers=optimizers, recompute=family.name == "made-up")
    if optimizers is not adam:  # forward and backward are the same by all of them
        rig.step = replace(rig.step, phases=rig.phases[:1])
    with beside_a_card(monkeypatch) as faults:
        results = rig.step.run(rig.state, rig.plan)
        Readout.start(rig.state.step, results, {})
    assert faults.found == []
    assert faults.to_card > 0
    assert faults.to_host == 0
    assert all(tensor.is_meta for tensor in rig.tensors().values())


@pytest.mark.parametrize(
    "optimizers", [pytest.param(kind, marks=[] if kind is adam else pytest.mark.long) for kind in OPTIMIZERS]
)
def test_what_is_kept_on_the_host_comes_and_goes_without_waiting(
    optimizers: Callable[[float], OptimizerSettings],
    monkeypatch: pytest.MonkeyPatch,
    limit: Limit,
) -> None:
    """Averages, optimizer state and what blocks are given; the average waits once, for an event and not for a copy."""
    limit("bytes sent to the host", 1)
    away = {"offload": True, "ema_on_host": True, "optimizer_on_host": True}
    with beside_a_card(monkeypatch) as faults:
        rig = rig_on(META, ALL[0], optimizers=optimizers, precision=BF16, recompute=True, **away)
        faults.found.clear()  # the average may wait while it is set up
        faults.to_host = 0
        rig.step.run(rig.state, rig.plan, count_zeros=True)
    assert faults.found == []
    kept = {f"{n}.{key}" for n, m in rig.state.ema.networks.items() for key in m.state_dict()}
    slots = [t for o in rig.state.optimizers.values() for state in o.state.values() for t in state.values() if t.ndim]
    assert faults.to_host >= len(kept) + len(slots)
    assert {tensor.device.type for tensor in slots} == {"cpu"}
    assert all(tensor.is_meta for network in rig.state.networks.values() for tensor in network.parameters())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda here, there: here + there, "mixes"),
        (lambda here, there: here.to("cpu"), "waits"),
        (lambda here, there: there.copy_(here), "waits"),
        (lambda here, there: there.to(META), "waits"),
        (lambda here, there: here[here > 0], "looks at a value"),
        (lambda here, there: here[0].item(), "looks at a value"),
    ],
)
def test_a_fault_would_be_seen(wrong: Callable[[Tensor, Tensor], object], said: str) -> None:
    here, there = torch.ones(2, device=META), torch.ones(2)
    faults = Watcher()
    with faults, suppress(RuntimeError, NotImplementedError):
        wrong(here, there)
    assert len(faults.found) == 1
    assert said in faults.found[0]


def test_a_step_that_looks_at_a_loss_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_on(META, Looking())
    with beside_a_card(monkeypatch) as faults, suppress(RuntimeError):  # `meta` has no value to look at
        rig.step.run(rig.state, rig.plan)
    assert "looks at a value" in faults.found[0]


def test_draws_made_on_the_host_are_those_of_a_cpu_on_every_device() -> None:
    """What tests on a card compare with: a card's own generator gives other numbers than the host's from one seed."""
    streams, family = Streams(7), MadeUpFamily()
    critic = family.phases(*family.tiny())[0]
    own = streams.micro_batch(critic, 3, 1, 2, 4, torch.device("cpu"))
    assert set(own) == {"dropout"}
    there = HostDraws(7).micro_batch(critic, 3, 1, 2, 4, torch.device("cpu"))
    assert torch.equal(own["dropout"], there["dropout"])
    assert HostDraws(7).micro_batch(critic, 3, 1, 2, 4, META)["dropout"].is_meta
