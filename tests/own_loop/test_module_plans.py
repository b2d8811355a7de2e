"""Plans of any module's step: what is predicted is what a real step takes, and less memory gets another plan."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frugan
from frugan.accelerator.precision import Precision
from frugan.errors import BadInput
from frugan.stepmemory.tracker import Tracker, tensors_of
from frugan.training.own_loop.dataless_step import Task
from frugan.training.own_loop.half_precision import Autocast
from frugan.training.own_loop.module_plan import _held_bytes
from frugan.training.own_loop.module_step import ModulePlan
from frugan.training.own_loop.plan_search import recomputable
from own_loop.own_models import (
    KINDS,
    Residual,
    ResNet,
    Transformer,
    UNet,
    adamw,
    built,
    cross_entropy,
    double,
    group_norm,
    mean,
)

FP32 = Precision("fp32", torch.float32, "test")
BF16 = Precision("bf16", torch.bfloat16, "test")
CPU = torch.device("cpu")

Optimizers = Callable[[Any], torch.optim.Optimizer]


def measured_bytes(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, plan: ModulePlan) -> int:
    """Most that lives in a real step that is not the first, in which optimizers make their state."""
    step = frugan.ModuleStep(model, cross_entropy, optimizer, plan)
    step(*batch)
    state = tensors_of(list(optimizer.state.values()))
    held: Any = {"parameters": [*model.parameters(), *model.buffers()], "optimizer": state, "batch": batch}
    with Tracker(held) as tracker:
        step(*batch)
    return int(tracker.peak_bytes)


def predicted_bytes(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, plan: ModulePlan) -> int:
    """Of the same without data."""
    return Task(model, cross_entropy, batch, optimizer, (), CPU, as_card=False).run(plan).live_bytes


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("name", "micro_batch", "precision", "dropout"),
    [
        ("unet", 8, FP32, 0.0),
        ("transformer", 3, BF16, 0.0),
        ("transformer", 3, FP32, 0.1),
        ("resnet", 8, FP32, 0.0),
        pytest.param("unet", 8, BF16, 0.0, marks=pytest.mark.long),
        pytest.param("resnet", 8, BF16, 0.0, marks=pytest.mark.long),
    ],
)
def test_a_peak_is_the_predicted_one(
    name: str, micro_batch: int, precision: Precision, dropout: float, recompute: bool
) -> None:
    model = built(name, **({"dropout": dropout} if dropout else {}))
    optimizer, batch = adamw(model.parameters()), KINDS[name].batch(8)
    plan = ModulePlan(8, micro_batch, precision, recomputable(model) if recompute else ())
    predicted = predicted_bytes(model, optimizer, batch, plan)
    assert predicted == pytest.approx(measured_bytes(model, optimizer, batch, plan), rel=0.01)


@pytest.mark.parametrize(
    "optimizers",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.AdamW(p, amsgrad=True, foreach=True),
        lambda p: torch.optim.Adam(p, fused=True),
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.Rprop,
        torch.optim.Adafactor,
    ],
)
def test_optimizers_and_their_state_are_counted(optimizers: Optimizers) -> None:
    """A wide layer and few samples: what lives is mostly theirs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    batch = (torch.randn(4, 64), torch.randint(10, (4,)))
    optimizer, plan = optimizers(model.parameters()), ModulePlan(4, 4, FP32)
    predicted = predicted_bytes(model, optimizer, batch, plan)
    assert predicted == pytest.approx(measured_bytes(model, optimizer, batch, plan), rel=0.02)
    again = predicted_bytes(model, optimizer, batch, plan)  # with state that is there
    assert again == pytest.approx(predicted, rel=0.001)


def test_on_cards_optimizers_work_on_lists() -> None:
    """As torch's do there by themselves: with temporaries as large as all parameters, which here are most of all."""
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    batch = (torch.randn(2, 256), torch.randint(10, (2,)))
    plan = ModulePlan(2, 2, FP32)
    optimizer = torch.optim.AdamW(model.parameters())
    predicted = Task(model, cross_entropy, batch, optimizer, (), CPU, as_card=True).run(plan).live_bytes
    on_lists = torch.optim.AdamW(model.parameters(), foreach=True)
    assert predicted == pytest.approx(measured_bytes(model, on_lists, batch, plan), rel=0.02)


