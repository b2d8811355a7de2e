"""What benchmarks/enlarged_weights.py takes over from a smaller network, and what it asks of it."""

import importlib
from pathlib import Path
from typing import Any

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


@pytest.fixture
def small() -> Any:
    return build("biggan-small-64", (*WORDS, "training.seed=7"))


@pytest.fixture
def large() -> Any:
    return build("biggan-small-128", WORDS)


def test_what_is_taken_over(program: Any, small: Any, large: Any) -> None:
    """All but the new block and what follows it; of maps of longer chunks the first columns."""
    new = program.take_over(large["G"], small["G"])
    assert {".".join(name.split(".")[:2]) for name in new} == {"blocks.4", "output_layer.0", "output_layer.2"}
    for name in ("linear.weight", "blocks.1.0.bn2.gain.weight"):
        ours, theirs = large["G"].state_dict()[name], small["G"].state_dict()[name]
        assert ours.shape[1] < theirs.shape[1]
        assert torch.equal(ours, theirs[:, : ours.shape[1]])
    assert torch.equal(large["G"].shared.weight, small["G"].shared.weight)


def test_the_same_latents(program: Any, small: Any, large: Any) -> None:
    """Each chunk begins the smaller generator's chunk of the same place; what that has more is 0."""
    enlarging = program.Enlarging(large["G"], small["G"])
    z, y = enlarging.latents_and_classes()
    slots, theirs, ours = 5, small["G"].chunk, large["G"].chunk
    filled = torch.zeros(len(z), slots * theirs)
    for slot in range(slots):
        filled[:, slot * theirs : slot * theirs + ours] = z[:, slot * ours : (slot + 1) * ours]
    with torch.no_grad():
        made = small["G"](filled, small["G"].embed(y))
    enlarged = enlarging.enlarged(z, y)
    assert enlarged.shape == (len(z), 3, 128, 128)
    torch.testing.assert_close(enlarged, F.interpolate(made, scale_factor=2, mode="bilinear"))
