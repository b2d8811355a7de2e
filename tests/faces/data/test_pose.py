"""Poses against the original's."""

import numpy as np
import pytest

from faces.data.golden_faces import expected_faces, load_face
from frugan.faces.data.geometry import pitch_yaw_roll, yaw

# the landmarks' numbers in a picture mirrored left to right, as far as the pose looks at them
MIRRORED = [*range(16, -1, -1), *range(26, 16, -1), *range(27, 31), *range(35, 30, -1), *range(36, 68)]


@pytest.mark.parametrize("index", range(8))
def test_angles_are_the_originals(index: int) -> None:
    face, _ = load_face(index)
    expected = expected_faces()[index]["__pitch_yaw_roll__"]
    np.testing.assert_allclose(pitch_yaw_roll(face.landmarks, face.width), expected, rtol=0, atol=1e-5)
    assert yaw(face) == pytest.approx(expected[1], abs=1e-5)


@pytest.mark.parametrize("index", [0, 6, 7])
def test_a_mirrored_face_looks_the_other_way(index: int) -> None:
    face, _ = load_face(index)
    mirrored = (face.landmarks * (-1, 1) + (face.width, 0))[MIRRORED]
    # the mean face itself is not symmetric
    assert pitch_yaw_roll(mirrored, face.width)[1] == pytest.approx(-yaw(face), abs=0.1)


def test_the_pictures_size_does_not_matter() -> None:
    face, _ = load_face(6)
    np.testing.assert_allclose(
        pitch_yaw_roll(face.landmarks * 4, face.width * 4), pitch_yaw_roll(face.landmarks, face.width), atol=1e-4
    )
