"""Parts of a set are drawn by name, class by class, and the same each time."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from frugan.contract.settings import DataSettings
from frugan.data.batches import Batches
from frugan.data.digits import digits_set
from frugan.data.formats.picture_set import PictureSet, relabelled
from frugan.data.parts import drawn, held_out, subset, trained_on
from frugan.errors import BadInput


def labels(*counts: int) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(counts)), counts)


def counted(of: NDArray[np.int64], at: NDArray[np.int64]) -> list[int]:
    return list(map(int, np.bincount(of[at], minlength=int(of.max()) + 1)))


@pytest.mark.parametrize(
    ("counts", "number", "evenly", "expected"),
    [
        ((50, 50, 50), 30, True, [10, 10, 10]),
        ((3, 100, 50), 23, True, [3, 10, 10]),  # a small class gives what it has
        ((50, 50, 50), 30, False, [10, 10, 10]),
        ((10, 100, 50), 16, False, [1, 10, 5]),
        ((7,), 7, True, [7]),
    ],
)
def test_how_many_of_each_class(counts: tuple[int, ...], number: int, evenly: bool, expected: list[int]) -> None:
    of = labels(*counts)
    assert counted(of, drawn(of, number, "a", evenly=evenly)) == expected


def test_what_does_not_go_evenly_differs_by_one() -> None:
    of = labels(20, 20, 20)
    assert sorted(counted(of, drawn(of, 11, "a", evenly=True))) == [3, 4, 4]


@pytest.mark.parametrize("evenly", [True, False])
def test_a_draw_is_repeated_by_its_name_and_holds_every_smaller_one(evenly: bool) -> None:
    of = labels(30, 11, 5)
    few, many, other = (drawn(of, number, stream, evenly=evenly) for number, stream in ((9, "a"), (25, "a"), (9, "b")))
    assert few.tolist() == sorted(set(few.tolist())) == drawn(of, 9, "a", evenly=evenly).tolist()
    assert set(few.tolist()) < set(many.tolist())
    assert few.tolist() != other.tolist()


def test_the_draw_stays_as_it_is() -> None:
    assert drawn(labels(6, 4), 5, "0/subset/images", evenly=True).tolist() == [3, 4, 5, 8, 9]


def test_training_sees_the_subset_alone() -> None:
    whole = digits_set(8)
    part = subset(whole, 40, "a", "images")
    assert part.members is not None
    batch = Batches(part, seed=0, name="images").take(0, 40)
    seen = {picture.tobytes() for picture in batch["pictures"].numpy()}
    assert seen == {picture.tobytes() for picture in whole.pictures[part.members]}
    assert np.bincount(batch["labels"].numpy()).tolist() == [4] * 10
    assert part.digest not in (whole.digest, subset(whole, 40, "b", "images").digest)
    assert part.grey == 40
    assert replace(part, grey=None).all_grey


def test_held_out_pictures_and_the_rest_are_the_whole() -> None:
    whole = digits_set(8)
    rest = held_out(whole, 0.1, "a", "images")
    test = rest.held_out
    assert test is not None
    assert rest.members is not None
    assert test.members is not None
    assert sorted([*rest.members, *test.members]) == list(range(len(whole)))
    assert len(test) == 180
    assert np.bincount(test.labels).min() >= 17
    assert len(subset(rest, 100, "a", "images").held_out or ()) == 180


def test_held_out_pictures_follow_labels_and_channels() -> None:
    rest = held_out(digits_set(8), 100, "a", "images")
    names = rest.class_names[::-1]
    turned = relabelled(rest, names, {name: name for name in names}).in_grey().held_out
    before = rest.held_out
    assert turned is not None
    assert before is not None
    assert turned.labels.tolist() == (9 - before.labels).tolist()
    assert turned[np.arange(2)].shape == (2, 1, 8, 8)


def test_without_classes_none_has_to_be_there() -> None:
    assert len(subset(digits_set(8), 3, "a", "images", classes=False)) == 3
    assert len(held_out(digits_set(8), 1790, "a", "images", classes=False)) == 7


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 200),
        ({"subset": 50}, 50),
        ({"holdout": 0.1}, 180),
        ({"holdout": 40, "subset": 190}, 160),
        ({"holdout": "x"}, 200),
    ],
)
def test_how_many_training_sees(settings: dict[str, object], expected: int) -> None:
    assert trained_on(200, DataSettings.model_validate(settings)) == expected


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda whole: subset(whole, 3, "a", "images x"), "images x has 10 classes.*choose at least 10"),
        (lambda whole: subset(whole, 2000, "a", "images x"), "images x has 1,797 pictures; choose at most 1797"),
        (
            lambda whole: subset(held_out(whole, 797, "a", "i"), 1001, "a", "i"),
            "1,000 pictures besides the 797 held out",
        ),
        (lambda whole: held_out(whole, 1797, "a", "i"), "leave none to train on"),
        (lambda whole: held_out(whole, 0.0001, "a", "i"), "less than one"),
        (lambda whole: held_out(whole, 1790, "a", "i"), "of class '.' leave none to train on"),
    ],
)
def test_what_cannot_be_divided(part: Callable[[PictureSet], PictureSet], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        part(digits_set(8))
