"""A run to be scored, with its pictures, and a feature network that costs nothing."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from frugan.evaluation.scorer import EvaluationOptions
from frugan.metrics.provenance import Provenance
from frugan.progress import quiet
from frugan.sampling.generation import generating
from frugan.sampling.generators import Opened, open_networks
from frugan.sampling.requests import DrawRequest
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")
OPTIONS = EvaluationOptions(samples=70, network=f"{__name__}:colours", device="cpu")
EVALUATED = f"""
[evaluation]
every = "2 steps"
metrics = ["fid", "is"]
samples = 20
network = "{__name__}:colours"
keep_best = 1
"""


def colours(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """A feature network: means of quarters, and as class scores those of channels."""
    values = pictures.float() / 255
    quarters = torch.nn.functional.adaptive_avg_pool2d(values, 2).flatten(1)  # [N, 12]
    return quarters, values.mean((2, 3)) * 10


def no_scores(pictures: Tensor) -> Tensor:
    return colours(pictures)[0]


def other_colours(pictures: Tensor) -> Tensor:
    return 1 - colours(pictures)[0]


@pytest.fixture(scope="session")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, and its pictures."""
    made = tmp_path_factory.mktemp("scored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRUGAN_BASE", str(made / "base"))
        pictures = write_pictures(made / "pictures", each=30)
        train(write_recipe(made), pictures, made / "run", options=CPU, say=quiet)
    return made


@pytest.fixture
def opened(scored: Path) -> Opened:
    return open_networks(scored / "run", "cpu", quiet)


def drawn(opened: Opened, request: DrawRequest, first: int = 0, count: int = 40) -> tuple[Tensor, Tensor]:
    with generating(opened.recipe, opened.networks, opened.layout, request) as generator:
        parts = list(generator.draw(first, count))
    return torch.cat([p for p, _ in parts]), torch.cat([y for _, y in parts])


def low(scores: Mapping[str, float], provenance: Provenance) -> str | None:
    """In place of `low_recall`: whatever the scores are."""
    return f"words at {provenance.truncation:g}"
