"""Words of `frugan sample` that move StyleGAN3's pictures."""

from pathlib import Path

import pytest
from PIL import Image

from cli.calling import Frugan
from frugan.cli.options import parse_translation
from frugan.errors import BadInput
from sampling.generators import write_moving


def test_translations() -> None:
    assert parse_translation("0.3,-0.1") == (0.3, -0.1)
    assert parse_translation("-1") == (-1.0, 0.0)
    with pytest.raises(BadInput, match="--translate left: expected shares of the picture to the right and down"):
        parse_translation("left")


def test_pictures_are_moved_and_say_so(frugan: Frugan, tmp_path: Path) -> None:
    weights = write_moving(tmp_path / "moving.safetensors")
    words = ["sample", str(weights), "--seeds", "3", "--device", "cpu"]
    still = frugan(*words, "--out", str(tmp_path / "still"))
    assert still.returncode == 0, still.stderr
    moved = frugan(*words, "--out", str(tmp_path / "moved"), "--translate", "0.25,-0.125", "--rotate=-20")
    assert moved.returncode == 0, moved.stderr
    pictures = [Image.open(tmp_path / name / "seed0003.png") for name in ("still", "moved")]
    assert pictures[0].tobytes() != pictures[1].tobytes()
    assert "--translate 0.25,-0.125 --rotate=-20" in pictures[1].info["Command"]
