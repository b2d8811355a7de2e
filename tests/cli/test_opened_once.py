"""A command verifies the checkpoint that it opens, and does so once."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.calling import Frugan
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its pictures and its recipe."""
    folder = tmp_path_factory.mktemp("opened")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRUGAN_BASE", str(folder / "base"))
        pictures = write_pictures(folder / "pictures", each=12)
        recipe = write_recipe(folder, RECIPE.replace("discriminator_attention = [16]", "discriminator_attention = []"))
        train(recipe, pictures, folder / "run", options=TrainingOptions(device="cpu"), say=lambda _: None)
    return folder


def commands(made: Path, out: Path) -> dict[str, list[str]]:
    run, data, of_digits = str(made / "run"), ["--data", str(made / "pictures")], ["--network", "digits"]
    return {
        "sample": ["sample", run, "--out", str(out), "--classes", "hell"],
        "sample --npz": ["sample", run, "--out", str(out), "--npz", "2", "--classes", "hell"],
        "sample --animate": ["sample", run, "--out", str(out), "--animate", "a.gif", "--frames", "2", "--rows", "1"],
        "sample --nearest": ["sample", run, "--out", str(out), "--nearest", "1", "--rows", "1", *data],
        "evaluate": ["evaluate", run, *data, *of_digits, "--samples", "10", "--classes", "hell", "--no-ema"],
        "train --init": ["train", str(made / "tiny.toml"), *data, "--out", str(out / "second"), "--init", run],
        "convert": ["convert", run, str(out / "there"), "--to", "biggan-pytorch"],
    }


@pytest.mark.parametrize("name", sorted(commands(Path(), Path())))
def test_every_file_is_hashed_once(
    name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frugan: Frugan
) -> None:
    checkpoint = sorted((made / "run" / "checkpoints").iterdir())[-1]
    hashed: Counter[str] = Counter()
    digest: Callable[..., Any] = hashlib.file_digest

    def counting(file: Any, kind: str) -> Any:
        path = Path(file.name)
        if made / "run" in path.parents:
            hashed[path.relative_to(checkpoint).as_posix()] += 1
        return digest(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    result = frugan(*commands(made, tmp_path)[name])
    assert result.returncode == 0, result.stderr
    expected = dict.fromkeys(json.loads((checkpoint / "MANIFEST.json").read_text("utf-8")), 1)
    if name != "convert":
        del expected["optimizers.safetensors"]  # which only training and other programs need
    assert hashed == expected
