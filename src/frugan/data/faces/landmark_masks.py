"""Masks drawn from the landmarks: the whole face, and its eyes and mouth.

Source: DeepFaceLab's behaviour. Which points the brows move away from, that the mouth is the inner lips, and which
hulls make up a face was found from masks that it made, which these equal bit for bit. All work on landmarks cut to
whole pixels.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from frugan.data.faces.opencv import opencv

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
