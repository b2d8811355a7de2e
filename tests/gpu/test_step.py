"""The step on a CUDA card; skipped without one."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from contract.made_up import MadeUpFamily
from contract.rig import BF16, FP16, FP32, OPTIMIZERS, Rig, largest_difference
from frugan.accelerator.precision import Precision
from frugan.contract.family import Family
from frugan.doctor.checks import trains_as_the_processor
from frugan.doctor.trial import OPTIMIZERS as SETTINGS
from frugan.doctor.trial import HostDraws, other_losses, tiny_subject
from frugan.engine.run.step_log import Readout
from frugan.engine.state.optimizer_settings import OptimizerSettings
from frugan.families import families
from frugan.metrics.feature_network import InceptionFeatures
from frugan.metrics.inception import Inception
from frugan.planning.prediction import BlankPictures
from limits import Limit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
ALL = [MadeUpFamily(), *families().values()]
CUDA = torch.device("cuda")


@pytest.fixture(params=ALL, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    chosen: Family = request.param
    return chosen


@pytest.mark.parametrize("optimizers", OPTIMIZERS)
@pytest.mark.parametrize("precision", [FP32, BF16, FP16], ids=lambda p: p.name)
def test_steps_never_wait_for_the_card(
    family: Family, precision: Precision, optimizers: Callable[[float], OptimizerSettings]
) -> None:
    """Any host synchronisation inside a step raises here."""
    rig = Rig.create(family, precision=precision, device=CUDA, recompute=True, optimizers=optimizers)
    blank = BlankPictures(family.sources(*family.tiny()))
    rig.run(2)  # lazy set-up of libraries may synchronise
    object.__setattr__(rig.step, "pictures", blank)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = rig.step.run(rig.state, rig.plan)
        readout = Readout.start(rig.state.step, results, {})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    phases, _ = readout.read()
    assert set(phases) <= {phase.name for phase in rig.phases}


def test_card_and_host_agree(family: Family) -> None:
    """In float64 on both: the same arithmetic up to the order of sums, on draws that no device makes by itself."""
    host, card = Rig.create(family, dtype=torch.float64), Rig.create(family, dtype=torch.float64, device=CUDA)
    for rig in (host, card):
        rig.step = replace(rig.step, draws=HostDraws(7))
    host.run(2)
    card.run(2)
    on_host = {name: value.cpu() for name, value in card.tensors().items()}
    difference, where = largest_difference(host.tensors(), on_host)
    assert difference < 1e-4, where


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.kind)
def test_every_optimizer_trains_as_on_the_host(family: Family, settings: OptimizerSettings) -> None:
    """In each precision that this card trains in, with every kernel of our own."""
    outcomes = trains_as_the_processor(tiny_subject(family, settings), CUDA, settings.kind)
    assert [each.line for each in outcomes if each.state != "passed"] == []


def test_every_loss_trains_as_on_the_host(family: Family) -> None:
    for loss, objective in other_losses(family).items():
        outcomes = trains_as_the_processor(tiny_subject(family, objective=objective), CUDA, loss)
        assert [each.line for each in outcomes if each.state != "passed"] == []


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda p: p.name)
def test_half_precision_trains(family: Family, precision: Precision) -> None:
    rig = Rig.create(family, precision=precision, device=CUDA, learning_rate=1e-4)
    accepted = [bool(r.accepted) for results in rig.run(40) for r in results]
    assert sum(accepted[-20:]) >= 15  # fp16 begins by coming down from its first loss scale


def test_ema_on_host_agrees(family: Family) -> None:
    on_card, on_host = Rig.create(family, device=CUDA), Rig.create(family, device=CUDA, ema_on_host=True)
    on_card.run(3)
    on_host.run(3)
    for name, network in on_card.state.ema.networks.items():
        for key, value in network.state_dict().items():
            other = on_host.state.ema.networks[name].state_dict()[key]
            assert other.device.type == "cpu"
            torch.testing.assert_close(value.cpu(), other, rtol=1e-5, atol=1e-6)


def test_offload_agrees_and_frees_the_card(limit: Limit) -> None:
    """What blocks are given goes through pinned memory and comes back the same."""
    limit("bytes sent to the host", 1)
    family = families()["biggan"]
    here, there = (Rig.create(family, device=CUDA, recompute=True, offload=sent) for sent in (False, True))
    here.run(2)
    there.run(2)
    difference, where = largest_difference(*({k: v.cpu() for k, v in r.tensors().items()} for r in (here, there)))
    assert difference < 1e-4, where


def test_optimizer_on_host_agrees(family: Family) -> None:
    here, there = (Rig.create(family, device=CUDA, optimizer_on_host=away) for away in (False, True))
    slots = [t for o in there.state.optimizers.values() for state in o.state.values() for t in state.values() if t.ndim]
    assert all(tensor.is_pinned() for tensor in slots)
    here.run(2)
    there.run(2)
    difference, where = largest_difference(*({k: v.cpu() for k, v in r.tensors().items()} for r in (here, there)))
    assert difference < 1e-4, where


def test_features_do_not_depend_on_the_device() -> None:
    """TF32 has three digits."""
    pictures = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    network = Inception()
    host = InceptionFeatures(network, "")(pictures).pooled
    card = InceptionFeatures(network.to(CUDA), "")(pictures).pooled
    torch.testing.assert_close(host, card, rtol=1e-4, atol=1e-5)
