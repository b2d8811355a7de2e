"""Masks from landmarks against the original's, bit for bit."""

from collections.abc import Sequence

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from faces.data.golden_faces import load_face, recorded
from frugan.faces.data.geometry import expanded_eyebrows, eyes_mouth_mask, face_mask
from tools.draw_faces.camera import view_of
from tools.draw_faces.landmarks import landmarks
from tools.draw_faces.moment import draw_moment
from tools.draw_faces.people import PEOPLE
from tools.draw_faces.surface import shape

RECORDED = recorded("landmarks.npz")
EIGHT_HULLS = (
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 17],
    [8, 9, 10, 11, 12, 13, 14, 15, 16, 26],
    [17, 18, 19, 8],
    [24, 25, 26, 8],
    [19, 20, 21, 22, 23, 24, 8],
    [17, 18, 19, 20, 21, 27, 31, 32, 33, 34, 35, 8],
    [22, 23, 24, 25, 26, 27, 31, 32, 33, 34, 35, 8],
    [27, 28, 29, 30, 31, 32, 33, 34, 35],
)
"""What the original fills; a hull of all 68 was taken for it, as on all recorded faces the two are the same."""
ONE_HULL = (list(range(68)),)


def filled(points: NDArray[np.int32], hulls: Sequence[list[int]], size: int) -> NDArray[np.float32]:
    mask = np.zeros((size, size), np.uint8)
    for hull in hulls:
        cv2.fillConvexPoly(mask, cv2.convexHull(points[hull]), 1)
    return mask.astype(np.float32)


@pytest.mark.parametrize("index", [0, 1])
def test_the_face(index: int) -> None:
    face, _ = load_face(index)
    assert face.eyebrows_expand_mod == (1.0, 0.75)[index]
    mask = face_mask(face.landmarks, face.height, face.width, face.eyebrows_expand_mod)
    assert mask.dtype == np.float32
    np.testing.assert_array_equal(mask, RECORDED[f"hull_{index}"][..., 0])


@pytest.mark.parametrize("index", range(8))
def test_recorded_faces_do_not_tell_one_hull_from_eight(index: int) -> None:
    face, _ = load_face(index)
    mask = face_mask(face.landmarks, face.height, face.width, face.eyebrows_expand_mod)
    points = expanded_eyebrows(face.landmarks, face.eyebrows_expand_mod)
    np.testing.assert_array_equal(mask, filled(points, ONE_HULL, face.height))


@pytest.mark.long
@pytest.mark.parametrize("person", [0, 1])
def test_the_dent_between_the_brows_is_not_the_face(person: int) -> None:
    moment, size = draw_moment(0, person, 49), 256
    placed = landmarks(PEOPLE[person], moment, shape(PEOPLE[person], moment), view_of(moment, size))
    points = expanded_eyebrows(placed)
    mask = face_mask(placed, size, size)
    np.testing.assert_array_equal(mask, filled(points, EIGHT_HULLS, size))
    one_hull = filled(points, ONE_HULL, size)
    assert (mask <= one_hull).all()
    assert 1.002 * mask.sum() < one_hull.sum() < 1.03 * mask.sum()
    rows, columns = np.nonzero(one_hull > mask)
    assert (rows <= points[17:27, 1].max()).all()
    assert points[17, 0] < columns.min() < columns.max() < points[26, 0]


def test_each_hull_counts_that_is_no_part_of_another() -> None:
    counted = set()
    for seed in range(8):
        points = np.random.RandomState(seed).randint(8, 120, (68, 2)).astype(np.int32)
        mask = face_mask(points, 128, 128, eyebrows_expand_mod=0)
        np.testing.assert_array_equal(mask, filled(points, EIGHT_HULLS, 128))
        for left_out in range(8):
            others = [hull for place, hull in enumerate(EIGHT_HULLS) if place != left_out]
            if (mask != filled(points, others, 128)).any():
                counted.add(left_out)
    assert counted >= {0, 1, 4, 5, 6, 7}  # 2 and 3 are parts of 5 and 6


@pytest.mark.parametrize("index", [0, 1])
def test_eyes_and_mouth(index: int) -> None:
    face, _ = load_face(index)
    mask = eyes_mouth_mask(face.landmarks, face.height, face.width)
    expected = RECORDED[f"eye_{index}"] + RECORDED[f"mouth_{index}"]
    np.testing.assert_array_equal(mask, expected[..., 0].clip(0, 1))


def test_brows_rise_away_from_the_eyes() -> None:
    landmarks = load_face(0)[0].landmarks
    risen, twice = expanded_eyebrows(landmarks), expanded_eyebrows(landmarks, 2.0)
    whole_pixels = landmarks.astype(np.int32)
    np.testing.assert_array_equal(expanded_eyebrows(landmarks, 0.0), whole_pixels)
    assert (risen[17:27, 1] < whole_pixels[17:27, 1]).all()
    assert (twice[17:27, 1] < risen[17:27, 1]).all()
    np.testing.assert_array_equal(np.delete(risen, range(17, 27), 0), np.delete(whole_pixels, range(17, 27), 0))


@pytest.mark.parametrize("shift", [-50, 50])
def test_parts_at_the_border_are_as_in_a_wider_picture(shift: int) -> None:
    landmarks = load_face(0)[0].landmarks.astype(np.int32) + np.array([shift, 0])
    mask = eyes_mouth_mask(landmarks, 128, 128)
    wider = eyes_mouth_mask(landmarks + np.array([64, 0]), 128, 256)
    assert 0.5 * (wider > 0).sum() < (mask > 0).sum() < 0.9 * (wider > 0).sum()
    inside = slice(9, -9)  # nearer to the border the blur sees the picture mirrored
    np.testing.assert_array_equal(mask[:, inside], wider[:, 64:192][:, inside])


def test_a_face_outside_the_picture_gives_an_empty_mask() -> None:
    landmarks = load_face(0)[0].landmarks
    for shift in (-1000, 1000):
        assert eyes_mouth_mask(landmarks + shift, 128, 128).max() == 0
        assert face_mask(landmarks + shift, 128, 128).max() == 0
