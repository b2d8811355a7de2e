"""Which face stands where: epochs, rounds over directions, and independence of how the stream is cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frugan.faces.data.batches import FaceOrder, yaw_bins


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(0, 200), st.lists(st.integers(0, 9), max_size=8), st.booleans())
def test_any_cutting_gives_the_same_stream(number: int, position: int, counts: list[int], uniform: bool) -> None:
    yaws = np.linspace(-0.1, 1.4, number) ** 3 if uniform else None
    whole = FaceOrder(number, seed=3, name="src", yaws=yaws)
    faces, seeds = whole.places(position, sum(counts))
    partners = whole.partners(position, sum(counts), 17)
    cut = FaceOrder(number, seed=3, name="src", yaws=yaws)
    done = 0
    for count in counts:
        part = slice(done, done + count)
        for places, expected in zip(cut.places(position + done, count), (faces, seeds), strict=True):
            assert places.dtype == np.int64
            np.testing.assert_array_equal(places, expected[part])
        np.testing.assert_array_equal(cut.partners(position + done, count, 17), partners[part])
        done += count


def test_each_face_once_an_epoch_in_a_new_order() -> None:
    faces, _ = FaceOrder(50, seed=1, name="src").places(0, 150)
    epochs = faces.reshape(3, 50)
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(50))
    assert not (epochs[0] == epochs[1]).all()


def test_sides_and_seeds_differ() -> None:
    streams = [FaceOrder(50, seed=seed, name=name).places(0, 50) for seed, name in ((1, "src"), (1, "dst"), (2, "src"))]
    for one in range(3):
        for other in range(one):
            assert not (streams[one][0] == streams[other][0]).all()
            assert not np.intersect1d(streams[one][1], streams[other][1]).size


def test_sample_seeds() -> None:
    _, seeds = FaceOrder(3, seed=1, name="src").places(0, 5000)
    assert seeds.min() >= 0
    assert seeds.max() < 2**31
    assert len(np.unique(seeds)) > 4990
    assert abs(seeds.mean() / 2**31 - 0.5) < 0.02


def test_the_stream_is_the_same_tomorrow() -> None:
    """A run resumed with another version must go on with the same faces."""
    faces, seeds = FaceOrder(5, seed=7, name="src").places(3, 4)
    yaws = [-1.0, -1.0, 0.0, 0.5, 0.5]
    turned, _ = FaceOrder(5, seed=7, name="src", yaws=yaws).places(3, 4)
    partners = FaceOrder(5, seed=7, name="src").partners(3, 4, 100)
    assert faces.tolist() == [3, 4, 0, 4]
    assert turned.tolist() == [2, 3, 0, 3]
    assert seeds.tolist() == [1385771636, 394070656, 691528060, 2121706646]
    assert partners.tolist() == [69, 13, 28, 95]


def test_partners_are_spread() -> None:
    partners = FaceOrder(5, seed=7, name="src").partners(0, 4000, 8)
    counts = np.bincount(partners, minlength=8)
    assert len(counts) == 8
    assert abs(counts - 500).max() < 100


def test_bins_of_yaw() -> None:
    width = 2.4 / 128
    yaws = np.array([9.0, 1.2, 1.2 - 0.5 * width, 1.2 - 1.5 * width, 0.001, -0.001, -1.19, -1.2, -9.0])
    assert yaw_bins(yaws).tolist() == [0, 0, 0, 1, 63, 64, 127, 127, 127]


def test_every_direction_as_often() -> None:
    yaws = np.array([0.0] * 90 + [0.5] * 9 + [1.1])
    faces, _ = FaceOrder(100, seed=1, name="src", yaws=yaws).places(0, 3 * 180)
    directions = np.digitize(faces, [90, 99])
    rounds = directions.reshape(-1, 3)
    np.testing.assert_array_equal(np.sort(rounds, 1), np.tile([0, 1, 2], (180, 1)))
    assert len(np.unique(rounds, axis=0)) == 6  # the bins come in all orders
    frontal = faces[directions == 0].reshape(2, 90)
    for epoch in frontal:  # within a bin: each face once, in a new order
        np.testing.assert_array_equal(np.sort(epoch), np.arange(90))
    assert not (frontal[0] == frontal[1]).all()
    np.testing.assert_array_equal(np.bincount(faces, minlength=100)[90:], [20] * 9 + [180])


@pytest.mark.parametrize(("position", "count"), [(-1, 2), (0, -1)])
def test_negative_places(position: int, count: int) -> None:
    with pytest.raises(ValueError, match="expected both at least 0"):
        FaceOrder(5, seed=7, name="src").places(position, count)
    with pytest.raises(ValueError, match="expected both at least 0"):
        FaceOrder(5, seed=7, name="src").partners(position, count, 3)
