"""What a plan is predicted to take is what the simulated card gives out and reserves, by the rules of its allocator."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from contract.made_up import MadeUpFamily
from contract.rig import BF16, FP16, FP32
from frugan.contract.family import Family
from frugan.engine.optimizers import AdaBeliefSettings, OptimizerSettings, RMSpropSettings
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision
from frugan.engine.streams import Streams
from frugan.engine.training import Training
from frugan.families import families
from frugan.memory.prediction import BlankPictures, predict
from frugan.memory.step_memory import STEPS
from limits import Limit
from memory.tasks import plan_of, task

Cards = Callable[..., Any]
CARD = torch.device("privateuseone", 0)  # torch's name of the first simulated card until it is registered
FAMILIES = [MadeUpFamily(), *families().values()]
SAVINGS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "recompute": {"keeping": "blocks"},
    "products": {"keeping": "products"},
    "offload": {"keeping": "nothing here"},
    "offload, one ahead": {"keeping": "one ahead"},
    "slices": {"slices": True},
}
BLOCK_BYTES = {"biggan": 512}
"""Of one scalar more at the peak of BigGAN's second step, which a plan of two steps in a row has and a step has not."""


def given_out(of: Training, plan: Plan, memory: Any) -> tuple[int, int]:
    """Most that the card gave out, and reserved, in as many steps as a plan looks at."""
    built = dict(of.build("cpu"))
    for network in built.values():
        network.to(CARD)
    state = of.state(plan, CARD, networks=built)
    for scale in state.loss_scales.values():
        scale.found = True  # what is predicted is a step that is not repeated
    step = of.step(BlankPictures(of.stages[0].sources), Streams(0))
    del built
    gc.collect()
    memory.give_back()
    memory.reset_peaks()
    for _ in range(STEPS):
        step.run(state, plan, count_zeros=True)
    memory.settle()
    return memory.allocator.peak_taken_bytes, memory.allocator.peak_reserved_bytes


def cases() -> list[Any]:
    short = {("made-up", "nothing", True), ("made-up", "offload, one ahead", True), ("saehd", "nothing", True)}
    return [
        pytest.param(
            family,
            saving,
            on_host,
            id=f"{family.name}-{saving}{'-on-host' if on_host else ''}",
            marks=[] if (family.name, saving, on_host) in short else pytest.mark.long,
        )
        for family in FAMILIES
        for saving in SAVINGS
        for on_host in (False, True)
        if saving != "products" or family.name in ("made-up", "biggan")  # others' blocks work in place
    ]


def assert_predicted(of: Training, plan: Plan, cards: Cards, scalar_bytes: int = 0) -> None:
    prediction = predict(of, plan, "cuda", of.stages[0])
    taken_bytes, reserved_bytes = given_out(of, plan, cards().memory[0])
    assert prediction.live_bytes - taken_bytes in (0, scalar_bytes)
    assert prediction.unlimited_bytes == reserved_bytes


@pytest.mark.parametrize(("family", "saving", "on_host"), cases())
def test_a_peak_is_the_predicted_one_to_the_byte(
    family: Family, saving: str, on_host: bool, cards: Cards, limit: Limit
) -> None:
    limit("bytes sent to the host", 1)
    of = task(family)
    for micro_batch in sorted({of.group, of.batch}):
        plan = plan_of(of, micro_batch, BF16, **SAVINGS[saving])
        plan = replace(plan, ema_on_host=on_host, optimizer_on_host=on_host)
        assert_predicted(of, plan, cards, BLOCK_BYTES.get(family.name, 0))


@pytest.mark.long
@pytest.mark.parametrize("precision", [FP32, FP16], ids=lambda precision: precision.name)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_peak_is_the_predicted_one_in_other_precisions(
    family: Family, precision: Precision, cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan is for a card whose convolutions in fp32 are not the faster in channels-last, as the processor's are."""
    monkeypatch.setattr("simcard.card.SimulatedCard.fp32_channels_last", False)
    of = task(family)
    assert_predicted(of, plan_of(of, of.group, precision), cards, BLOCK_BYTES.get(family.name, 0))


@pytest.mark.long
@pytest.mark.parametrize(
    "settings", [RMSpropSettings(learning_rate=1e-4, dropout=0.5), AdaBeliefSettings(learning_rate=1e-4, dropout=0.5)]
)
@pytest.mark.parametrize("on_host", [False, True])
def test_a_peak_is_the_predicted_one_of_other_optimizers(
    settings: OptimizerSettings, on_host: bool, cards: Cards
) -> None:
    of = task(MadeUpFamily(), settings=settings)
    assert_predicted(of, replace(plan_of(of, of.group, BF16), optimizer_on_host=on_host), cards)
