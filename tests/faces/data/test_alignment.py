"""Alignment matrices against the original's, and what they must do to a face."""

from itertools import pairwise

import numpy as np
import pytest

from faces.data.golden_faces import expected_faces, recorded
from frugan.errors import BadInput
from frugan.faces.data.face import FaceType
from frugan.faces.data.geometry import alignment_matrix, invert_affine, transform_points

RECORDED = {name: matrix for name, matrix in recorded("landmarks.npz").items() if name.startswith("mat_")}
CUT = [kind for kind in FaceType if kind is not FaceType.MARK_ONLY]


def landmarks(index: int = 0) -> np.ndarray:
    return np.array(expected_faces()[index]["landmarks"])


def test_there_are_15_cases() -> None:
    assert len(RECORDED) == 15


@pytest.mark.parametrize("name", RECORDED)
def test_matrices_are_the_originals(name: str) -> None:
    _, index, face_type = name.removesuffix("_res64").split("_", 2)
    matrix = alignment_matrix(landmarks(int(index)), 64, FaceType.from_file(face_type))
    assert matrix.dtype == np.float32
    np.testing.assert_allclose(matrix, RECORDED[name], rtol=0, atol=2e-5)


@pytest.mark.parametrize("face_type", CUT)
def test_the_picture_moves_and_grows_with_its_landmarks(face_type: FaceType) -> None:
    moved = landmarks() * 3.5 + (40, -7)
    before = transform_points(alignment_matrix(landmarks(), 256, face_type), landmarks())
    after = transform_points(alignment_matrix(moved, 256, face_type), moved)
    np.testing.assert_allclose(after, before, atol=1e-3)


@pytest.mark.parametrize("face_type", CUT)
def test_a_turned_face_comes_upright_unless_it_is_not_to_be_aligned(face_type: FaceType) -> None:
    angle = 0.6
    turned = landmarks() @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    matrix = alignment_matrix(turned, 128, face_type)
    aligned = transform_points(matrix, turned)
    if face_type in (FaceType.FULL_NO_ALIGN, FaceType.HEAD_NO_ALIGN):
        np.testing.assert_allclose(matrix[[0, 1], [1, 0]], 0, atol=1e-6)
    else:
        np.testing.assert_allclose(
            aligned, transform_points(alignment_matrix(landmarks(), 128, face_type), landmarks()), atol=1e-3
        )


def test_not_aligned_squares_are_as_large_and_in_the_same_place() -> None:
    for plain, not_aligned in ((FaceType.FULL, FaceType.FULL_NO_ALIGN), (FaceType.HEAD, FaceType.HEAD_NO_ALIGN)):
        one, other = (alignment_matrix(landmarks(3), 64, kind) for kind in (plain, not_aligned))
        assert np.linalg.det(one[:, :2]) == pytest.approx(np.linalg.det(other[:, :2]), rel=1e-5)
        middle = [[32.0, 32.0]]
        np.testing.assert_allclose(
            transform_points(invert_affine(one), middle), transform_points(invert_affine(other), middle), atol=1e-3
        )


def test_each_type_shows_more_than_the_one_before() -> None:
    scales = [np.linalg.det(alignment_matrix(landmarks(), 64, kind)[:, :2]) for kind in CUT]
    assert all(later <= earlier * (1 + 1e-5) for earlier, later in pairwise(scales))


@pytest.mark.parametrize("broken", [np.full((68, 2), 5.0), np.full((68, 2), np.nan), np.full((68, 2), np.inf)])
def test_landmarks_without_a_shape_are_refused(broken: np.ndarray) -> None:
    with pytest.raises(BadInput, match="landmarks lie on one line or are no numbers"):
        alignment_matrix(broken, 64, FaceType.FULL)


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[67, 2\]"):
        alignment_matrix(landmarks()[1:], 64, FaceType.FULL)
    with pytest.raises(ValueError, match="MARK_ONLY"):
        alignment_matrix(landmarks(), 64, FaceType.MARK_ONLY)
