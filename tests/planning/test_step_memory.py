"""Memory of a step: what it says lives is what lives, on real tensors and on fake ones alike."""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from contract.made_up import MadeUpFamily
from contract.rig import BF16, FP32, Rig
from frugan.accelerator.precision import Precision
from frugan.planning.step_memory import HostBeside, measure_step
from frugan.stepmemory.dataless import META, Dataless
from frugan.stepmemory.measurement import StepMemory
from frugan.stepmemory.tracker import Tracker
from frugan.stepmemory.work import Work
from stepmemory.storages import storages_bytes


def _measured(precision: Precision, *, fake: bool, recompute: bool) -> StepMemory:
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext():
        rig = Rig.create(MadeUpFamily(), precision=precision, recompute=recompute)
        rig.step.run(rig.state, rig.plan)
        blocks = MadeUpFamily().recomputable(rig.state.networks)
        measured = measure_step(rig.step, rig.state, rig.plan, blocks)
        held = [t for n in rig.state.networks.values() for t in (*n.parameters(), *n.buffers())]
        assert measured.static["parameters"] == storages_bytes(held)
    return measured


@pytest.mark.parametrize(
    ("precision", "recompute"),
    [
        pytest.param(BF16, True, marks=pytest.mark.long),
        pytest.param(BF16, False, marks=pytest.mark.long),
        pytest.param(FP32, True, marks=pytest.mark.long),
        pytest.param(FP32, False, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_predicted_is_measured(precision: Precision, recompute: bool) -> None:
    """In every run of the tests `test_prediction.py` sees to it, by the tracker that `predict` runs."""
    real, fake = (_measured(precision, fake=fake, recompute=recompute) for fake in (False, True))
    assert fake.peak.size_bytes == pytest.approx(real.peak.size_bytes, rel=0.01)
    assert fake.peak.place == real.peak.place
    for phase, peak in real.by_phase.items():
        assert fake.by_phase[phase].size_bytes == pytest.approx(peak.size_bytes, rel=0.01)
    assert fake.needed_on_card_bytes >= fake.peak.size_bytes


def test_weights_that_are_their_masters_count_as_parameters() -> None:
    measured = _measured(FP32, fake=False, recompute=False)
    assert measured.peak.categories["parameters"] == measured.static["parameters"]


def test_everything_has_a_name() -> None:
    measured = _measured(BF16, fake=False, recompute=False)
    assert sum(measured.peak.categories.values()) == measured.peak.size_bytes
    assert {"parameters", "optimizer", "averages"} <= measured.static.keys()
    categories = set(measured.trace.categories)
    assert {"working weights", "gradients", "batch", "saved activations", "temporaries"} <= categories
    assert max(peak.size_bytes for peak in measured.by_phase.values()) == measured.peak.size_bytes


@pytest.mark.parametrize("run", [None, 2])
def test_every_micro_batch_leaves_its_terms_until_the_update_run_or_not(run: int | None) -> None:
    """They are many small blocks, which take room of their own on a card."""
    micro_batches = 40
    rig = Rig.create(MadeUpFamily(), batch=4 * micro_batches, micro_batch=4)
    rig.step.run(rig.state, rig.plan)
    trace = measure_step(rig.step, rig.state, rig.plan, micro_batches=run).trace
    live = most = 0
    for event in trace.events:
        number = event if event >= 0 else -1 - event
        if trace.places[number] == "maker" and trace.categories[number] == "temporaries":
            live += 1 if event >= 0 else -1
            most = max(most, live)
    assert most > micro_batches


def test_what_is_made_on_the_host_or_sent_there_counts_once_it_is_on_the_card() -> None:
    """Without data all devices are one, and nothing would move."""
    kib = 1024
    with Tracker(dataless=Dataless()) as live, HostBeside(live):
        drawn = torch.randn(64, kib) * 2
        assert live.live_bytes == 0
        part = drawn[:32].to(META)
        assert live.live_bytes == 128 * kib
        made = torch.cat([part, torch.zeros(32, kib, device=META)])  # the zeros are gone at once
        assert (live.live_bytes, live.peak_bytes) == (384 * kib, 512 * kib)
        sent = [made.cpu(), made.half().to("cpu")]  # 16 bits on the card, for a moment
        assert torch.cat([each.float() for each in sent]).clamp(-1, 1).shape == (128, kib)
        assert (live.live_bytes, live.peak_bytes) == (384 * kib, 512 * kib)
        labels = torch.tensor([0, 1]).to(META)
        assert live.live_bytes == 384 * kib + 512
    assert labels.shape == (2,)


def test_work_is_that_of_a_usual_step_and_memory_that_of_one_that_reports() -> None:
    """Zeros among gradients are counted every few hundred steps: their room has to be there, their time is none."""

    def work_and_events(*, count_zeros: bool) -> tuple[Work, int]:
        rig = Rig.create(MadeUpFamily())
        measured = measure_step(rig.step, rig.state, rig.plan, count_zeros=count_zeros)
        return measured.work, len(measured.trace.events)

    (usual, usual_events), (reporting, reporting_events) = (work_and_events(count_zeros=z) for z in (False, True))
    assert reporting == usual
    assert reporting_events > usual_events
