"""Grey pictures: found, counted, and made of coloured ones."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frugan.data.batches import Batches
from frugan.data.digits import digits_set
from frugan.data.formats.decoding import is_grey, luma
from frugan.data.formats.picture_set import PictureSet, open_prepared, picture_digest
from frugan.data.prepare import prepare

MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]
MakePicture = Callable[..., Image.Image]


@pytest.fixture
def mixed(picture: MakePicture) -> dict[str, Image.Image | bytes]:
    """Files of one picture in colour, and of the same grey in three ways to store it."""
    grey = picture(1).convert("L")
    return {"1.png": picture(1), "2.png": grey, "3.png": grey.convert("RGB"), "4.png": grey.convert("LA")}


def test_luma_is_pillows(picture: MakePicture) -> None:
    colour = picture(3, 64, 48)
    ours = luma(np.asarray(colour).transpose(2, 0, 1))
    assert ours.shape == (1, 48, 64)
    assert ours.dtype == np.uint8
    np.testing.assert_array_equal(ours[0], np.asarray(colour.convert("L")))


def test_grey_pictures_keep_their_values() -> None:
    every = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16), (2, 3, 16, 16))
    assert is_grey(every)
    np.testing.assert_array_equal(luma(every), every[:, :1])
    tinted = every.copy()
    tinted[1, 2, 15, 15] -= 1
    assert not is_grey(tinted)
    assert is_grey(tinted[0])


def test_preparing_counts_them(mixed: dict[str, Image.Image | bytes], folder: MakeFolder, tmp_path: Path) -> None:
    report = prepare(folder(mixed), tmp_path / "out", resolution=16)
    assert report.grey == 3
    assert "3 pictures of 4 are grey, the others in colour" in report.lines
    assert (open_prepared(tmp_path / "out").grey, open_prepared(tmp_path / "out").all_grey) == (3, False)
    (tmp_path / "source" / "1.png").unlink()
    report = prepare(tmp_path / "source", tmp_path / "grey", resolution=8)
    assert (report.grey, report.lines[-1]) == (3, "all pictures are grey")
    assert open_prepared(tmp_path / "grey").all_grey
    again = prepare(tmp_path / "source", tmp_path / "grey", resolution=8)
    assert again.grey == 3


@pytest.mark.parametrize("coloured", [False, True])
def test_a_set_of_an_earlier_version_is_looked_through(
    mixed: dict[str, Image.Image | bytes],
    folder: MakeFolder,
    tmp_path: Path,
    coloured: bool,
) -> None:
    """By blocks of 64; the last picture lies in the second."""
    colour = mixed.pop("1.png")
    mixed |= {f"5-{number:02}.png": mixed["2.png"] for number in range(64)}
    prepare(folder(mixed | ({"9.png": colour} if coloured else {})), tmp_path / "out", resolution=16)
    about = json.loads((tmp_path / "out" / "set.json").read_text("utf-8"))
    del about["grey"]
    (tmp_path / "out" / "set.json").write_text(json.dumps(about), "utf-8")
    prepared = open_prepared(tmp_path / "out", verify=True)
    assert prepared.grey is None
    assert prepared.all_grey is not coloured


def test_a_set_reads_grey_and_says_so_by_its_digest(picture: MakePicture) -> None:
    pictures = np.stack([np.asarray(picture(seed)).transpose(2, 0, 1) for seed in range(5)])
    labels = np.zeros(5, np.int64)
    colour = PictureSet(pictures, labels, ("a",), False, picture_digest(pictures, labels))
    grey = colour.in_grey()
    assert (colour.channels, grey.channels, len(grey), grey.resolution) == (3, 1, 5, 16)
    np.testing.assert_array_equal(colour[np.array([4, 0])], pictures[[4, 0]])
    np.testing.assert_array_equal(grey[np.array([4, 0])], luma(pictures[[4, 0]]))
    np.testing.assert_array_equal(grey[1:3], luma(pictures[1:3]))
    assert grey[2].shape == (1, 16, 16)
    assert grey.digest not in ("", colour.digest)
    assert grey.in_grey() is grey


def test_what_was_grey_before_is_the_same_set() -> None:
    """So that scores of a grey and of a coloured network on the digits compare."""
    digits = digits_set(16, np.arange(7))
    assert digits.all_grey
    assert is_grey(digits.pictures)
    assert digits.in_grey().digest == digits.digest
    np.testing.assert_array_equal(digits.in_grey()[:], digits.pictures[:, :1])


def test_batches_are_the_same_pictures_in_grey(picture_set: Callable[..., PictureSet]) -> None:
    made = picture_set(9)
    colour, grey = (Batches(each, seed=1, name="images", flip=True) for each in (made, made.in_grey()))
    one, other = colour.take(3, 12), grey.take(3, 12)
    np.testing.assert_array_equal(one["labels"], other["labels"])
    np.testing.assert_array_equal(other["pictures"], luma(one["pictures"].numpy()))
    assert other["pictures"].shape == (12, 1, 4, 4)
