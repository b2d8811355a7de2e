"""From DeepFaceLab models to runs and back, for the tests of each direction."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from conversion.leras_models import model_of, write
from frugan.conversion.convert import from_leras, to_leras
from frugan.faces.saehd.leras_files import LerasModel, read_model
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from parity.saehd.golden import FOLDER

FACES = FOLDER / "faceset" / "aligned"
DATA = {"src": FACES, "dst": FACES}
CPU = TrainingOptions(device="cpu", workers=0)
EVERY_PHASE: dict[str, Any] = {"true_face_power": 0.01, "gan_power": 0.1}


def there(tmp_path: Path, model: LerasModel | None = None, *words: str) -> tuple[Path, str]:
    """A run made of a model, and what was said."""
    lines: list[str] = []
    if not (tmp_path / "model").exists():
        write(tmp_path / "model", model or model_of())
    from_leras(tmp_path / "model", tmp_path / "run", overrides=words, say=lines.append)
    return tmp_path / "run", "\n".join(lines)


def back(run: Path, folder: Path, **more: Any) -> tuple[LerasModel, str]:
    """The model made of a run, and what was said."""
    lines: list[str] = []
    made = to_leras(run, folder, say=lines.append, **more)
    return read_model(folder, made.name), "\n".join(lines)


def tensors(run: Path, file: str = "networks") -> dict[str, torch.Tensor]:
    return load_file(sorted((run / "checkpoints").iterdir())[-1] / f"{file}.safetensors")


SMALL = """
family = "saehd"
[networks]
archi = "df-ud"
resolution = 64
face_type = "f"
ae_dims = 16
e_dims = 4
d_dims = 4
d_mask_dims = 2
gan_dims = 4
[objective]
true_face_power = 0.01
gan_power = 0.1
eyes_mouth_prio = true
[training]
batch = 2
duration = "2 steps"
precision = "fp32"
[optimizers.default]
kind = "adabelief"
"""


def train_small(run: Path, steps: int) -> None:
    """Train a run as the original would, every phase on."""
    recipe = run.parent / "small.toml"
    recipe.write_text(SMALL, "utf-8")
    train(str(recipe), DATA, run, overrides=[f"training.duration={steps} steps"], options=CPU)
