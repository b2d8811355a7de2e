"""Where the square of an aligned face lies in a picture: a similarity to the mean face, widened by the face type.

Source: DeepFaceLab's behaviour; Umeyama, "Least-squares estimation of transformation parameters between two point
patterns", PAMI 1991.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from frugan.data.faces.face_type import FaceType
from frugan.data.faces.mean_face import ALIGNMENT_LANDMARKS, ALIGNMENT_POINTS
from frugan.errors import BadInput

Points = NDArray[np.float64]

# how far the square reaches beyond the mean face's box, in sides of that box
_PADDING = {
    FaceType.HALF: 0.0,
    FaceType.MID_FULL: 0.0675,
    FaceType.FULL: 0.2109375,
    FaceType.FULL_NO_ALIGN: 0.2109375,
    FaceType.WHOLE_FACE: 0.40,
    FaceType.HEAD: 0.70,
    FaceType.HEAD_NO_ALIGN: 0.70,
}
_WHOLE_FACE_RISE = 0.07  # box heights: more of the forehead
_HEAD_RISE = 0.5
# the bridge of the nose with the ends of the jaw at its height: (nose, left end, right end)
_TURN_LANDMARKS = ((27, 0, 16), (28, 1, 15), (29, 2, 14))


def alignment_matrix(landmarks: ArrayLike, size: int, face_type: FaceType) -> NDArray[np.float32]:
    """Return the affine map from the landmarks' picture to the aligned picture.

    Args:
        landmarks: x, y in pixels, [68, 2].
        size: side of the aligned picture in pixels.
        face_type: how much around the face is taken in.

    Returns:
        float32 [2, 3].

    Raises:
        BadInput: the landmarks lie on one line, or are no numbers.
        ValueError: `face_type` has no square (MARK_ONLY), or the landmarks are not [68, 2].
    """
    points = np.asarray(landmarks, np.float64)  # [68, 2]
    if points.shape != (68, 2):
        raise ValueError(f"landmarks {list(points.shape)}: expected [68, 2]")
    if face_type not in _PADDING:
        raise ValueError(f"{face_type.name} faces are not cut out: expected one of {[kind.name for kind in _PADDING]}")
    if not np.isfinite(points).all() or np.ptp(points, axis=0).min() == 0:
        raise BadInput("its landmarks lie on one line or are no numbers; expected 68 points of a face: extract again")
    to_mean = _similarity(points[list(ALIGNMENT_LANDMARKS)], np.array(ALIGNMENT_POINTS))  # [2, 3]
    box = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.5, 0.5]])
    top_left, top_right, bottom_right, bottom_left, centre = transform_points(invert_affine(to_mean), box)
    diagonal = bottom_right - top_left
    reach = np.linalg.norm(diagonal) * (_PADDING[face_type] * np.sqrt(2) + 0.5)  # half of the square's diagonal
    up = top_left - bottom_left
    if face_type is FaceType.WHOLE_FACE:
        centre = centre + _WHOLE_FACE_RISE * up
    elif face_type in (FaceType.HEAD, FaceType.HEAD_NO_ALIGN):
        # a turned head reaches further to the side that it turns away
        sideways = top_right - top_left
        centre = centre + sideways * (_turn(transform_points(to_mean, points)) / 2) + _HEAD_RISE * up
    if face_type in (FaceType.FULL_NO_ALIGN, FaceType.HEAD_NO_ALIGN):
        falling, rising = np.array([1.0, 1.0]) / np.sqrt(2), np.array([1.0, -1.0]) / np.sqrt(2)
    else:
        falling, rising = _unit(diagonal), _unit(top_right - bottom_left)
    corners = np.stack([centre - falling * reach, centre + rising * reach, centre + falling * reach])  # [3, 2]
    return _affine_through(corners, np.array([[0.0, 0.0], [size, 0.0], [size, size]])).astype(np.float32)


def invert_affine(matrix: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the inverse, float64 [2, 3], of an affine map, [2, 3]."""
    linear = np.linalg.inv(matrix[:, :2].astype(np.float64))
    return np.column_stack([linear, -linear @ matrix[:, 2]])


def transform_points(matrix: NDArray[np.floating], points: ArrayLike) -> Points:
    """Return points, [n, 2], moved by an affine map, [2, 3]: float64 [n, 2]."""
    return np.asarray(points, np.float64) @ matrix[:, :2].T.astype(np.float64) + matrix[:, 2]


def _similarity(points: Points, targets: Points) -> NDArray[np.float64]:
    """Return the scaled rotation and shift that brings `points` nearest to `targets` in least squares.

    Args:
        points: float64 [n, 2].
        targets: float64 [n, 2].

    Returns:
        float64 [2, 3].
    """
    mean, target_mean = points.mean(axis=0), targets.mean(axis=0)
    centred, target_centred = points - mean, targets - target_mean
    covariance = target_centred.T @ centred / len(points)  # [2, 2]
    left, stretch, right = np.linalg.svd(covariance)
    signs = np.array([1.0, np.sign(np.linalg.det(left) * np.linalg.det(right))])  # a rotation, never a mirror image
    rotation = left @ np.diag(signs) @ right
    scale = (stretch @ signs) / centred.var(axis=0).sum()
    linear = scale * rotation
    return np.column_stack([linear, target_mean - linear @ mean])


def _affine_through(points: Points, targets: Points) -> NDArray[np.float64]:
    """Return the affine map, float64 [2, 3], that takes three points, [3, 2], to three others, [3, 2]."""
    return np.asarray(np.linalg.solve(np.column_stack([points, np.ones(3)]), targets).T, np.float64)


def _turn(points: Points) -> float:
    """Return how far the head turns, from landmarks [68, 2] in the mean face's frame.

    0 is straight on; the sign is that of the side where more of the face shows, the unit one box side. Small turns
    count for almost nothing.
    """
    x = points[:, 0]
    turn = float(np.mean([(x[right] - x[nose]) - (x[nose] - x[left]) for nose, left, right in _TURN_LANDMARKS]))
    return turn * abs(math.tanh(2 * turn))


def _unit(vector: Points) -> Points:
    return vector / np.linalg.norm(vector)
