"""What saves memory changes no result: recomputing, offloading, state on the host, layers in slices, parts in turn."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contract.made_up import LATENT, SIDE, MadeUpFamily, MadeUpNetworks
from contract.rig import BF16, FP16, FP32, Rig, adabelief, adam, assert_same, largest_difference, rmsprop
from contract.trainings import ROUNDING, plain, trained
from frugan.accelerator.host_memory import Away, HostCopies
from frugan.accelerator.precision import Precision
from frugan.contract.layers import Observer
from frugan.doctor.trial import MadePictures
from frugan.engine.state.gradients import GradientReport
from frugan.engine.state.optimizer_settings import OptimizerSettings
from frugan.engine.streams import Streams
from frugan.families import families
from frugan.setup.ops import kernel_names, ops_of
from frugan.stepmemory.work import MacCounter
from limits import Limit
from planning.tasks import plan_of, task


class Dense(MadeUpFamily):
    """The made-up family with a plain dense layer."""

    def build(self, networks: MadeUpNetworks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        built = super().build(networks, device)
        built["maker"].linear = nn.Linear(LATENT, networks.width * SIDE * SIDE, device=device)
        return built


def test_recompute_is_bit_equal() -> None:
    assert_same(plain(), trained(recompute=True).tensors())


def test_a_recomputation_observes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was observed twice everywhere would have the same mean."""
    kept = 0
    stage = Observer.stage

    def counted(self: Observer, *given: Any) -> None:
        nonlocal kept
        kept += not self.recomputing
        stage(self, *given)

    monkeypatch.setattr(Observer, "stage", counted)
    trained(1)
    plain, kept = kept, 0
    trained(1, recompute=True)
    assert kept == plain > 0


@pytest.mark.parametrize("precision", [FP16, pytest.param(BF16, marks=pytest.mark.long)])
def test_recompute_is_bit_equal_with_operations_of_our_own(precision: Precision) -> None:
    """Blocks are given what was made of their styles for all of them together."""
    of = replace(task(families()["stylegan2"]), ops=ops_of(kernel_names()))
    stage, ends = of.stages[0], []
    for keeping in ("all", "nothing"):
        plan, built = plan_of(of, of.group, precision, keeping=keeping), of.make()
        assert bool(plan.recompute) == (keeping == "nothing")
        state = of.state(plan, torch.device("cpu"), networks=built, stage=stage)
        of.step(MadePictures(stage.sources), Streams(0), stage=stage).run(state, plan)
        ends.append({f"{n}.{k}": v for n, network in built.items() for k, v in network.state_dict().items()})
    assert_same(*ends)


def test_recompute_runs_blocks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from contract import made_up  # noqa: PLC0415

    calls = 0
    forward = made_up.Body.forward

    def counted(self: made_up.Body, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return forward(self, x)

    monkeypatch.setattr(made_up.Body, "forward", counted)
    trained(1)
    plain, calls = calls, 0
    trained(1, recompute=True)
    assert calls > plain


def test_recompute_that_keeps_products_is_bit_equal() -> None:
    """Under the penalty's double backward too."""
    assert_same(plain(), trained(recompute=True, keep_products=True).tensors())


def test_products_are_kept_wherever_the_room_for_observations_ends(
    limit: Limit,
) -> None:
    """Normalisations share it from block to block, and torch asks that a repetition begins as the block began."""
    biggan = families()["biggan"]
    whole = Rig.create(biggan)
    whole.run(1)
    limit("room for observations", 112)  # seven of the tiny network's normalisations, two a block
    kept = Rig.create(biggan, recompute=True, keep_products=True)
    kept.run(1)
    assert largest_difference(whole.tensors(), kept.tensors())[0] < 1e-6


def test_offload_is_bit_equal(monkeypatch: pytest.MonkeyPatch, limit: Limit) -> None:
    """Under the penalty's double backward too; and what goes to the host comes back."""
    limit("bytes sent to the host", 1)
    sent, brought = 0, 0
    send, bring = HostCopies.send, HostCopies.bring

    def counted_send(self: HostCopies, tensor: Tensor) -> Away:
        nonlocal sent
        sent += 1
        return send(self, tensor)

    def counted_bring(self: HostCopies, away: Away) -> None:
        nonlocal brought
        brought += 1
        bring(self, away)

    monkeypatch.setattr(HostCopies, "send", counted_send)
    monkeypatch.setattr(HostCopies, "bring", counted_bring)
    assert_same(plain(), trained(recompute=True, offload=True).tensors())
    assert sent
    assert brought >= sent / 2  # nothing asks for what a discriminator without gradient was given


@pytest.mark.parametrize("precision", [FP32, pytest.param(BF16, marks=pytest.mark.long)], ids=lambda p: p.name)
def test_keeping_products_makes_none_again(precision: Precision) -> None:
    """In blocks of several convolutions; recompute of all stops before a block's last one."""

    def products(**settings: object) -> int:
        rig = Rig.create(families()["biggan"], precision=precision, **settings)  # type: ignore[arg-type]
        rig.step = replace(rig.step, phases=rig.phases[:1])
        with MacCounter() as counted:
            rig.run(1)
        return int(counted.macs())

    kept = products(recompute=True, keep_products=True)
    assert products() == kept < products(recompute=True)


@pytest.mark.parametrize(
    "optimizers", [adabelief, *(pytest.param(kind, marks=pytest.mark.long) for kind in (adam, rmsprop))]
)
def test_optimizer_on_host_is_bit_equal(optimizers: Callable[[float], OptimizerSettings]) -> None:
    here, there = trained(optimizers=optimizers), trained(optimizers=optimizers, optimizer_on_host=True)
    assert_same(here.tensors(), there.tensors())


@pytest.mark.parametrize("recompute", [pytest.param(False, marks=pytest.mark.long), True])
def test_dense_layers_in_slices_change_nothing(recompute: bool, limit: Limit) -> None:
    limit("elements of a slice", 100 * LATENT)  # 100 of 512 rows, the last slice smaller
    family = Dense()
    whole, sliced = (Rig.create(family, recompute=recompute, in_slices=s, micro_batch=4) for s in (False, True))
    assert any(sliced.plan.in_slices.values())
    whole.run(2)
    sliced.run(2)
    difference, where = largest_difference(whole.tensors(), sliced.tensors())
    assert difference < ROUNDING, where


def test_slices_keep_the_gradient_in_fp32(limit: Limit) -> None:
    """In bf16, beside fp32: no further away than the layer whose gradients are added up whole."""
    limit("elements of a slice", 100 * LATENT)

    def reported(precision: Precision, in_slices: bool) -> GradientReport:
        rig = Rig.create(Dense(), precision=precision, in_slices=in_slices, batch=64, micro_batch=4)
        rig.step = replace(rig.step, phases=rig.phases[2:])  # the maker's
        return rig.run(1)[0][-1].gradients

    exact, whole, sliced = (reported(p, s) for p, s in ((FP32, False), (BF16, False), (BF16, True)))
    at = exact.names.index("maker.linear.weight")
    assert abs(float(sliced.norms[at] / exact.norms[at]) - 1) < 2 * abs(float(whole.norms[at] / exact.norms[at]) - 1)


def test_parts_in_sequence_change_nothing() -> None:
    difference, where = largest_difference(plain(), trained(parts_in_sequence=False).tensors())
    assert difference < ROUNDING, where


def test_ema_on_host_changes_nothing() -> None:
    assert_same(plain(), trained(ema_on_host=True).tensors())
