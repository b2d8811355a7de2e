"""Scores of a training on a simulated card: its network of features is there while it is used, and else on the host."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evaluation.scored import EVALUATED, OPTIONS
from frugan.engine.run.events import read_events
from frugan.engine.step.step import Step
from frugan.progress import quiet
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe

Cards = Callable[..., Any]


class Weighty(nn.Module):
    """Means of quarters, by a network that takes far more room than the training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64 * 2**18), requires_grad=False)  # 64 MiB
        self.seen: list[str] = []

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.append(self.weight.device.type)
        values = pictures.float() / 255 * self.weight[0]
        return nn.functional.adaptive_avg_pool2d(values, 2).flatten(1), values.mean((2, 3))


NETWORK = Weighty()


def test_a_network_of_features_is_on_the_card_while_it_is_used_alone(
    cards: Cards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = cards().memory[0]
    monkeypatch.setenv("FRUGAN_BASE", str(tmp_path / "base"))
    between: list[int] = []

    def run(step: Step, *args: Any, **options: Any) -> Any:
        between.append(memory.settle().live_bytes)
        return step_run(step, *args, **options)

    step_run = Step.run
    monkeypatch.setattr(Step, "run", run)
    recipe = write_recipe(tmp_path, RECIPE + EVALUATED.replace(OPTIONS.network, f"{__name__}:NETWORK"))
    options = TrainingOptions(device="simcard:0")
    assert train(recipe, write_pictures(tmp_path / "pictures"), tmp_path / "run", options=options, say=quiet).finished
    scored = [event for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "metrics"]
    assert [event["step"] for event in scored] == [2, 4]
    assert set(NETWORK.seen) == {"simcard"}
    assert NETWORK.weight.device.type == "cpu"
    assert sum(live > 0 for live in between) == 4  # the others were run to make a plan
    assert max(between) < NETWORK.weight.nbytes
