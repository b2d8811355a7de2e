"""Plans in the words of transformers, accelerate and Lightning's Fabric: their loops give what the plain one does.

Run where those packages are: pip install transformers accelerate lightning-fabric.
"""

import copy
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import frugan
from frugan.training.own_loop.half_precision import Autocast
from own_loop.own_models import KINDS, built

BATCH, PARTS, STEPS = 24, 3, 2


class Model(nn.Module):
    """Named inputs in, a dict with the loss out, as transformers' Trainer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = built("transformer")

    def forward(self, words: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.inside(words).flatten(0, 1), labels.flatten())}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    result: Tensor = model(**batch)["loss"]
    return result


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture(params=["fp32", "autocast"])
def planned(request: pytest.FixtureRequest) -> tuple[nn.Module, dict[str, Tensor], frugan.ModuleReport]:
    """A model, a batch and its plan in three parts, one block of which is recomputed."""
    model, (words, labels) = Model(), KINDS["transformer"].batch(BATCH)
    batch = {"words": words, "labels": labels}
    plan = frugan.fits(model, loss, batch, sgd(model), precision=request.param, micro_batch=BATCH // PARTS)
    plan = plan.of(BATCH // PARTS, plan.search.blocks[:1])
    return model, batch, plan


def plain_loop(model: nn.Module, batch: dict[str, Tensor], plan: frugan.ModuleReport) -> nn.Module:
    twin = copy.deepcopy(model)
    optimizer = sgd(twin)
    for _ in range(STEPS):
        for part in parts(batch, plan.micro_batch):
            with torch.autocast("cpu", torch.bfloat16, enabled=isinstance(plan.precision, Autocast)):
                value = loss(twin, part) / PARTS
            value.backward()
        optimizer.step()
        optimizer.zero_grad()
    return twin


def parts(batch: dict[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    chunks = {name: tensor.split(size) for name, tensor in batch.items()}
    return [{name: chunks[name][i] for name in batch} for i in range(PARTS)]


def assert_same(model: nn.Module, expected: nn.Module) -> None:
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-4, atol=1e-6)


def in_a_process(train: Callable[[], None]) -> None:
    """Call it in one of its own: accelerate knows a single precision in each, also for transformers."""
    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()
    assert process.exitcode == 0


Planned = tuple[nn.Module, dict[str, Tensor], frugan.ModuleReport]


def test_transformers_trainer(planned: Planned, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    model, batch, plan = planned
    expected = plain_loop(model, batch, plan)
    plan.apply_recompute(model)
    samples = [{name: tensor[i] for name, tensor in batch.items()} for i in range(BATCH)] * STEPS

    class InOrder(transformers.Trainer):  # type: ignore[name-defined]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(samples)

    def train() -> None:
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            **plan.trainer_arguments(),
            **{"max_steps": STEPS, "max_grad_norm": 0.0, "use_cpu": True, "report_to": [], "save_strategy": "no"},
            **{"disable_tqdm": True, "remove_unused_columns": False},
        )
        constant = torch.optim.lr_scheduler.ConstantLR
        optimizer = sgd(model)
        InOrder(model, arguments, train_dataset=samples, optimizers=(optimizer, constant(optimizer, 1.0))).train()
        assert_same(model, expected)

    in_a_process(train)


def test_accelerate(planned: Planned) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, batch, plan = planned
    expected = plain_loop(model, batch, plan)
    plan.apply_recompute(model)

    def train() -> None:
        accelerator = accelerate.Accelerator(cpu=True, **plan.accelerator_arguments())
        prepared, optimizer = accelerator.prepare(model, sgd(model))
        for _ in range(STEPS):
            for part in parts(batch, plan.micro_batch):
                with accelerator.accumulate(prepared):
                    accelerator.backward(loss(prepared, part))
                    optimizer.step()
                    optimizer.zero_grad()
        assert_same(model, expected)

    in_a_process(train)


def test_accelerate_with_padded_labels() -> None:
    accelerate = pytest.importorskip("accelerate")
    model, (words, labels) = Model(), KINDS["transformer"].batch(BATCH)
    batch = {"words": words, "labels": labels.clone()}
    for row, of_row in enumerate(batch["labels"]):
        of_row[: row % len(of_row)] = -100
    plan = frugan.fits(
        model, loss, batch, sgd(model), micro_batch=BATCH // PARTS, weight=lambda batch: (batch["labels"] != -100).sum()
    )
    expected = copy.deepcopy(model)
    optimizer = sgd(expected)
    for _ in range(STEPS):  # whole batches
        loss(expected, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    def train() -> None:
        accelerator = accelerate.Accelerator(cpu=True, **plan.accelerator_arguments())
        prepared, optimizer = accelerator.prepare(model, sgd(model))
        for _ in range(STEPS):
            for part, share in plan.parts(batch):
                with accelerator.accumulate(prepared):
                    accelerator.backward(loss(prepared, *part) * share * plan.accumulation)
                    optimizer.step()
                    optimizer.zero_grad()
        assert_same(model, expected)

    in_a_process(train)


def test_lightning_fabric(planned: Planned) -> None:
    lightning_fabric = pytest.importorskip("lightning_fabric")
    model, batch, plan = planned
    expected = plain_loop(model, batch, plan)
    plan.apply_recompute(model)
    fabric = lightning_fabric.Fabric(accelerator="cpu", devices=1, **plan.fabric_arguments())
    prepared, optimizer = fabric.setup(model, sgd(model))
    for _ in range(STEPS):
        for part, share in plan.parts(batch):
            fabric.backward(loss(prepared, *part) * share)
        optimizer.step()
        optimizer.zero_grad()
    assert_same(model, expected)


def test_the_first_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    page = (Path(__file__).parents[2] / "docs" / "your-own-loop.md").read_text("utf-8")
    exec(page.split("```py\n")[1].split("```")[0], {})
    shown = page.split("```\nBert")[1].splitlines()
    printed = capsys.readouterr().out
    assert printed.startswith("Bert" + shown[0])
    assert shown[1] in printed
    assert shown[3] in printed
