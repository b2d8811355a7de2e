"""Plans for loops that frugan does not run: what they take there, and that they keep the result."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import frugan
from frugan.stepmemory.tracker import Tracker, tensors_of
from own_loop.own_models import KINDS, built, cross_entropy, group_norm

OUTSIDE = (450 + 320) * 2**20
"""Bytes that a card that is not named takes for CUDA's context and libraries."""


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """A large eps keeps rounding noise from becoming whole steps."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-2)


def run_by(plan: frugan.ModuleReport, model: nn.Module, optimizer: Any, batch: Any) -> float:
    """Run a step of the loop that the docs show."""
    total = 0.0
    for part, share in plan.parts(*batch):
        value = cross_entropy(model, *part) * share
        value.backward()
        total += float(value.detach())
    optimizer.step()
    optimizer.zero_grad()
    return total


def planned(name: str, share: float) -> tuple[nn.Module, Any, frugan.ModuleReport]:
    """Return a model, its batch and the plan of `fits` for a share of what the whole step reserves."""
    model = group_norm(built(name))
    batch = KINDS[name].batch(24)
    optimizer = adamw(model)
    most = frugan.fits(model, cross_entropy, batch, optimizer, "2GiB")
    room = int(share * (most.peak_bytes - OUTSIDE))
    return model, batch, frugan.fits(model, cross_entropy, batch, optimizer, OUTSIDE + room)


@pytest.mark.parametrize("name", ["unet", "transformer"])
@pytest.mark.parametrize("share", [0.8, 0.6])
def test_a_kept_loop_has_the_result_and_the_peak_of_its_plan(name: str, share: float) -> None:
    model, batch, plan = planned(name, share)
    assert plan.fits
    assert plan.micro_batch < 24 or plan.recompute
    assert plan.micro_batch * plan.accumulation == 24
    whole = copy.deepcopy(model)
    whole_optimizer, optimizer = adamw(whole), adamw(model)
    plan.apply_recompute(model)
    plan.apply_recompute(model)  # twice is once
    for _ in range(2):
        loss = cross_entropy(whole, *batch)
        loss.backward()
        whole_optimizer.step()
        whole_optimizer.zero_grad()
        assert run_by(plan, model, optimizer, batch) == pytest.approx(float(loss.detach()), rel=1e-5)
    for parameter, expected in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)
    held: Any = {
        "parameters": [*model.parameters(), *model.buffers()],
        "optimizer": tensors_of(list(optimizer.state.values())),
        "batch": tensors_of(batch),
    }
    with Tracker(held) as tracker:
        run_by(plan, model, optimizer, batch)
    predicted = frugan.fits(model, cross_entropy, batch, optimizer, micro_batch=plan.micro_batch).of(
        plan.micro_batch, plan.recompute
    )
    assert predicted.peak_bytes == pytest.approx(tracker.peak_bytes, rel=0.01)


def test_wrapped_blocks_survive_a_copy_and_save_the_same_weights() -> None:
    model, batch, plan = planned("unet", 0.6)
    names = [*model.state_dict()]
    before = copy.deepcopy(model)
    plan = plan.of(plan.micro_batch, plan.search.blocks)
    plan.apply_recompute(model)
    twin = copy.deepcopy(model)
    assert [*twin.state_dict()] == names
    for network in (before, twin):
        cross_entropy(network, *batch).backward()
    gradients = zip(before.parameters(), twin.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in gradients if a.grad is not None and b.grad is not None)
    assert all(p.grad is None for p in model.parameters())


def test_the_words_of_other_loops() -> None:
    model, batch, plan = planned("transformer", 0.6)
    assert plan.trainer_arguments() == {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": 24 // plan.micro_batch,
        "fp16": False,
        "bf16": False,
    }
    assert plan.accelerator_arguments() == {
        "gradient_accumulation_steps": 24 // plan.micro_batch,
        "mixed_precision": "no",
    }
    assert plan.fabric_arguments() == {"precision": "32-true"}
    half = frugan.plan_module(model, cross_entropy, batch, adamw(model), "2GiB", precision="bf16")
    with pytest.raises(frugan.BadInput, match=r"frugan\.fits plans for other loops"):
        half.trainer_arguments()


def test_a_micro_batch_by_hand() -> None:
    model, batch = group_norm(built("transformer")), KINDS["transformer"].batch(12)
    plan = frugan.plan_module(model, cross_entropy, batch, adamw(model), micro_batch=5)
    assert (plan.micro_batch, plan.accumulation) == (5, 3)
    with pytest.raises(frugan.BadInput, match="micro_batch 13: expected 1 to 12, the batch"):
        frugan.plan_module(model, cross_entropy, batch, adamw(model), micro_batch=13)
    with pytest.raises(frugan.BadInput, match="micro_batch 5: parts of equal size of a batch of 12"):
        frugan.fits(model, cross_entropy, batch, adamw(model), micro_batch=5)
    normalised, pictures = built("resnet"), KINDS["resnet"].batch(8)
    with pytest.raises(frugan.BadInput, match="micro_batch 4: batch normalisation would normalise each part by itself"):
        frugan.plan_module(normalised, cross_entropy, pictures, adamw(normalised), micro_batch=4)
