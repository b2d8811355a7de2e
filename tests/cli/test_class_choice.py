"""Classes asked for by number or by name."""

from pathlib import Path

import pytest
import torch

from frugan.cli.evaluate import EvaluateOptions
from frugan.cli.options import ClassChoice
from frugan.engine.run.tensor_files import write_tensors
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import Weights, weights_metadata


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
        ("all", (0, 1, 2, 3)),
    ],
)
def test_numbers_and_names(tmp_path: Path, text: str, chosen: tuple[int, ...]) -> None:
    names = ("cat", "Dog", "T-shirt", "left, right")
    assert ClassChoice.parse(text).among(Weights.open(weights(tmp_path, names)).class_names, 4) == chosen


def test_a_number_that_is_another_class_name_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("1", "2", "3")
    assert ClassChoice.parse("1").among(names, 3) == (1,)
    assert "class 1: number 1, which is called '2'; the one called '1' is number 0" in capsys.readouterr().err
    assert ClassChoice.parse("0-2").among(names, 3) == (0, 1, 2)
    assert capsys.readouterr().err == ""


def test_a_class_that_is_called_all_is_that_class(capsys: pytest.CaptureFixture[str]) -> None:
    assert ClassChoice.parse("all").among(("none", "all"), 2) == (1,)
    assert "class all: the one that is called so; 0-1 are all of them" in capsys.readouterr().err
    assert ClassChoice.parse("all").among((), 3) == (0, 1, 2)


@pytest.mark.parametrize(
    ("names", "text", "message"),
    [
        (("cat", "Dog"), "dog", "did you mean 'Dog'"),
        (("flowers", "plants", "rocks", "vehicles"), "cats", "the classes are flowers, plants, rocks, vehicles; or"),
        (("cat", "Dog"), "horse", "the classes are cat, Dog; or give numbers"),
        (tuple(f"name {i}" for i in range(20)), "zzz", "and 8 more"),
        ((), "teapots", "^--classes teapots: this run has no classes; leave --classes out$"),
        (("cat",), "", "no class is called ''"),
        (("1", "10"), "10", "^--classes 10: expected 0 to 1; .* 2 classes; the class called '10' is number 1$"),
        (("1", "10"), "0-99", "^--classes 0-99: expected 0 to 1; this network has 2 classes$"),
        (("cat",), "3-1", "expected numbers and ranges"),
        (("cat",), "123456789", "no network has so many classes"),
    ],
)
def test_unknown_classes(names: tuple[str, ...], text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ClassChoice.parse(text).among(names, max(1, len(names)))


def test_names_of_classes_that_nobody_has_named() -> None:
    with pytest.raises(BadInput, match=r"'cat': these weights keep no class names; expected numbers and ranges"):
        ClassChoice.parse("cat").among((), 3)


@pytest.mark.parametrize(
    ("text", "classes"), [("all", tuple(range(10))), ("0-9", tuple(range(10))), ("0-8", tuple(range(9)))]
)
def test_scores_of_all_classes_are_scores_without_a_choice(
    tmp_path: Path, text: str, classes: tuple[int, ...] | None
) -> None:
    opened = Weights.open(weights(tmp_path, tuple("0123456789")))
    asked = EvaluateOptions(source=opened.path)
    assert asked.evaluation(opened, ClassChoice.parse(text)).draw.classes == classes
