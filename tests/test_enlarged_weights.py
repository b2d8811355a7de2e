"""What benchmarks/enlarged_weights.py takes over from a smaller discriminator, and what it teaches."""

import importlib
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

from frugan.setup.networks import build

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
WORDS = ("networks.classes=3", "networks.generator_channels=2", "networks.discriminator_channels=2")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("enlarged_weights")


def test_a_larger_discriminator_learns_what_a_smaller_one_sees(program: Any) -> None:
    """All but the last block is taken over, and then pictures are told apart as the smaller one tells them halved."""
    small, large = (cast(Any, build(f"biggan-small-{side}", WORDS)["D"]) for side in (64, 128))
    new = program.take_over(large, small)
    assert {name.split(".")[1] for name in new} == {"5"}
    assert torch.equal(large.blocks[4][0].conv1.weight, small.blocks[4][0].conv1.weight)

    torch.manual_seed(0)
    pictures = F.interpolate(torch.rand(40, 3, 4, 4), size=128).mul(2).sub(1)

    def off() -> float:
        with torch.no_grad():
            seen = [network(x, torch.zeros(40, dtype=torch.int64)) for network, x in judged]
        got, wanted = (outputs - outputs.mean() for outputs in seen)
        return float((got - wanted).square().mean() / wanted.square().mean())

    judged = ((large, pictures), (small, F.avg_pool2d(pictures, 2)))
    before = off()
    program.teach(large, small, pictures, 60)
    assert off() < 0.5 * before