def test_what_lies_on_a_card_already_is_counted_once() -> None:
    layer, rows = nn.Linear(4, 3), torch.zeros(10, 4)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(rows).sum().backward()
    optimizer.step()
    model = nn.ModuleList([layer, layer])  # the same storages again, and two views of one batch
    task = Task(model, cross_entropy, (rows[:5], rows[5:]), optimizer, (), CPU, as_card=True)
    counts = 2 * 4  # steps, one for each parameter
    assert _held_bytes(task, CPU) == 3 * (12 + 3) * 4 + counts + rows.nbytes
    assert _held_bytes(task, torch.device("meta")) == 0


def test_less_memory_gets_a_plan_that_takes_less() -> None:
    model = group_norm(built("unet"))
    optimizer, batch = adamw(model.parameters()), KINDS["unet"].batch(16)
    before = copy.deepcopy(model.state_dict()), torch.get_rng_state()

    def plan(room_bytes: float) -> frugan.ModuleReport:
        memory = (450 + 320) * 2**20 + int(room_bytes)
        return frugan.plan_module(model, cross_entropy, batch, optimizer, memory, card=None, precision="fp32")

    most = plan(2**30)
    assert (most.micro_batch, most.recompute, most.fits, most.extra_time) == (16, (), True, 0)

    def room(plan: ModulePlan) -> int:
        return most.search.taken(plan.micro_batch, plan.recompute).reserved_bytes

    smaller = most.smaller()
    assert smaller is not None
    assert room(smaller) <= 0.93 * room(most)
    assert isinstance(smaller, frugan.ModuleReport)
    outside = most.peak_bytes - room(most)  # what is told of it is its own, and not that of the plan before
    assert smaller.peak_bytes == outside + room(smaller) == sum(smaller.categories.values())
    assert smaller.extra_time > 0
    assert "memory ran out" in smaller.decisions[-1]
    assert plan(room(smaller)) == dataclasses.replace(plan(room(smaller)), micro_batch=smaller.micro_batch)
    none = plan(0.99 * room(most.search.plan(*most.search.least())))
    assert (none.fits, none.micro_batch) == (False, 1)
    assert "does not fit" in str(none)
    assert none.smaller() is None
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before[0].items())
    assert torch.equal(before[1], torch.get_rng_state())
    assert not optimizer.state


def test_batches_that_are_normalised_stay_whole() -> None:
    model = built("unet")
    optimizer, batch = adamw(model.parameters()), KINDS["unet"].batch(64)
    tight = frugan.plan_module(model, cross_entropy, batch, optimizer, "785MiB", precision="fp32")
    assert (tight.micro_batch, tight.recompute) == (64, recomputable(model))
    assert "would be normalised by itself" in str(tight)
    model.eval()
    assert frugan.plan_module(model, cross_entropy, batch, optimizer, "785MiB", precision="fp32").micro_batch < 64


def test_averages_are_counted_unless_they_are_on_the_host() -> None:
    model = built("transformer")
    optimizer, batch = adamw(model.parameters()), KINDS["transformer"].batch(8)
    hook = frugan.EmaHook(optimizer, model)
    away = frugan.EmaHook(optimizer, model, on_host=True)
    kept = frugan.plan_module(model, cross_entropy, batch, optimizer, "1GiB", ema=hook)
    without = frugan.plan_module(model, cross_entropy, batch, optimizer, "1GiB", ema=away)
    size = sum(p.nbytes for p in model.parameters())
    assert kept.categories["averages"] == pytest.approx(size, rel=0.2)
    assert "averages" not in without.categories


