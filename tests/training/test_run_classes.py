"""A label means to the end of a run what it meant at its beginning."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frugan.contract.data import LabelDigests, RunData
from frugan.data.formats.picture_set import PictureSet
from frugan.data.run_data import as_in_run, other_classes, other_pictures, parse_class_map, read_run_data
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import Weights, build, save
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")
CLASSES = 3
KNOWN = RunData("last", "first", ("cat", "dog", "fox"))


def pictures(*names: str, labelled: bool = True) -> PictureSet:
    labels = np.arange(len(names))
    return PictureSet(np.zeros((len(names), 3, 2, 2), np.uint8), labels, names, labelled, "now")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("cat", "fox", "hound"), r"in the run: cat, dog, fox\n  now: cat, fox, hound\n.*--map-class dog=hound"),
        (("cat", "dog"), "missing: fox\nput the pictures of fox back"),
        (("cat", "dog", "fox", "owl"), r"new: owl\ntake owl away.*--map-class CLASS=owl"),
        (("dog", "cat", "fox"), "another order: label 0 was cat, and would be dog\nuse --map-class by-name"),
        (("ape", "bat", "fox"), r"missing: cat, dog; new: ape, bat\n.*--map-class OLD=NEW"),
    ],
)
def test_other_classes_are_refused_with_the_names_before_and_after(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadInput, match=f"(?s){message}"):
        as_in_run("images x", pictures(*names), CLASSES, KNOWN, None)


def test_unlabelled_pictures_for_a_run_with_classes_and_the_other_way_round() -> None:
    with pytest.raises(BadInput, match=r"one class .*the run has 3 classes \(cat, dog, fox\)"):
        as_in_run("images x", pictures("pictures", labelled=False), CLASSES, KNOWN, None)
    with pytest.raises(BadInput, match=r"2 classes \(cat, dog\), and the run was begun without classes"):
        as_in_run("images x", pictures("cat", "dog"), 1, RunData("last", "first"), None)


def test_maps() -> None:
    def labels(names: tuple[str, ...], given: dict[str, str] | None, known: RunData = KNOWN) -> list[int]:
        mapped = as_in_run("images x", pictures(*names), CLASSES, known, given)
        assert mapped.class_names == KNOWN.class_names
        return [int(label) for label in mapped.labels]

    assert labels(("cat", "dog", "fox"), None) == [0, 1, 2]
    assert labels(("cat", "fox", "hound"), {"hound": "dog"}) == [0, 2, 1]
    assert labels(("fox", "cat", "dog"), {}) == [2, 0, 1]
    assert labels(("cat", "dog", "fox"), {"cat": "dog", "dog": "cat"}) == [1, 0, 2]
    assert labels(("cat", "dog", "fox", "vixen"), {"vixen": "fox"}) == [0, 1, 2, 2]
    kept = RunData("last", "first", KNOWN.class_names, {"hound": "dog"})
    assert labels(("cat", "fox", "hound"), None, kept) == [0, 2, 1]
    assert labels(("cat", "dog", "fox"), None, kept) == [0, 1, 2]  # the old name is back
    with pytest.raises(BadInput, match="missing: dog; new: hound"):
        labels(("cat", "fox", "hound"), {})  # what is given takes the place of what was kept
    with pytest.raises(BadInput, match="the run has no class owl; it has cat, dog, fox"):
        labels(("cat", "fox", "hound"), {"hound": "owl"})
    with pytest.raises(BadInput, match="has no class hund; it has cat, fox, hound"):
        labels(("cat", "fox", "hound"), {"hund": "dog"})


def test_words_of_the_option() -> None:
    assert parse_class_map([]) is None
    assert parse_class_map(["by-name"]) == {}
    assert parse_class_map(["dog=hound", "dog=terrier", "cat=kater"]) == {
        "hound": "dog",
        "terrier": "dog",
        "kater": "cat",
    }
    for words in (["dog"], ["=dog"], ["dog="]):
        with pytest.raises(BadInput, match="expected OLD=NEW"):
            parse_class_map(words)
    with pytest.raises(BadInput, match="hound is mapped to dog already"):
        parse_class_map(["dog=hound", "cat=hound"])


def test_what_older_checkpoints_hold() -> None:
    assert read_run_data({"data": {"images": "abc"}}) == {"images": RunData("abc", "abc")}
    assert read_run_data({}) == {}
    kept = RunData("a", "b", ("c",), {"d": "c"})
    assert read_run_data(json.loads(json.dumps({"data": {"images": kept.as_json()}}))) == {"images": kept}


def saved_data(run: Path) -> dict[str, Any]:
    newest = sorted((run / "checkpoints").iterdir())[-1]
    return dict(json.loads((newest / "state.json").read_text("utf-8"))["data"]["images"])


def test_a_run_keeps_its_classes_and_the_first_digest(tmp_path: Path, said: list[str]) -> None:
    recipe, source, run = write_recipe(tmp_path), write_pictures(tmp_path / "pictures"), tmp_path / "run"

    def go(steps: int, **options: Any) -> None:
        said.clear()
        words = [f"training.duration={steps} steps"]
        train(recipe, source, run, options=CPU, overrides=words, say=said.append, **options)

    go(1)
    first = saved_data(run)
    assert first["class_names"] == ["dunkel ü", "hell"]
    assert first["digest"] == first["first_digest"]
    assert Weights.open(run).class_names == ("dunkel ü", "hell")
    (source / "hell").rename(source / "a light one")
    with pytest.raises(BadInput, match="missing: hell; new: a light one"):
        go(2)
    go(2, map_classes={"a light one": "hell"})
    second = saved_data(run)
    assert second["class_names"] == ["dunkel ü", "hell"]
    assert second["first_digest"] == first["digest"] != second["digest"]
    assert any("goes on with the new ones" in line for line in said)
    go(3)  # the mapping is kept
    assert "classes: a light one of the pictures is hell in the run (--map-class)" in said
    assert any("those of last time" in line for line in said)


def test_pictures_are_compared_with_the_first_and_the_last() -> None:
    known = RunData("last", "first")
    assert "the new ones" in (other_pictures("images", known, Opened("other")) or "")
    assert "those of last time" in (other_pictures("images", known, Opened("last")) or "")
    assert "again those that the run was begun with" in (other_pictures("images", known, Opened("first")) or "")
    assert other_pictures("images", RunData("first", "first"), Opened("first")) is None


@dataclass(frozen=True)
class Opened:
    digest: str
    label_digests: LabelDigests | None = None

    def __len__(self) -> int:
        return 3


def test_new_labels_of_the_same_faces_are_counted() -> None:
    known = RunData("last", "first", labels=LabelDigests("faces", ("1", "2", "3")), first_without_labels="faces")
    kept = read_run_data(json.loads(json.dumps({"data": {"src": known.as_json()}})))
    assert kept == {"src": known}
    two_new = Opened("other", LabelDigests("faces", ("1", "5", "6")))
    line = "data src: 2 of 3 faces have new masks or labels; the faces are those of last time"
    assert other_pictures("src", known, two_new) == line
    again = other_pictures("src", known, Opened("last", known.labels))
    assert again == "data src: the faces that the run was begun with, with the masks and labels of last time"
    others = Opened("other", LabelDigests("other faces", ("1", "5", "6")))
    assert "it goes on with the new ones" in (other_pictures("src", known, others) or "")


def test_weights_files_name_their_classes(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path))
    networks = build(write_recipe(tmp_path))
    save(networks, recipe, tmp_path / "w.safetensors", ("größe", "x"))
    assert Weights.open(tmp_path / "w.safetensors").class_names == ("größe", "x")
    save(networks, recipe, tmp_path / "w.safetensors")
    assert Weights.open(tmp_path / "w.safetensors").class_names == ()


@pytest.mark.long
def test_init_from_other_classes_is_said(tmp_path: Path, said: list[str]) -> None:
    recipe, source = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    words = ["training.duration=1 step"]
    train(recipe, source, tmp_path / "first", options=CPU, overrides=words)
    (source / "hell").rename(source / "licht")
    train(recipe, source, tmp_path / "b", options=CPU, overrides=words, init=tmp_path / "first", say=said.append)
    assert any("its classes are dunkel ü, hell; this run's are dunkel ü, licht" in line for line in said)


def test_pictures_of_other_classes_than_the_runs_are_told_of() -> None:
    run = ("cat", "dog", "fox")
    assert other_classes(run, pictures(*run)) is None
    assert other_classes((), pictures("ape", "bat")) is None
    assert other_classes(run, pictures("pictures", labelled=False)) is None
    other = other_classes(run, pictures("cat", "dog", "hen"))
    assert other is not None
    assert other.startswith(
        "the classes of the pictures (cat, dog, hen) are not those that the run was trained on (cat,"
    )
    turned = other_classes(run, pictures("cat", "fox", "dog"))
    assert turned is not None
    assert "in another order (label 1 is dog in the run and fox in the pictures)" in turned
