"""Where a face lies in its aligned picture: mean face, its square, which way it looks, its masks."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from frugan.errors import BadInput, optional_module
from frugan.faces.data.face import Face, FaceType


def opencv() -> Any:
    """Return the module `cv2`.

    Raises:
        BadInput: it is not installed.
    """
    cv2 = optional_module("cv2", "training on faces needs OpenCV", "face")
    # what it warns of on the console, at every reading, is told by name and once: such as a mask that is cut off
    (cv2 if hasattr(cv2, "setLogLevel") else cv2.utils.logging).setLogLevel(2)  # errors alone, in OpenCV 4 and 5
    return cv2


# Where the points of a mean face lie.
#
# Measured positions of a mean face as the original program, DeepFaceLab, uses them: facts needed so that faces align,
# and count as turned, the same way as in its facesets. Only the points in use are here. The numbers are those of the
# usual scheme of 68: 0-16 the jaw from the left of the picture to the right, 17-21 and 22-26 the brows, 27-30 the
# bridge of the nose, 31-35 its base, 36-41 and 42-47 the eyes, 48-59 the outer and 60-67 the inner lips.

Point2 = tuple[float, float]
Point3 = tuple[float, float, float]

# brows, nose, eyes and the corners of the mouth
ALIGNMENT_LANDMARKS = (*range(17, 49), 54)
# x to the right, y down; the box from the brows to below the mouth is about [0, 1]^2
ALIGNMENT_POINTS: tuple[Point2, ...] = (
    (0.000213256, 0.106454),
    (0.0752622, 0.038915),
    (0.18113, 0.0187482),
    (0.29077, 0.0344891),
    (0.393397, 0.0773906),
    (0.586856, 0.0773906),
    (0.689483, 0.0344891),
    (0.799124, 0.0187482),
    (0.904991, 0.038915),
    (0.98004, 0.106454),
    (0.490127, 0.203352),
    (0.490127, 0.307009),
    (0.490127, 0.409805),
    (0.490127, 0.515625),
    (0.36688, 0.587326),
    (0.426036, 0.609345),
    (0.490127, 0.628106),
    (0.554217, 0.609345),
    (0.613373, 0.587326),
    (0.121737, 0.216423),
    (0.187122, 0.178758),
    (0.265825, 0.179852),
    (0.334606, 0.231733),
    (0.260918, 0.245099),
    (0.182743, 0.244077),
    (0.645647, 0.231733),
    (0.714428, 0.179852),
    (0.793132, 0.178758),
    (0.858516, 0.216423),
    (0.79751, 0.244077),
    (0.719335, 0.245099),
    (0.254149, 0.780233),
    (0.726104, 0.780233),
)

# jaw, brows, tip and base of the nose: what moves least with the expression
POSE_LANDMARKS = (*range(27), *range(30, 36))
# x to the right, y down, z away from the viewer, about millimetres; the origin lies below the bridge of the nose
POSE_POINTS: tuple[Point3, ...] = (
    (-73.393524, -29.801432, 47.667534),
    (-72.77502, -10.949766, 45.909405),
    (-70.53364, 7.929818, 44.84258),
    (-66.85006, 26.07428, 43.141113),
    (-59.790188, 42.56439, 38.6353),
    (-48.368973, 56.48108, 30.750622),
    (-34.1211, 67.246994, 18.456453),
    (-17.87541, 75.05689, 3.609035),
    (0.098749, 77.06129, -0.881698),
    (17.477032, 74.758446, 5.181201),
    (32.648968, 66.92902, 19.176563),
    (46.372356, 56.31139, 30.77057),
    (57.34348, 42.419125, 37.628628),
    (64.38848, 25.45588, 40.88631),
    (68.212036, 6.990805, 42.28145),
    (70.486404, -11.666193, 44.142567),
    (71.375824, -30.36519, 47.140427),
    (-61.119408, -49.361603, 14.254422),
    (-51.287586, -58.769794, 7.268147),
    (-37.8048, -61.996155, 0.442051),
    (-24.022755, -61.033398, -6.606501),
    (-11.635713, -56.68676, -11.967398),
    (12.056636, -57.391033, -12.051204),
    (25.106256, -61.902187, -7.315098),
    (38.33859, -62.777714, -1.022953),
    (51.191006, -59.302345, 5.349435),
    (60.053852, -50.190254, 11.615746),
    (1.226783, -8.414541, -36.94806),
    (-14.772472, 2.598255, -20.132004),
    (-7.180239, 4.751589, -23.536684),
    (0.55592, 6.5629, -25.944448),
    (8.272499, 4.661005, -23.695742),
    (15.214351, 2.643046, -20.858156),
)

# Where the square of an aligned face lies in a picture: a similarity to the mean face, widened by the face type.
#
# Source: DeepFaceLab's behaviour; Umeyama, "Least-squares estimation of transformation parameters between two point
# patterns", PAMI 1991.

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


MOST_SHIFT = 0.02
"""Sides that an aligned picture's landmarks may lie from their place: the extractor puts them there exactly."""
MOST_RESIZE = 16
"""Times that a picture may have been reduced."""
LEAST_RESIZE = 0.1
"""Change of scale from which on a picture was resized; below, its landmarks may lie a little off."""
FAR = 0.25
"""Shift in sides, or share of the scale, from which on masks from landmarks lie visibly wrong."""


