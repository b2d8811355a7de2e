"""Tiny trainings of the face model, and what is in their checkpoints."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conversion.leras_models import NARROW
from frugan.faces.saehd.family import SAEHDFamily
from frugan.training.run import TrainingOptions, TrainingResult
from frugan.training.training import train

FACES = Path(__file__).parents[1] / "golden" / "saehd" / "faceset" / "aligned"
DATA = {"src": FACES, "dst": FACES}
CPU = TrainingOptions(device="cpu", workers=0)
SMALL = (
    "networks.face_type=f",
    *(f"networks.{name}={NARROW[name]}" for name in ("ae_dims", "e_dims", "d_dims", "d_mask_dims", "gan_dims")),
    "training.precision=fp32",
    "training.batch=2",
    "saving.snapshot_every=100 steps",
)


@pytest.fixture
def no_previews(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of what a tiny training takes; tests that look at them say `previews`."""
    if "previews" not in request.fixturenames:
        monkeypatch.setattr(SAEHDFamily, "snapshots", lambda *_: {})


@pytest.fixture
def previews() -> None:
    """Let runs draw previews."""


def train_faces(run: Path, *overrides: str, steps: int, **more: object) -> tuple[TrainingResult, str]:
    lines: list[str] = []
    words = [*SMALL, f"training.duration={steps} steps", *overrides]
    result = train("saehd-demo-64", DATA, run, overrides=words, options=CPU, say=lines.append, **more)  # type: ignore[arg-type]
    return result, "\n".join(lines)


def tensors_of(run: Path, file: str = "networks") -> dict[str, torch.Tensor]:
    return load_file(sorted((run / "checkpoints").iterdir())[-1] / f"{file}.safetensors")


def of_network(tensors: dict[str, torch.Tensor], network: str) -> list[torch.Tensor]:
    values = [value for key, value in tensors.items() if f"{network}." in key]
    assert values
    return values


def same_tensors(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
