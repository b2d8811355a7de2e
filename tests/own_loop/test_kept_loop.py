"""Plans for loops that frugan does not run: what they take there, and that they keep the result."""

import copy
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import frugan
from frugan.errors import BadInput
from frugan.stepmemory.measurement import Measurement
from frugan.stepmemory.tracker import Tracker, tensors_of
from frugan.training.own_loop import dataless_step
from frugan.training.own_loop.plan_search import boundary
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


def layers(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Layers for which autocast has the same rules on a processor as on a card."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6))).to(dtype)


def squares(model: nn.Module, x: Tensor) -> Tensor:
    """Of results that are fp32 again."""
    results: Tensor = model(x)
    return results.float().square().mean()


@pytest.mark.parametrize("recomputed", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("precision", ["fp32", "autocast"])
def test_a_kept_loop_in_half_precision_has_the_peak_of_its_plan(
    precision: Any, dtype: torch.dtype, recomputed: int
) -> None:
    """By torch's own autocast, which casts weights anew in each forward, and with weights that are in half already."""
    model, x = layers(dtype), torch.randn(48, 64, dtype=dtype)
    optimizer = adamw(model)
    plan = frugan.fits(model, squares, x, optimizer, precision=precision, micro_batch=24)
    plan = plan.of(24, plan.search.blocks[:recomputed])
    plan.apply_recompute(model)

    def step() -> None:
        for part, share in plan.parts(x):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
                value = squares(model, *part)
            (value * share).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    held: Any = {
        **{"parameters": [*model.parameters()], "batch": [x]},
        "optimizer": tensors_of(list(optimizer.state.values())),
    }
    with Tracker(held) as tracker:
        step()
    assert plan.peak_bytes == pytest.approx(tracker.peak_bytes, rel=0.005)
    in_half = precision == "autocast" or dtype == torch.bfloat16
    assert plan.as_json()["precision"] == ("bf16" if in_half else "fp32")


def test_parts_of_a_plan_without_data_need_a_device() -> None:
    blank, x = nn.Linear(4, 1, device="meta"), torch.ones(6, 4)
    plan = frugan.fits(blank, lambda m, x: m(x).mean(), x, adamw(blank), micro_batch=3)
    with pytest.raises(frugan.BadInput, match="the Linear that was planned has no data: name a device"):
        plan.parts(x)
    assert [(part[0].tolist(), share) for part, share in plan.parts(x, device="cpu")] == [([[1.0] * 4] * 3, 0.5)] * 2


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
    by_autocast = {
        "gtx-1080": ("fp16", "16-mixed", (True, False)),
        "rtx-3060": ("bf16", "bf16-mixed", (False, True)),
    }
    for card, (name, in_fabric, in_trainer) in by_autocast.items():
        plan = frugan.fits(model, cross_entropy, batch, adamw(model), card=card, precision="autocast")
        assert plan.accelerator_arguments()["mixed_precision"] == name
        assert plan.fabric_arguments()["precision"] == in_fabric
        assert (plan.trainer_arguments()["fp16"], plan.trainer_arguments()["bf16"]) == in_trainer
    with pytest.raises(frugan.BadInput, match='precision \'bf16\': expected "fp32" or "autocast", which any loop has'):
        frugan.fits(model, cross_entropy, batch, adamw(model), precision="bf16")  # type: ignore[arg-type]
    half = frugan.plan_module(model, cross_entropy, batch, adamw(model), "2GiB", precision="bf16")
    with pytest.raises(frugan.BadInput, match=r"frugan\.fits plans for other loops"):
        half.trainer_arguments()


class Classifier(nn.Module):
    """Takes any keyword, as models of transformers do, and divides its loss by what Trainer gives it, or does not."""

    def __init__(self, *, divides: bool) -> None:
        super().__init__()
        self.head, self.divides = nn.Linear(6, 2), divides

    def forward(self, x: Tensor, labels: Tensor, **given: Any) -> dict[str, Tensor]:
        logits, number = self.head(x), given.get("num_items_in_batch", len(labels))
        total = F.cross_entropy(logits, labels, reduction="sum")
        return {"loss": total / (number if self.divides else len(labels)), "logits": logits}


@pytest.mark.parametrize(
    ("divides", "says_no", "micro_batch", "warns"),
    [(False, False, 4, True), (True, False, 4, False), (False, True, 4, False), (False, False, 12, False)],
)
def test_a_loss_that_trainer_would_add_up_whole_is_said(
    *, divides: bool, says_no: bool, micro_batch: int, warns: bool
) -> None:
    """Trainer divides the parts' losses unless the model seems to: by then its gradients are three times too large."""
    model, batch = Classifier(divides=divides), {"x": torch.randn(12, 6), "labels": torch.randint(2, (12,))}
    if says_no:
        model.accepts_loss_kwargs = False  # type: ignore[assignment]
    plan = frugan.fits(model, lambda m, b: m(**b)["loss"], batch, adamw(model), micro_batch=micro_batch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        arguments = plan.trainer_arguments()
    assert arguments["gradient_accumulation_steps"] == 12 // micro_batch
    said = [str(warning.message) for warning in caught]
    assert len(said) == warns
    if warns:
        assert "3 times too large: set trainer.model_accepts_loss_kwargs=False" in said[0]


def test_losses_that_a_kept_loop_cannot_split_are_not_split() -> None:
    """A loop of torch's own would take parts of a contrastive loss for the whole, or multiply a pair by a share."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 8))
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(1024, 256)
    contrastive = frugan.BatchLoss(lambda m, x: m(x), lambda a: F.cross_entropy(a @ a.T, torch.arange(len(a))))
    with pytest.raises(BadInput, match=r"micro_batch 16: a BatchLoss compares all 1024 samples"):
        frugan.fits(model, contrastive, x, optimizer, micro_batch=16)
    plan = frugan.fits(model, contrastive, x, optimizer, "785MiB")
    assert (plan.micro_batch, plan.fits) == (1024, False)
    assert plan.decisions[0].startswith("split: none, as a BatchLoss")
    split = frugan.plan_module(model, contrastive, x, optimizer, "785MiB", precision="fp32", equal_parts=True)
    assert split.accumulation > 1
    with pytest.raises(BadInput, match="as ModuleStep alone does"):
        split.trainer_arguments()
    for returned in (lambda y: (y.sum(), y.numel()), lambda y: {"loss": (y.sum(), y.numel())}):
        with pytest.raises(BadInput, match="the loss gives a tuple, and a loop of your own"):
            frugan.fits(model, lambda m, x, of=returned: of(m(x)), x, optimizer)


def test_a_micro_batch_by_hand() -> None:
    model, batch = group_norm(built("transformer")), KINDS["transformer"].batch(12)
    plan = frugan.plan_module(model, cross_entropy, batch, adamw(model), micro_batch=5)
    assert (plan.micro_batch, plan.accumulation) == (5, 3)
    assert plan.extra_time > 0  # beyond the whole batch, which was not planned
    with pytest.raises(frugan.BadInput, match="micro_batch 13: expected 1 to 12, the batch"):
        frugan.plan_module(model, cross_entropy, batch, adamw(model), micro_batch=13)
    with pytest.raises(frugan.BadInput, match="micro_batch 5: expected a divisor of the batch, 12"):
        frugan.fits(model, cross_entropy, batch, adamw(model), micro_batch=5)
    normalised, pictures = built("resnet"), KINDS["resnet"].batch(8)
    with pytest.raises(frugan.BadInput, match="micro_batch 4: batch normalisation would normalise each part by itself"):
        frugan.plan_module(normalised, cross_entropy, pictures, adamw(normalised), micro_batch=4)


@pytest.mark.parametrize("limit", [0, 1, 49, 50, 74, 99])
@pytest.mark.parametrize("power", [1, 2, 0.5])
def test_the_largest_number_within_a_limit(power: float, limit: int) -> None:
    asked = set()

    def reserved(number: int) -> int:
        asked.add(number)
        return int(100 * (number / 100) ** power)

    expected = max(number for number in range(100) if reserved(number) <= limit)
    asked.clear()
    assert boundary(reserved, 0, 100, limit) == expected
    assert len(asked) < 18


def deep_transformer() -> tuple[nn.Module, Any]:
    model = built("transformer", width=64, depth=8)
    return model, KINDS["transformer"].batch(24)


def test_as_few_blocks_are_recomputed_as_need_be() -> None:
    """Where a batch may not be split, or time is won."""
    model, batch = deep_transformer()
    optimizer = adamw(model)

    def plan(memory: int) -> frugan.ModuleReport:
        return frugan.plan_module(
            model, cross_entropy, batch, optimizer, memory, precision="fp32", normalisation_batch=24
        )

    most = plan(2**31)
    everything = most.of(24, most.search.blocks)
    before = most
    for share in (0.9, 0.6, 0.3, 0.0):
        room = int(everything.peak_bytes + share * (most.peak_bytes - everything.peak_bytes))
        some = plan(room)
        assert some.fits
        assert some.peak_bytes <= room
        assert some.recompute == most.search.blocks[: len(some.recompute)]
        assert len(some.recompute) >= len(before.recompute)
        assert some.extra_time >= before.extra_time
        fewer = some.of(24, some.recompute[:-1])
        assert fewer.peak_bytes > room
        before = some
    assert 0 < len(plan(most.peak_bytes - 2**20).recompute) < 8


@pytest.mark.long
def test_a_plan_says_what_would_do_without_it() -> None:
    model, batch = deep_transformer()
    most = frugan.fits(model, cross_entropy, batch, adamw(model), "2GiB")
    assert not any("would fit" in line or "buys" in line for line in most.decisions)
    room = OUTSIDE + (most.peak_bytes - OUTSIDE) * 2 // 3
    half = frugan.fits(model, cross_entropy, batch, adamw(model), room)
    advice = {line.partition(":")[0]: line for line in half.decisions}
    fitting = int(advice["batch"].split()[1])
    assert f"batch: {fitting} samples would fit in one forward" in advice["batch"]
    smaller, larger = ([tensor[:n] for tensor in batch] for n in (fitting, fitting + 1))
    assert frugan.fits(model, cross_entropy, smaller, adamw(model), room).micro_batch == fitting
    more = frugan.fits(model, cross_entropy, larger, adamw(model), room)
    assert more.recompute or more.micro_batch < fitting + 1
    bought = re.findall(r"([\d.]+[MG]iB) buys", advice["memory"])
    plans = [frugan.fits(model, cross_entropy, batch, adamw(model), budget) for budget in bought]
    assert all(plan.fits and plan.extra_time < half.extra_time for plan in plans)
    assert plans[-1].micro_batch == 24


def test_a_fused_optimizer_that_would_fit_is_named() -> None:
    """On cards AdamW works on lists, and takes a copy of all weights."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(6)))
    x = torch.ones(4, 1024)
    size = sum(parameter.nbytes for parameter in model.parameters())

    def plan(**options: Any) -> frugan.ModuleReport:
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        return frugan.fits(model, lambda m, x: m(x).mean(), x, optimizer, OUTSIDE + int(4.5 * size))

    assert not plan().fits
    assert any(line.startswith("optimizer: AdamW(fused=True) would fit") for line in plan().decisions)
    assert plan(fused=True).fits


def test_compiled_modules_are_planned_as_written_and_named() -> None:
    def plan(model: nn.Module) -> frugan.ModuleReport:
        return frugan.fits(model, lambda m, x: m(x).mean(), torch.ones(8, 16), adamw(model), micro_batch=4)

    def layers() -> nn.Sequential:
        return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3)))

    written, compiled = layers(), layers()
    compiled[0].compile()
    compiled[1] = torch.compile(compiled[1])  # type: ignore[assignment]
    expected, found = plan(written), plan(compiled)
    assert found.peak_bytes == expected.peak_bytes
    assert any(line.startswith("compiled: 0, 1; planned as written") for line in found.decisions)


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", init_method=(tmp_path / "group").as_uri(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_a_process_of_several_takes_its_buckets_beside_the_plan() -> None:
    model, batch = group_norm(built("unet")), KINDS["unet"].batch(4)
    optimizer = adamw(model)
    alone = frugan.fits(model, cross_entropy, batch, optimizer)
    parallel = DistributedDataParallel(model)
    plan = frugan.fits(parallel, cross_entropy, batch, optimizer)
    size = sum(parameter.nbytes for parameter in model.parameters())
    assert plan.peak_bytes - alone.peak_bytes == pytest.approx(size, abs=512)
    held: Any = {"parameters": [*model.parameters(), *model.buffers()], "batch": tensors_of(batch)}

    def step() -> None:
        cross_entropy(parallel, *batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()  # buckets are laid out anew after the first
    held["optimizer"] = tensors_of(list(optimizer.state.values()))
    with Tracker(held) as tracker:
        step()
    assert plan.peak_bytes == pytest.approx(tracker.peak_bytes, rel=0.01)
    assert any(line.startswith("DistributedDataParallel: the plan of one process") for line in plan.decisions)


@pytest.mark.usefixtures("one_process")
def test_a_sharded_model_is_refused_in_words() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = adamw(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(frugan.BadInput, match="is sharded over processes by FSDP: plan it before it is"):
        frugan.fits(model, lambda m, x: m(x).mean(), torch.ones(4, 4), optimizer)


def test_a_plan_lays_weights_out_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an allocator reserves depends on it: a plan that is made twice would not give the same bytes."""
    seen: list[list[torch.Size]] = []

    class Noting(Measurement):
        def __init__(self, held: Any, **options: Any) -> None:
            seen.append([tensor.shape for tensor in held["parameters"]])
            super().__init__(held, **options)

    monkeypatch.setattr(dataless_step, "Measurement", Noting)
    model = nn.Sequential(*(nn.Linear(size, size + 1) for size in range(1, 20)))
    frugan.fits(model, lambda m, x: m(x).mean(), torch.ones(2, 1), adamw(model))
    assert seen == [[parameter.shape for parameter in model.parameters()]] * len(seen)
