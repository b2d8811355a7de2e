"""Colour transfer against the original's pictures, and what each way promises."""

from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from faces.data.golden_faces import recorded
from frugan.faces.data.colour_transfer import Method, transfer_colour

RECORDED = recorded("color_transfer.npz")
METHODS: tuple[Method, ...] = get_args(Method)
LARGEST = {"rct": 5e-6, "lct": 2e-5, "mkl": 2e-5, "sot": 1e-4}


def transferred(method: Method, picture: NDArray[np.float32], seed: int = 5) -> NDArray[np.float32]:
    return transfer_colour(method, picture, RECORDED["ref"], np.random.RandomState(seed))


@pytest.mark.parametrize("method", ["rct", "lct", "mkl", "sot"])
def test_pictures_are_the_originals(method: Method) -> None:
    np.testing.assert_allclose(transferred(method, RECORDED["img"]), RECORDED[method], rtol=0, atol=LARGEST[method])


def test_idt_is_the_originals_but_for_its_random_axes() -> None:
    # its own axes are drawn otherwise: between two of ours the mean difference is 0.003
    picture = transferred("idt", RECORDED["img"])
    assert np.abs(picture - RECORDED["idt"]).mean() < 0.004
    np.testing.assert_allclose(picture.mean((0, 1)), RECORDED["idt"].mean((0, 1)), atol=0.002)
    np.testing.assert_allclose(picture.std((0, 1)), RECORDED["idt"].std((0, 1)), atol=0.002)


@pytest.mark.parametrize("method", METHODS)
def test_arguments_are_left_as_they_are_and_decide_the_result(method: Method) -> None:
    picture, kept = RECORDED["img"].copy(), RECORDED["ref"].copy()
    first = transferred(method, picture)
    np.testing.assert_array_equal(picture, RECORDED["img"])
    np.testing.assert_array_equal(RECORDED["ref"], kept)
    np.testing.assert_array_equal(transferred(method, picture), first)
    assert first.dtype == np.float32
    assert (transferred(method, picture, seed=6) == first).all() == (method not in ("idt", "sot"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_picture_of_one_colour_takes_the_mean_colour(method: Method, value: float) -> None:
    picture = transferred(method, np.full((48, 48, 3), value, np.float32))
    assert picture.min() >= 0
    assert picture.max() <= 1
    if method in ("lct", "mkl", "rct"):
        # rct's mean is that of Lab
        atol = 0.05 if method == "rct" else 2e-3
        np.testing.assert_allclose(picture.mean((0, 1)), RECORDED["ref"].mean((0, 1)), atol=atol)
        assert picture.std((0, 1)).max() < 1e-3
