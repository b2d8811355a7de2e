"""Whether an aligned face was cut from a frame: names and landmarks alone fit those of another film too."""

import numpy as np
from numpy.typing import NDArray

from frugan.faces.data.face import LANDMARKS, Face
from frugan.faces.data.geometry import opencv

SIDE = 16
"""Pixels of the side at which the two are compared: what enhancing, compressing and resizing change is smaller."""
LEAST_LIKENESS = 0.7
"""Of drawn faces, those of other films reach 0.45, and 0.53 where face lies on face; the very ones have 0.99, and 0.82
where their contrast was equalised in parts, which is the worst of eight ways of editing."""
LEAST_DEVIATION = 1.0
"""Grey levels, of 255; what varies less shows nothing that could be compared."""


def likeness(frame: NDArray[np.uint8], face: Face, aligned: NDArray[np.uint8]) -> float | None:
    """Correlation of a face with what the frame has where it should have been cut, from -1 to 1; None: nobody can say.

    As a correlation it does not ask for the same brightness, contrast or colours.

    Args:
        frame: uint8 BGR [H, W, 3].
        aligned: the face's picture, uint8 BGR [h, w, 3].
    """
    there = face.source_landmarks
    if there is None or not np.isfinite(there).all():
        return None
    cv2 = opencv()
    points = np.column_stack([there.astype(np.float64), np.ones(LANDMARKS)])  # [68, 3]
    matrix = np.linalg.lstsq(points, face.landmarks.astype(np.float64), rcond=None)[0].T  # [2, 3]
    height, width = aligned.shape[:2]
    cut = cv2.warpAffine(frame, matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    greys = [cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY).astype(np.float32) for picture in (cut, aligned)]
    a, b = (cv2.resize(grey, (SIDE, SIDE), interpolation=cv2.INTER_AREA) for grey in greys)
    if min(a.std(), b.std()) < LEAST_DEVIATION:
        return None
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])
