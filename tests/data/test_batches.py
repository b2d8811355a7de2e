"""Batches depend on position alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from frugan.data.batches import Batches
from frugan.data.formats.picture_set import PictureSet, open_prepared
from frugan.data.prepare import prepare
from frugan.errors import BadInput

MakeSet = Callable[..., PictureSet]


def numbered(number: int) -> PictureSet:
    """Return a set whose picture i is [[i, 255 - i]]."""
    pictures = np.empty((number, 3, 1, 2), np.uint8)
    pictures[..., 0] = np.arange(number, dtype=np.uint8).reshape(-1, 1, 1)
    pictures[..., 1] = 255 - pictures[..., 0]
    return PictureSet(pictures, np.arange(number, dtype=np.int64) * 7, ("x",), True, "")


@settings(max_examples=60)
@given(
    number=st.integers(1, 23),
    seed=st.integers(0, 2**40),
    flip=st.booleans(),
    start=st.integers(0, 100),
    cuts=st.lists(st.integers(0, 40), min_size=1, max_size=8),
)
def test_any_cutting_gives_the_same_stream(number: int, seed: int, flip: bool, start: int, cuts: list[int]) -> None:
    whole = Batches(numbered(number), seed=seed, name="images", flip=flip).take(start, sum(cuts))
    position, parts = start, []
    for count in cuts:
        parts.append(Batches(numbered(number), seed=seed, name="images", flip=flip).take(position, count))
        position += count
    for key in ("pictures", "labels"):
        torch.testing.assert_close(torch.cat([part[key] for part in parts]), whole[key], rtol=0, atol=0)


@settings(max_examples=60)
@given(number=st.integers(1, 50), seed=st.integers(0, 2**40), epoch=st.integers(0, 10**6))
def test_each_epoch_is_a_permutation(number: int, seed: int, epoch: int) -> None:
    labels = Batches(numbered(number), seed=seed, name="images").take(epoch * number, number)["labels"]
    assert sorted(labels.tolist()) == [7 * index for index in range(number)]


def test_types_and_pairs_of_pictures_and_labels() -> None:
    batch = Batches(numbered(20), seed=0, name="images").take(5, 33)
    assert (batch["pictures"].dtype, batch["pictures"].shape) == (torch.uint8, (33, 3, 1, 2))
    assert (batch["labels"].dtype, batch["labels"].shape) == (torch.int64, (33,))
    torch.testing.assert_close(batch["pictures"][:, 0, 0, 0].long() * 7, batch["labels"])


def test_the_order_is_pinned() -> None:
    """A resumed run sees the order that it began with, whatever numpy and frugan it resumes under."""
    batches = Batches(numbered(10), seed=1, name="images", flip=True)
    indices, mirrored = batches.places(7, 8)
    assert indices.tolist() == [1, 9, 2, 3, 4, 0, 2, 9]
    assert mirrored.astype(int).tolist() == [0, 0, 0, 1, 1, 1, 0, 1]


def test_seed_name_and_epoch_change_the_order() -> None:
    def order(seed: int, name: str, epoch: int = 0) -> list[int]:
        return Batches(numbered(50), seed=seed, name=name).take(50 * epoch, 50)["labels"].tolist()

    orders = [order(0, "images"), order(1, "images"), order(0, "src"), order(0, "images", 1)]
    assert len({tuple(numbers) for numbers in orders}) == 4
    assert order(0, "images") == orders[0]


def test_flips_mirror_about_half_anew_each_epoch() -> None:
    picture_set = numbered(100)
    batches = Batches(picture_set, seed=0, name="images", flip=True)
    plain = Batches(picture_set, seed=0, name="images")
    seen = []
    for epoch in range(2):
        flipped, straight = batches.take(100 * epoch, 100), plain.take(100 * epoch, 100)
        torch.testing.assert_close(flipped["labels"], straight["labels"])
        mirrored = (flipped["pictures"] != straight["pictures"]).flatten(1).any(1)
        expected = torch.where(mirrored[:, None, None, None], straight["pictures"].flip(3), straight["pictures"])
        torch.testing.assert_close(flipped["pictures"], expected)
        assert 30 < int(mirrored.sum()) < 70
        seen.append(mirrored[torch.argsort(straight["labels"])].tolist())
    assert seen[0] != seen[1]


def test_batches_of_a_memory_map_leave_it_alone(
    folder: Callable[..., Path], picture: Callable[..., Image.Image], tmp_path: Path
) -> None:
    path = prepare(folder({f"{i}.png": picture(i) for i in range(9)}), tmp_path / "out", resolution=16).path
    picture_set = open_prepared(path)
    batch = Batches(picture_set, seed=3, name="images", flip=True).take(0, 9)
    batch["pictures"].zero_()
    open_prepared(path, verify=True)
    assert int(picture_set.pictures.sum()) > 0


def test_far_positions_need_no_past() -> None:
    assert len(Batches(numbered(3), seed=0, name="images").take(10**12, 7)["labels"]) == 7


def test_wrong_requests(picture_set: MakeSet) -> None:
    batches = Batches(picture_set(3), seed=0, name="images")
    for request in [(-1, 2), (0, -2)]:
        with pytest.raises(ValueError, match="expected both at least 0"):
            batches.take(*request)
    with pytest.raises(BadInput, match="'images' holds no pictures"):
        Batches(picture_set(0), seed=0, name="images")
