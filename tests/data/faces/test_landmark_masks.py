"""Masks from landmarks against the original's, bit for bit."""

import numpy as np
import pytest

from data.faces.golden_faces import load_face, recorded
from frugan.data.faces.landmark_masks import expanded_eyebrows, eyes_mouth_mask, face_mask

RECORDED = recorded("landmarks.npz")


@pytest.mark.parametrize("index", [0, 1])
def test_the_face(index: int) -> None:
    face, _ = load_face(index)
    assert face.eyebrows_expand_mod == (1.0, 0.75)[index]
    found = face_mask(face.landmarks, face.height, face.width, face.eyebrows_expand_mod)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, RECORDED[f"hull_{index}"][..., 0])


@pytest.mark.parametrize("index", [0, 1])
def test_eyes_and_mouth(index: int) -> None:
    face, _ = load_face(index)
    found = eyes_mouth_mask(face.landmarks, face.height, face.width)
    expected = RECORDED[f"eye_{index}"] + RECORDED[f"mouth_{index}"]
    np.testing.assert_array_equal(found, expected[..., 0].clip(0, 1))


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
    found = eyes_mouth_mask(landmarks, 128, 128)
    wider = eyes_mouth_mask(landmarks + np.array([64, 0]), 128, 256)
    assert 0.5 * (wider > 0).sum() < (found > 0).sum() < 0.9 * (wider > 0).sum()
    inside = slice(9, -9)  # nearer to the border the blur sees the picture mirrored
    np.testing.assert_array_equal(found[:, inside], wider[:, 64:192][:, inside])


def test_a_face_outside_the_picture_gives_an_empty_mask() -> None:
    landmarks = load_face(0)[0].landmarks
    for shift in (-1000, 1000):
        assert eyes_mouth_mask(landmarks + shift, 128, 128).max() == 0
        assert face_mask(landmarks + shift, 128, 128).max() == 0