def resize_since(landmarks: ArrayLike, size: int, face_type: FaceType) -> float | None:
    """Return the factor by which an aligned picture was resized since its landmarks were written; 1: it was not.

    An aligned picture is cut out by its landmarks, so that the map from it to itself is the identity. If only its scale
    is another, the picture was enlarged or reduced; None: the landmarks are not those of such a picture.

    Args:
        landmarks: x, y in pixels, [68, 2].
        size: side of the picture in pixels.
        face_type: of the picture; those that are not turned upright say nothing.

    Raises:
        BadInput: the landmarks lie on one line, or are no numbers.
    """
    if not face_type.is_option:
        return 1.0
    try:
        with np.errstate(all="ignore"):
            matrix = alignment_matrix(landmarks, size, face_type)
            scale = float(np.sqrt(abs(np.linalg.det(matrix[:, :2]))))
    except np.linalg.LinAlgError:
        return None
    shift = float(abs(matrix[:, :2] * size - np.eye(2) * scale * size).max() + abs(matrix[:, 2]).max()) / size
    if shift <= MOST_SHIFT * max(1.0, scale) and 1 <= round(size / scale) <= MOST_RESIZE * size:
        return 1.0 if abs(scale - 1) <= LEAST_RESIZE else size / round(size / scale)
    return 1.0 if shift <= FAR and abs(scale - 1) <= FAR else None


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


# Which way an aligned face looks: a mean face in space, placed so that its projection meets the landmarks.
#
# Source: DeepFaceLab's behaviour


def yaw(face: Face) -> float:
    """Return how far the face is turned to the side, in radians; its mirror image has the negative.

    Raises:
        BadInput: OpenCV is not installed.
    """
    return pitch_yaw_roll(face.landmarks, face.width)[1]


def pitch_yaw_roll(landmarks: ArrayLike, size: int) -> tuple[float, float, float]:
    """Return the turn of a face about the picture's x, y and z axes, in radians within ±π/2.

    Args:
        landmarks: x, y in pixels, [68, 2].
        size: of the picture in pixels, which stands for the camera's focal length too.

    Raises:
        BadInput: OpenCV is not installed.
    """
    cv2 = opencv()
    points = np.array(POSE_POINTS)  # [33, 3]
    seen = np.asarray(landmarks, np.float64)[list(POSE_LANDMARKS)]  # [33, 2]
    camera = np.array([[size, 0.0, size / 2], [0.0, size, size / 2], [0.0, 0.0, 1.0]])
    _, rotation, shift = cv2.solvePnP(points, seen, camera, None)
    # OpenCV 5 stops up to 5e-4 rad before the best fit, where OpenCV 4 ended: this goes on to within 5e-6 of it
    until = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, 100, 1e-12)
    rotation, _ = cv2.solvePnPRefineVVS(points, seen, camera, None, rotation, shift, until)
    matrix, _ = cv2.Rodrigues(rotation)  # [3, 3] = Rz Ry Rx
    around_x = math.atan2(matrix[2, 1], matrix[2, 2])
    around_y = math.atan2(-matrix[2, 0], math.hypot(matrix[0, 0], matrix[1, 0]))
    around_z = math.atan2(matrix[1, 0], matrix[0, 0])
    pitch, turn, roll = (min(max(angle, -math.pi / 2), math.pi / 2) for angle in (-around_x, around_y, around_z))
    return pitch, turn, roll


# Masks drawn from the landmarks: the whole face, and its eyes and mouth.
#
# Source: DeepFaceLab's behaviour. Which points the brows move away from, that the mouth is the inner lips, and which
# hulls make up a face was found from masks that it made, which these equal bit for bit. All work on landmarks cut to
# whole pixels.

