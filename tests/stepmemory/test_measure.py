"""`frugan.stepmemory.measure` says what a step of any code takes, as its README shows."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from frugan import stepmemory
from frugan.stepmemory import Dataless, measure
from frugan.stepmemory.tracker import Category

MIB = 2**20


def step_of(model: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_the_example_of_its_readme() -> None:
    text = Path(stepmemory.__file__).with_name("README.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    memory = names["memory"]
    weights = sum(p.nbytes for p in names["model"].parameters())
    # weights, momentum and gradients: what a step of this optimizer cannot do without
    assert 3 * weights < memory.peak.size_bytes <= memory.needed_on_card_bytes
    assert memory.peak.categories["parameters"] >= weights
    assert memory.work.macs >= 3 * 32 * 64 * 62 * 62 * 10


def test_a_step_without_data_takes_what_a_real_one_does() -> None:
    taken = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
            inputs = torch.ones(64, 256)
        held: dict[Category, list[torch.Tensor]] = {"parameters": [*model.parameters()], "batch": [inputs]}
        memory = measure(step_of(model, inputs), held, dataless=Dataless() if device == "meta" else None)
        taken.append((memory.peak, memory.work, memory.needed_on_card_bytes))
    assert taken[0] == taken[1]
    assert taken[0][0].size_bytes > 2 * 2 * 256 * 1024 * 4  # weights and gradients


def test_a_step_that_looks_at_a_value_is_refused() -> None:
    with torch.device("meta"):
        model, inputs = nn.Linear(4, 4), torch.ones(2, 4)
    with pytest.raises(RuntimeError):
        measure(lambda: bool(model(inputs).sum() > 0), dataless=Dataless())
