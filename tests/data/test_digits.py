"""The embedded digits."""

from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from frugan.data.digits import are_digits, digits_set, load_digits, split_digits
from frugan.data.formats.picture_set import picture_digest
from frugan.errors import BadInput


def test_the_published_data() -> None:
    ink, labels = load_digits()
    assert ink.shape == (1797, 8, 8)
    assert ink.dtype == np.uint8
    assert (ink.min(), ink.max()) == (0, 16)
    assert labels.dtype == np.int64
    # digits per class of the test part, from its description at UCI
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert ink[0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]


def test_origin_and_licence_ship_with_it() -> None:
    text = (files("frugan.data") / "digits_uci" / "README.md").read_text(encoding="utf-8")
    assert "Alpaydin" in text
    assert "CC BY 4.0" in text


def test_set_is_white_on_black_and_smooth() -> None:
    digits = digits_set(32)
    assert (digits.pictures.shape, digits.labelled, digits.class_names[3]) == ((1797, 3, 32, 32), True, "3")
    np.testing.assert_array_equal(digits.pictures[:, 0], digits.pictures[:, 2])
    assert digits.pictures[:, :, :, 0].mean() < 20  # the border is background
    assert digits.pictures.max() == 255
    assert len(np.unique(digits.pictures[0])) > 50
    ink, _ = load_digits()
    back = np.asarray(Image.fromarray(digits.pictures[7, 0]).resize((8, 8), Image.Resampling.BOX))
    assert np.abs(back / 255 * 16 - ink[7]).mean() < 1
    assert digits.digest == picture_digest(digits.pictures, digits.labels)


def test_chosen_digits_at_their_own_size() -> None:
    ink, labels = load_digits()
    chosen = np.array([5, 3, 1700])
    digits = digits_set(8, chosen)
    np.testing.assert_array_equal(digits.pictures[:, 1], np.floor(ink[chosen] * (255 / 16) + 0.5))
    np.testing.assert_array_equal(digits.labels, labels[chosen])


def test_too_small() -> None:
    with pytest.raises(BadInput, match="resolution 4: the digits have 8 x 8"):
        digits_set(4)


def test_halves_are_stratified_and_fixed() -> None:
    fit, test = split_digits(0)
    _, labels = load_digits()
    assert sorted([*fit, *test]) == list(range(1797))
    assert abs(len(fit) - len(test)) <= 5
    assert np.abs(np.bincount(labels[fit]) - np.bincount(labels[test])).max() <= 1
    np.testing.assert_array_equal(fit, split_digits(0)[0])
    assert not np.array_equal(fit, split_digits(1)[0])
    assert fit[:5].tolist() == [5, 6, 8, 14, 15]


def test_the_demos_digits_are_told_from_other_pictures() -> None:
    fit, unseen = split_digits(0)
    assert are_digits(digits_set(32))
    assert are_digits(digits_set(16, fit).in_grey())
    assert not are_digits(digits_set(32, unseen))
    assert not are_digits(digits_set(32, fit[:-1]))