Mask = NDArray[np.float32]

_EYES = (range(36, 42), range(42, 48))
_MOUTH = (range(60, 68),)
_BROWS = range(17, 27)
_UNDER_NOSE = range(31, 36)
_CHIN = 8
_FACE = (  # groups whose hulls, one over the other, are the face: less than the hull of all, by up to 2.2 %
    (*range(9), 17),  # jaw to the chin, and the outer end of the brow above it
    (*range(8, 17), 26),
    (*range(17, 20), _CHIN),  # outer half of a brow
    (*range(24, 27), _CHIN),
    (*range(19, 25), _CHIN),  # between the middles of both brows
    (*range(17, 22), 27, *_UNDER_NOSE, _CHIN),  # a whole brow, and the nose
    (*range(22, 27), 27, *_UNDER_NOSE, _CHIN),
    tuple(range(27, 36)),  # the nose
)
# below each brow point but the two outer ones: the upper lids, from corner to corner
_UNDER_BROWS = (36, 37, 38, 39, 42, 43, 44, 45)


def face_mask(landmarks: ArrayLike, height: int, width: int, eyebrows_expand_mod: float = 1.0) -> Mask:
    """Return the face: convex hulls of eight groups of landmarks with raised brows, each filled.

    Args:
        landmarks: x, y in pixels, [68, 2].
        height: of the mask in pixels.
        width: of the mask in pixels.
        eyebrows_expand_mod: how far the brows are raised; 1 is by half their distance from the eyes.

    Returns:
        0 or 1, float32 [height, width].

    Raises:
        BadInput: OpenCV is not installed.
    """
    points = expanded_eyebrows(landmarks, eyebrows_expand_mod)
    cv2 = opencv()
    mask = np.zeros((height, width), np.uint8)
    for part in _FACE:
        cv2.fillConvexPoly(mask, cv2.convexHull(points[list(part)]), 1)
    return mask.astype(np.float32)


def expanded_eyebrows(landmarks: ArrayLike, mod: float = 1.0) -> NDArray[np.int32]:
    """Return the landmarks, int32 [68, 2], with the brows moved away from the eyes.

    Args:
        landmarks: x, y in pixels, [68, 2].
        mod: twice the share of the distance that they move.
    """
    points = np.asarray(landmarks).astype(np.int32)
    brows = points[_BROWS]  # [10, 2]
    # the outer end of a brow has nothing below it: a quarter of the way from the eye's corner to the jaw's end
    outer = (3 * points[[36, 45]] + points[[0, 16]]) // 4
    under = np.concatenate([outer[:1], points[list(_UNDER_BROWS)], outer[1:]])  # [10, 2]
    points[_BROWS] = (brows + mod * 0.5 * (brows - under)).astype(np.int32)
    return points


def eyes_mouth_mask(landmarks: ArrayLike, height: int, width: int) -> Mask:
    """Return eyes and mouth, each filled, widened by height / 32 and blurred by height / 16 pixels, and added up.

    Args:
        landmarks: x, y in pixels, [68, 2].
        height: of the mask in pixels.
        width: of the mask in pixels.

    Returns:
        0 to 1, float32 [height, width].

    Raises:
        BadInput: OpenCV is not installed.
    """
    points = np.asarray(landmarks).astype(np.int32)
    mask = np.zeros((height, width), np.float32)
    for parts in (_EYES, _MOUTH):
        _add_soft_hulls(mask, [points[part] for part in parts])
    return np.minimum(mask, 1, out=mask)


def _add_soft_hulls(mask: Mask, parts: list[NDArray[np.int32]]) -> None:
    """Add the hulls of some points, each int32 [n, 2], filled, widened and blurred."""
    cv2 = opencv()
    wide, soft = max(len(mask) // 32, 1), len(mask) // 16 | 1  # sides of the two kernels; the blur's must be odd
    # beyond this box all stays 0; to blur the whole mask would be the dearest step of a sample
    points = np.concatenate(parts)
    left, top = (points.min(axis=0) - wide - soft).clip(0)
    right, bottom = (points.max(axis=0) + wide + soft).clip(0)
    box = mask[top:bottom, left:right]
    if box.size == 0:
        return  # all of it outside the picture
    drawn = np.zeros(box.shape, np.float32)
    for part in parts:
        cv2.fillConvexPoly(drawn, cv2.convexHull(part - np.array([left, top], np.int32)), 1.0)
    drawn = cv2.dilate(drawn, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (wide, wide)))
    box += cv2.GaussianBlur(drawn, (soft, soft), 0)
