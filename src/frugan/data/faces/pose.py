"""Which way an aligned face looks: a mean face in space, placed so that its projection meets the landmarks.

Source: DeepFaceLab's behaviour
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from frugan.data.faces.face import Face
from frugan.data.faces.mean_face import POSE_LANDMARKS, POSE_POINTS
from frugan.data.faces.opencv import opencv


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