class Level(nn.Module):
    """A U-Net's level or a stage of Swin's: lists of blocks, and what halves the size."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(4, 4, 1) for _ in range(2))
        self.mixers = nn.ModuleList([Residual(4, 4, 1)])
        self.down = nn.ModuleList([nn.ModuleDict({"conv": nn.Conv2d(4, 4, 2, 2)})])


def test_blocks_are_found() -> None:
    assert recomputable(UNet()) == ("down.0", "down.1", "down.2", "up.0", "up.1")
    assert recomputable(ResNet()) == tuple(f"stages.{i}.{j}" for i in range(3) for j in range(2))
    assert recomputable(Transformer()) == tuple(f"encoder.layers.{i}" for i in range(3))
    assert recomputable(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == ()
    shared = Residual(4, 4, 1)
    assert recomputable(nn.ModuleDict({"a": nn.ModuleList([shared]), "b": nn.ModuleList([shared])})) == ("a.0",)
    levels = nn.ModuleDict({"levels": nn.ModuleList([Level(), Level()]), "middle": Level()})
    inside = ("blocks.0", "blocks.1", "mixers.0")
    assert recomputable(levels) == tuple(
        f"{level}.{block}" for level in ("levels.0", "levels.1", "middle") for block in inside
    )
    assert recomputable(nn.Sequential(double(3, 4), nn.ModuleList([double(4, 4)]))) == ("0", "1.0")


class Raw(nn.Module):
    """Multiplies by a buffer in fp32 what a layer has made."""

    matrix: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("matrix", torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) @ self.matrix
        return y


def test_a_module_that_does_not_run_in_half_precision_is_planned_by_autocasts_rules() -> None:
    model = Raw()
    optimizer, x = adamw(model.parameters()), torch.randn(4, 4)
    plan = frugan.plan_module(model, mean, x, optimizer, "1GiB")
    assert isinstance(plan.precision, Autocast)
    assert "bf16 by autocast's rules, it does not run in bf16 as a whole" in str(plan)
    cure = r'precision="autocast" and precision="fp32" do'
    with pytest.raises(BadInput, match=rf"Raw does not run in bf16: .*module_plans.py:\d+\); {cure}"):
        frugan.plan_module(model, mean, x, optimizer, "1GiB", precision="bf16")


def test_recurrent_layers_are_planned_by_autocasts_rules() -> None:
    model = nn.LSTM(4, 4, batch_first=True)
    optimizer, x = adamw(model.parameters()), torch.randn(4, 3, 4)
    plan = frugan.plan_module(model, lambda m, x: m(x)[0].mean(), x, optimizer, "1GiB")
    assert isinstance(plan.precision, Autocast)
    assert "recurrent layers keep their weights" in str(plan)
    assert "memory: LSTM keeps in its kernels what no plan sees: leave room" in str(plan)


@pytest.mark.parametrize(("kind", "more"), [(nn.LSTM, "1.5 to 2.5"), (nn.GRU, "up to 1.3"), (nn.RNN, "up to 1.3")])
def test_how_much_more_a_recurrent_layer_takes_is_said_by_its_kind(kind: Callable[..., nn.Module], more: str) -> None:
    """Torch has a kernel of its own for an LSTM on a CPU, which keeps several times what the others do."""
    model, x = nn.Sequential(nn.Linear(4, 4), kind(4, 4, batch_first=True)), torch.randn(4, 3, 4)
    plan = frugan.plan_module(model, lambda m, x: m(x)[0].mean(), x, adamw(model.parameters()))
    (line,) = [line for line in str(plan).splitlines() if line.startswith("- memory")]
    assert line.startswith("- memory: 1 keeps in its kernels what no plan sees: leave room")
    assert f"a step of little else takes {more} times its prediction on a CPU" in line


@pytest.mark.parametrize(("kind", "micro_batch"), [("unet", 8), ("transformer", 3)])
def test_the_peak_by_autocasts_rules_is_the_predicted_one(kind: str, micro_batch: int) -> None:
    model = group_norm(built(kind))
    optimizer, batch = adamw(model.parameters()), KINDS[kind].batch(8)
    for recompute in ((), recomputable(model)):
        plan = ModulePlan(8, micro_batch, Autocast("bf16", torch.bfloat16, "test"), recompute)
        predicted = predicted_bytes(model, optimizer, batch, plan)
        assert predicted == pytest.approx(measured_bytes(model, optimizer, batch, plan), rel=0.01)
