"""Steps on a simulated card: the same bits whenever its copies are done, and the processor's, whatever a plan saves."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.made_up import MadeUpFamily
from contract.rig import BF16, FP16, FP32, OPTIMIZERS, Rig, adabelief, adam, assert_same, rmsprop, sgd
from contract.test_families import Augmented
from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.precision import Precision
from frugan.contract import cpu_ways
from frugan.contract.family import Family
from frugan.doctor.trial import MadePictures, PinnedPictures
from frugan.engine.durations import Duration
from frugan.engine.ranks.ranks import OneRank
from frugan.engine.run.step_log import Readout, shown_state
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import OptimizerSettings
from frugan.engine.streams import Streams
from frugan.families import families
from frugan.nn.spectral_norm import top_singular_values
from frugan.setup.ops import kernel_names, ops_of
from limits import Limit
from planning.tasks import plan_of, task

pytestmark = pytest.mark.usefixtures("a_cards_bits")
Cards = Callable[..., Any]
CARD, CPU = torch.device("privateuseone", 0), torch.device("cpu")  # torch's name of the first until it is registered
FAMILIES = [MadeUpFamily(), *families().values()]
STEPS = 3
SAVINGS: Mapping[str, Mapping[str, object]] = {
    "nothing": {},
    "on the host": {"ema_on_host": True, "optimizer_on_host": True},
    "offload": {"recompute": True, "offload": True, "bring_ahead": True},
    "offload alone": {"recompute": True, "offload": True},
    "recompute": {"recompute": True},
    "products": {"recompute": True, "keep_products": True},
    "slices": {"in_slices": True},
}
SHORT = {("made-up", "nothing"), ("made-up", "offload"), ("made-up", "on the host"), ("saehd", "slices")}
HOST_AHEAD = {"on the host", "offload", "products"}
"""That have work of their own to queue; the others do a part of it."""


def trained(family: Family, device: torch.device, steps: int = STEPS, **settings: Any) -> tuple[Rig, dict[str, Tensor]]:
    """What a training ends with, seen by a host that waited for everything."""
    rig = Rig.create(family, device=device, **settings)
    rig.run(steps)
    accelerator_of(device).synchronize()
    return rig, {name: value.cpu() for name, value in rig.tensors().items()}


def allows(family: Family, saving: str) -> bool:
    """Torch refuses to keep products where blocks work in place."""
    return saving != "products" or family.name in ("made-up", "biggan")


def combinations() -> list[Any]:
    return [
        pytest.param(family, saving, marks=[] if (family.name, saving) in SHORT else pytest.mark.long)
        for family in FAMILIES
        for saving in SAVINGS
        if allows(family, saving)
    ]


@pytest.mark.parametrize(("family", "saving"), combinations(), ids=lambda value: getattr(value, "name", value))
def test_a_card_trains_as_a_processor_whenever_copies_are_done(
    family: Family, saving: str, cards: Cards, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where processors have ways of their own, this one goes the card's."""
    monkeypatch.setattr(cpu_ways, "taken_for", lambda x: False)
    limit("bytes sent to the host", 1)
    settings: Any = SAVINGS[saving]
    _, on_processor = trained(family, CPU, **settings)
    for schedule in ("latest", "earliest"):
        cards(SIMCARD_SCHEDULE=schedule)
        _, on_card = trained(family, CARD, **settings)
        assert_same(on_card, on_processor)


