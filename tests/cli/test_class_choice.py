"""Classes asked for by number or by name."""

from pathlib import Path

import pytest
import torch

from frugan.api.weights import weights_metadata
from frugan.cli.class_choice import choose_classes
from frugan.engine.tensor_files import write_tensors
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe


def weights(folder: Path, names: tuple[str, ...]) -> Path:
    """A weights file whose classes have names."""
    file = folder / "weights.safetensors"
    write_tensors(file, {"G.x": torch.zeros(1)}, weights_metadata(load_recipe("biggan-digits-32"), names))
    return file


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("0,2-3", (0, 2, 3)),
        ("Dog", (1,)),
        ("Dog, 0 ,1", (1, 0, 1)),
        ("T-shirt,Dog", (2, 1)),
        ("left, right", (3,)),
    ],
)
def test_numbers_and_names(tmp_path: Path, text: str, chosen: tuple[int, ...]) -> None:
    names = ("cat", "Dog", "T-shirt", "left, right")
    assert choose_classes(text, weights(tmp_path, names)) == chosen


def test_a_number_that_is_another_class_name_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = weights(tmp_path, ("1", "2", "3"))
    assert choose_classes("1", file) == (1,)
    assert "class 1: number 1, which is called '2'; the one called '1' is number 0" in capsys.readouterr().err
    assert choose_classes("0-2", file) == (0, 1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("names", "text", "message"),
    [
        (("cat", "Dog"), "dog", "did you mean 'Dog'"),
        (("cat", "Dog"), "horse", "the classes are cat, Dog; or give numbers"),
        (tuple(f"name {i}" for i in range(20)), "zzz", "and 8 more"),
        ((), "cat", "keep no class names; expected numbers"),
        (("cat",), "", "no class is called ''"),
        (("cat",), "3-1", "expected numbers and ranges"),
        (("cat",), "123456789", "no network has so many classes"),
    ],
)
def test_unknown_classes(tmp_path: Path, names: tuple[str, ...], text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        choose_classes(text, weights(tmp_path, names))
