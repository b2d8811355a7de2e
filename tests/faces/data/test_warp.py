"""The random change of shape against the original's draws, bit for bit."""

import numpy as np
import pytest

from faces.data.golden_faces import recorded
from frugan.faces.data.sample import Warp, draw_warp

RECORDED = recorded("warp_params.npz")


def draw(seed: int, size: int, *, may_flip: bool = True) -> Warp:
    return draw_warp(size, np.random.RandomState(seed), np.random.RandomState(seed), may_flip=may_flip, scale=1.15)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("size", [64, 96])
def test_draws_are_the_originals(seed: int, size: int) -> None:
    warp = draw(seed, size)
    key = f"seed{seed}_w{size}_"
    np.testing.assert_array_equal(warp.map_x, RECORDED[key + "mapx"])
    np.testing.assert_array_equal(warp.map_x.T, RECORDED[key + "mapy"])
    np.testing.assert_array_equal(warp.affine, RECORDED[key + "rmat"])
    assert warp.flip == RECORDED[key + "flip"]
    assert warp.map_x.dtype == np.float32


def test_a_flip_is_drawn_last_and_4_times_in_10() -> None:
    with_flip = [draw(seed, 64) for seed in range(400)]
    without = [draw(seed, 64, may_flip=False) for seed in range(400)]
    assert 130 < sum(warp.flip for warp in with_flip) < 190
    assert not any(warp.flip for warp in without)
    assert all((one.affine == other.affine).all() for one, other in zip(with_flip, without, strict=True))


def test_the_bend_leaves_the_outermost_points_of_the_grid_and_stays_within_its_cell() -> None:
    x = np.arange(64)
    for seed in range(20):
        bend = draw(seed, 64).map_x - x
        assert np.abs(bend).max() < 0.24 * 32 * 2 + 1
        assert np.abs(bend).max() > 0.5
        np.testing.assert_allclose(bend[:, 0], bend[0, 0], atol=4)


def test_moves() -> None:
    picture = np.random.default_rng(0).random((64, 64, 3), np.float32)
    identity = np.array([[1.0, 0, 0], [0, 1, 0]])
    columns = np.tile(np.arange(64, dtype=np.float32), (64, 1))
    still = Warp(64, columns, identity, flip=False)
    mirrored = Warp(64, columns, identity, flip=True)
    np.testing.assert_allclose(still.bend_picture(picture), picture, atol=1e-6)
    np.testing.assert_allclose(still.move_picture(picture), picture, atol=1e-6)
    np.testing.assert_allclose(mirrored.move_picture(picture), picture[:, ::-1], atol=1e-6)
    np.testing.assert_allclose(mirrored.move_mask(picture[..., 0]), picture[:, ::-1, 0], atol=1e-6)


def test_what_comes_from_outside() -> None:
    shifted = Warp(64, np.full((64, 64), -50, np.float32), np.array([[1.0, 0, 40], [0, 1, 0]]), flip=False)
    ones = np.ones((64, 64, 3), np.float32)
    assert shifted.bend_picture(ones).max() == 0  # black
    assert shifted.move_picture(ones).min() == 1  # its border repeated
    assert shifted.move_mask(ones[..., 0])[:, :39].max() == 0
