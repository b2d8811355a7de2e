"""Parts of a set are drawn by name, class by class, and the same each time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from frugan.contract.settings import DataSettings
from frugan.data.batches import Batches
from frugan.data.digits import digits_set
from frugan.data.formats.picture_set import PictureSet, relabelled
from frugan.data.formats.set_file import Blocks
from frugan.data.parts import Drawing, drawn, held_out, held_out_by_place, pixel_digests, subset, trained_on
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


def drawing(pictures: PictureSet, tmp_path: Path, below: float | None = None) -> Drawing:
    return Drawing("a", pixel_digests(pictures, tmp_path, None), below)


def shown(pictures: PictureSet | None) -> set[bytes]:
    assert pictures is not None
    return {picture.tobytes() for picture in pictures[np.arange(len(pictures))]}


def test_held_out_pictures_and_the_rest_are_the_whole(tmp_path: Path) -> None:
    whole = digits_set(8)
    rest = held_out(whole, 0.1, drawing(whole, tmp_path), "images")
    test = rest.held_out
    assert test is not None
    assert rest.members is not None
    assert test.members is not None
    assert sorted([*rest.members, *test.members]) == list(range(len(whole)))
    assert 150 < len(test) < 210
    assert len(held_out(whole, 180, drawing(whole, tmp_path), "images").held_out or ()) == 180
    assert len(subset(rest, 100, "a", "images").held_out or ()) == len(test)


def test_equal_pictures_are_on_one_side(tmp_path: Path) -> None:
    """Copies in other classes and under other names too: a test picture that was trained on is none."""
    some = digits_set(8).pictures[:40]
    whole = PictureSet.from_arrays(np.concatenate([some, some, some]), np.repeat([0, 1, 2], 40), ("a", "b", "c"))
    for part in (0.3, 36):
        rest = held_out(whole, part, drawing(whole, tmp_path), "images")
        assert not shown(rest) & shown(rest.held_out)
        assert len(rest.held_out or ()) % 3 == 0


@pytest.mark.parametrize("part", [0.2, 60])
def test_pictures_that_are_added_leave_the_others_where_they_are(tmp_path: Path, part: float) -> None:
    pictures = digits_set(8).pictures
    before, after = PictureSet.from_arrays(pictures[100:400]), PictureSet.from_arrays(pictures[:600])
    rest = held_out(before, part, drawing(before, tmp_path), "images")
    assert rest.held_out_below is not None
    more = held_out(after, part, drawing(after, tmp_path, rest.held_out_below), "images")
    assert shown(rest) < shown(more)
    assert shown(rest.held_out) < shown(more.held_out)
    if isinstance(part, float):  # for a run that begins with them too
        assert more.held_out_below == held_out(after, part, drawing(after, tmp_path), "images").held_out_below


def test_test_pictures_are_the_same_while_others_come(tmp_path: Path) -> None:
    pictures = digits_set(8).pictures
    before = PictureSet.from_arrays(pictures[:50])
    rest = held_out(before, 10, drawing(before, tmp_path), "images")
    assert rest.held_out is not None
    for extra in pictures[50:60]:
        after = PictureSet.from_arrays(np.concatenate([extra[None], pictures[:50]]))
        more = held_out(after, 10, drawing(after, tmp_path, rest.held_out_below), "images")
        assert more.held_out is not None
        assert (more.held_out.digest == rest.held_out.digest) == (len(more.held_out) == 10)


def test_a_class_keeps_a_picture_to_train_on(tmp_path: Path) -> None:
    pictures = digits_set(8).pictures[:120]
    whole = PictureSet.from_arrays(pictures, np.repeat(np.arange(60), 2))
    rest = held_out(whole, 0.8, drawing(whole, tmp_path), "images")
    assert not rest.empty_classes
    assert len(held_out(whole, 0.8, drawing(whole, tmp_path), "images", classes=False).empty_classes) > 10


def test_digests_are_kept_and_not_of_what_cannot_be_read(tmp_path: Path) -> None:
    whole = digits_set(8)
    asked: list[int] = []
    first = pixel_digests(whole, tmp_path / "kept", lambda done, _: asked.append(done))
    again = pixel_digests(whole, tmp_path / "kept", lambda done, _: asked.append(-done))
    assert (asked[-1], first.tolist()) == (1797, again.tolist())
    (file,) = (tmp_path / "kept").iterdir()
    file.write_bytes(file.read_bytes()[:-4])
    assert pixel_digests(whole, tmp_path / "kept", None).tolist() == first.tolist()

    def refuse(block: int) -> None:
        raise BadInput(f"block {block}")

    blocks = Blocks(whole.pictures, ["0" * 16], refuse)
    damaged = pixel_digests(replace(whole, digest="another", blocks=blocks), tmp_path / "kept", None)
    assert not damaged.any()
    assert len([*(tmp_path / "kept").iterdir()]) == 1


def test_held_out_pictures_follow_labels_and_channels(tmp_path: Path) -> None:
    whole = digits_set(8)
    rest = held_out(whole, 100, drawing(whole, tmp_path), "images")
    names = rest.class_names[::-1]
    turned = relabelled(rest, names, {name: name for name in names}).in_grey().held_out
    before = rest.held_out
    assert turned is not None
    assert before is not None
    assert turned.labels.tolist() == (9 - before.labels).tolist()
    assert turned[np.arange(2)].shape == (2, 1, 8, 8)


def test_without_classes_none_has_to_be_there(tmp_path: Path) -> None:
    whole = digits_set(8)
    assert len(subset(whole, 3, "a", "images", classes=False)) == 3
    assert len(held_out(whole, 1790, drawing(whole, tmp_path), "images", classes=False)) == 7
    assert len(held_out_by_place(whole, 1790, "a", "images", classes=False)) == 7


def test_runs_from_before_keep_the_test_pictures_that_they_have(tmp_path: Path) -> None:
    rest = held_out_by_place(digits_set(8), 0.1, "0/holdout/images", "images")
    assert rest.held_out is not None
    assert rest.held_out.members is not None
    assert rest.held_out_below is None
    assert rest.held_out.members[:6].tolist() == [0, 10, 18, 32, 45, 50]
    assert np.bincount(rest.held_out.labels).min() >= 17


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
        (lambda whole, to: subset(whole, 3, "a", "images x"), "images x has 10 classes.*choose at least 10"),
        (lambda whole, to: subset(whole, 2000, "a", "images x"), "images x has 1,797 pictures; choose at most 1797"),
        (
            lambda whole, to: subset(held_out(whole, 797, drawing(whole, to), "i"), 1001, "a", "i"),
            "1,000 pictures besides the 797 held out",
        ),
        (lambda whole, to: held_out(whole, 1797, drawing(whole, to), "i"), "leave none to train on"),
        (lambda whole, to: held_out(whole, 0.0001, drawing(whole, to), "i"), "less than one"),
        (lambda whole, to: held_out(whole, 0.5, drawing(whole, to, 0.0), "i"), "none is drawn so; hold out more"),
        (lambda whole, to: held_out(whole, 5, drawing(whole, to, 1.0), "i", classes=False), "all are drawn so"),
        (lambda whole, to: held_out_by_place(whole, 1790, "a", "i"), "of class '.' leave none to train on"),
    ],
)
def test_what_cannot_be_divided(part: Callable[[PictureSet, Path], PictureSet], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        part(digits_set(8), tmp_path)
