"""Loops of one's own on a card: memory runs out at every allocation in turn, and peaks are the predicted ones."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frugan
from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.precision import Precision
from frugan.errors import TrainingFailed
from frugan.stepmemory.cards import free_bytes
from frugan.stepmemory.measurement import STEPS
from frugan.training.own_loop.module_step import ModulePlan
from own_loop.own_models import KINDS, built, cross_entropy, double, group_norm

Cards = Callable[..., Any]
CARD = torch.device("privateuseone", 0)  # torch's name of the first simulated card until it is registered
FP32 = Precision("fp32", torch.float32, "test")
BUDGET = "1GiB"


def optimizer_of(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    """With lists of tensors, as torch works by itself on cards, or fused."""
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-2, fused=kind == "fused")


def cases() -> list[Any]:
    short = {("transformer", "fused", "fp32")}
    return [
        pytest.param(*case, id="-".join(case), marks=[] if case in short else pytest.mark.long)
        for case in ((n, o, p) for n in KINDS for o in ("sgd", "adamw", "fused") for p in ("fp32", "bf16"))
    ]


@pytest.mark.parametrize(("name", "kind", "precision"), cases())
def test_a_peak_is_the_predicted_one(name: str, kind: str, precision: Any, cards: Cards) -> None:
    memory = cards().memory[0]
    model = built(name).to(CARD)
    optimizer, batch = optimizer_of(kind, model), KINDS[name].batch(8)
    report = frugan.plan_module(model, cross_entropy, batch, optimizer, memory=BUDGET, precision=precision)
    for recompute in ((), report.search.blocks):
        plan = report.search.plan(8, recompute)
        step = frugan.ModuleStep(model, cross_entropy, optimizer, plan)
        step(*batch)  # which makes the optimizer's state
        gc.collect()
        memory.settle()
        memory.give_back()
        memory.reset_peaks()
        for _ in range(STEPS):
            step(*batch)
        memory.settle()
        taken = report.search.taken(8, recompute)
        assert memory.allocator.peak_taken_bytes == pytest.approx(taken.live_bytes, rel=0.01)
        assert memory.allocator.peak_reserved_bytes <= 1.01 * taken.reserved_bytes


class Smaller(ModulePlan):
    """A plan after which comes one with half of the micro-batch."""

    def smaller(self) -> ModulePlan | None:
        """As `ModulePlan`."""
        return Smaller(self.batch, max(1, self.micro_batch // 2), self.precision, self.recompute)


def small() -> nn.Module:
    """A block that is recomputed, and a layer."""
    torch.manual_seed(0)
    block = group_norm(double(3, 4))
    return nn.Sequential(block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)).to(CARD)


@pytest.mark.parametrize(
    ("kind", "every"),
    [("fused", 13), *(pytest.param(kind, 1, marks=pytest.mark.long) for kind in ("fused", "sgd", "adamw"))],
)
def test_a_step_that_runs_out_of_memory_anywhere_ends_as_one_that_does_not(kind: str, every: int, cards: Cards) -> None:
    """Its first step, in which the optimizer makes its state; or it says that it cannot."""
    memory = cards().memory[0]
    batch = KINDS["resnet"].batch(4)

    def stepped(refused: int | None) -> tuple[dict[str, Tensor], bool, bool]:
        model = small()
        optimizer = optimizer_of(kind, model)
        hook = frugan.EmaHook(optimizer, model, frugan.EmaSettings(decay=0.5))
        step = frugan.ModuleStep(model, cross_entropy, optimizer, Smaller(4, 4, FP32, ("0",)), clip_norm=0.1)
        number = memory.allocations + (refused or 0)
        memory.refused = range(number, number + 1) if refused else range(0)
        told = False
        try:
            assert not step(*batch).skipped
        except TrainingFailed as error:
            assert "midst of the optimizer's step" in str(error)  # noqa: PT017  (it depends on the place)
            told = True
        came_to_it = memory.allocations >= number
        memory.refused = range(0)
        assert all(p.grad is None for p in model.parameters())
        assert told or step.plan.micro_batch == (2 if refused and came_to_it else 4)
        accelerator_of(CARD).synchronize()
        averages = {f"average {name}": value for name, value in hook.networks["network"].state_dict().items()}
        return {name: value.cpu() for name, value in {**model.state_dict(), **averages}.items()}, told, came_to_it

    wanted, _, _ = stepped(None)
    refused, repeated, midst, came_to_it = 1 - every, 0, 0, True
    while came_to_it:
        refused += every
        got, told, came_to_it = stepped(refused)
        repeated, midst = repeated + (not told), midst + told
        for name, value in ({} if told else wanted).items():
            torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-6, msg=f"allocation {refused}: {name}")
    assert repeated > 3 * midst


@pytest.mark.usefixtures("a_cards_bits")
def test_averages_away_from_the_card_are_those_beside_it(cards: Cards) -> None:
    cards()
    model = group_norm(built("unet", width=4)).to(CARD)
    optimizer = optimizer_of("fused", model)
    settings = frugan.EmaSettings(decay=0.5)
    hooks = [frugan.EmaHook(optimizer, model, settings, on_host=on_host) for on_host in (False, True)]
    step = frugan.ModuleStep(model, cross_entropy, optimizer, ModulePlan(4, 4, FP32))
    for _ in range(2):
        step(*KINDS["unet"].batch(4))
    accelerator_of(CARD).synchronize()
    beside, away = (hook.networks["network"].state_dict() for hook in hooks)
    assert {value.device.type for value in away.values()} == {"cpu"}
    assert all(torch.equal(value.cpu(), away[name]) for name, value in beside.items())


def test_what_lies_on_the_card_already_is_room_for_the_step(cards: Cards) -> None:
    cards()
    model = built("transformer").to(CARD)
    optimizer, batch = optimizer_of("adamw", model), KINDS["transformer"].batch(8)
    report = frugan.plan_module(model, cross_entropy, batch, optimizer)
    assert report.search.card is not None
    assert report.budget_bytes is not None
    free = free_bytes(CARD)[0] + report.search.card.context_bytes
    held = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    assert report.budget_bytes - free == pytest.approx(held, rel=0.01)