@pytest.mark.long
@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
@pytest.mark.parametrize("optimizers", OPTIMIZERS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("family", [*FAMILIES, Augmented()], ids=lambda family: family.name)
def test_schedules_agree_in_half_precision(
    family: Family, optimizers: Any, precision: Any, cards: Cards, limit: Limit
) -> None:
    limit("bytes sent to the host", 1)
    settings: Any = {"precision": precision, "optimizers": optimizers, "recompute": True, "offload": True}
    settings |= {"bring_ahead": True}
    settings |= {"ema_on_host": True, "optimizer_on_host": True}
    cards(SIMCARD_SCHEDULE="earliest")
    _, early = trained(family, CARD, **settings)
    cards(SIMCARD_SCHEDULE="latest")
    _, late = trained(family, CARD, **settings)
    assert_same(late, early)


@pytest.mark.parametrize(
    ("family", "saving"),
    [
        pytest.param(each, saving, marks=[] if each.name == "made-up" and saving in HOST_AHEAD else pytest.mark.long)
        for each in FAMILIES
        for saving in SAVINGS
        if allows(each, saving)
    ],
)
def test_a_step_lets_the_host_wait_for_nothing(family: Family, saving: str, cards: Cards, limit: Limit) -> None:
    """Two steps, so that phases that are due every second one are seen; the numbers of one, and weights that an average
    on the host follows, are read when the next is queued."""
    limit("bytes sent to the host", 1)
    settings: Any = SAVINGS[saving]
    waits = cards().clock.waits
    rig, _ = trained(family, CARD, 2, **settings)
    rig.step = replace(rig.step, pictures=PinnedPictures(rig.step.pictures, CARD))  # as the loader has them
    waits.clear()
    with accelerator_of(CARD).refusing_to_wait():
        for _ in range(2):
            results = rig.step.run(rig.state, rig.plan)
            Readout.start(rig.state.step, results, {})
    expected = {"event": 1} if settings.get("ema_on_host") and rig.state.ema.landings else {}
    assert waits == expected


def clipped(optimizers: Callable[[float], OptimizerSettings]) -> Callable[[float], OptimizerSettings]:
    """With gradients scaled down, as all of them are larger."""
    return lambda rate: optimizers(rate).model_copy(update={"clip_norm": 1e-3})


RAMP = EmaSettings(schedule="ramp", decay=0.9, start=Duration.parse("3 steps"))
IN_FP32 = {"critic": ("bodies.0",)}
CONTENTS: Mapping[str, tuple[Family, Mapping[str, Any]]] = {
    "clipping, an average that begins": (MadeUpFamily(), {"optimizers": clipped(rmsprop), "ema": RAMP}),
    "loss scales, blocks in fp32": (
        MadeUpFamily(),
        {"optimizers": clipped(adabelief), "precision": FP16, "fp32_blocks": IN_FP32},
    ),
    "shards": (MadeUpFamily(), {"optimizers": sgd, "ranks": OneRank(0, 2), "shard_optimizer": True}),
    "steered augmentation": (Augmented(), {"optimizers": clipped(adam)}),
}
"""What a step may contain besides savings; two optimizers leave weights as they are at random (`rig`)."""


@pytest.mark.parametrize(("family", "settings"), CONTENTS.values(), ids=CONTENTS)
def test_nothing_that_a_step_contains_lets_the_host_wait(
    family: Family, settings: Mapping[str, Any], cards: Cards, limit: Limit
) -> None:
    """In two steps: before an average begins and when it does; as loss scales come to grow; with all that is told."""
    limit("elements shared out", 1)
    waits = cards().clock.waits
    rig, _ = trained(family, CARD, 1, **settings)
    scales = [scale for scale in rig.state.loss_scales.values() if scale.dynamic]
    for scale in scales:
        scale.scale.fill_(1024)
        scale.good.fill_(1999)
    rig.step = replace(rig.step, pictures=PinnedPictures(rig.step.pictures, CARD))
    waits.clear()
    with accelerator_of(CARD).refusing_to_wait():
        for _ in range(2):
            results = rig.step.run(rig.state, rig.plan, count_zeros=True)
            networks = rig.state.networks.items()
            values = {f"{name}.{key}": v for name, n in networks for key, v in top_singular_values(n).items()}
            Readout.start(rig.state.step, results, {**values, **shown_state(rig.step, rig.state)})
    assert not waits
    assert all(bool(result.accepted) for result in results)
    assert [float(scale.scale) for scale in scales] == [2048] * len(scales)


@pytest.mark.parametrize("moves", [False, True])
def test_averages_on_the_host_are_finished_for_whoever_asks(moves: bool, cards: Cards) -> None:
    """A step behind until then; also where they go back to the card."""
    on_processor, _ = trained(MadeUpFamily(), CPU, 2)
    waits = cards().clock.waits
    rig, _ = trained(MadeUpFamily(), CARD, 1, ema_on_host=True)
    waits.clear()
    rig.run(1)
    assert not waits
    assert all(torch.isnan(each).all() for each in rig.state.ema.landings["maker"].values() if each.is_floating_point())
    if moves:
        rig.state.follow(replace(rig.plan, ema_on_host=False))
    accelerator_of(CARD).synchronize()
    assert_same({name: value.cpu() for name, value in rig.tensors().items()}, on_processor.tensors())


def test_the_originals_habit_lets_weights_leave_before_they_move(cards: Cards) -> None:
    """It commits at each micro-batch."""
    ended = []
    for device in (CPU, CARD):
        rig = Rig.create(MadeUpFamily(), device=device, micro_batch=4, ema_on_host=True)
        rig.step = replace(rig.step, originals=True)
        rig.run(STEPS)
        accelerator_of(device).synchronize()
        ended.append({name: value.cpu() for name, value in rig.tensors().items()})
    assert_same(*ended)


@pytest.mark.parametrize("saving", ["on the host", "offload"])
def test_a_second_card_trains_alone(saving: str, cards: Cards, limit: Limit) -> None:
    """Torch's current card stays the first."""
    limit("bytes sent to the host", 1)
    settings: Any = SAVINGS[saving]
    _, first = trained(MadeUpFamily(), CARD, 1, **settings)
    memories = cards(SIMCARD_COUNT=2).memory
    _, second = trained(MadeUpFamily(), torch.device("simcard", 1), 1, **settings)
    assert memories[0].allocations == 0
    assert_same(second, first)


def test_a_steps_numbers_are_read_when_they_are_there(cards: Cards) -> None:
    seen = []
    for device in (CPU, CARD):
        rig, _ = trained(MadeUpFamily(), device, 1)
        readouts = [Readout.start(step, rig.step.run(rig.state, rig.plan), {}) for step in range(3)]
        rig.step.run(rig.state, rig.plan)  # the host is a step ahead
        seen.append([readout.read() for readout in readouts])
    assert seen[0] == seen[1]
    assert seen[0][0] != seen[0][2]


@pytest.mark.parametrize(
    ("name", "precision"),
    [("stylegan2", BF16), ("saehd", FP32), ("biggan", BF16), pytest.param("r3gan", BF16, marks=pytest.mark.long)],
)
def test_operations_of_our_own_give_a_processors_bits(
    name: str, precision: Precision, cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is one operation to the card; what it computes stands beside its kernel, in torch."""
    monkeypatch.setattr(cpu_ways, "taken_for", lambda x: False)
    cards()
    of = replace(task(families()[name]), ops=ops_of(kernel_names()))
    stage, plan, ends = of.stages[0], plan_of(of, of.group, precision), []
    for device in (CPU, CARD):
        built = {network: module.to(device) for network, module in of.make().items()}
        state = of.state(plan, device, networks=built, stage=stage)
        of.step(MadePictures(stage.sources), Streams(0), stage=stage).run(state, plan)
        accelerator_of(device).synchronize()
        ends.append({f"{n}.{k}": v.cpu() for n, m in state.networks.items() for k, v in m.state_dict().items()})
    assert_same(*ends)
