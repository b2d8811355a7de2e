"""Frames of a film: drawn faces laid into backgrounds where their landmarks say they were."""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from frugan.faces.data.drawn_faces import write_drawn_faces
from frugan.faces.data.faceset import open_faceset
from frugan.faces.data.geometry import alignment_matrix

SIDE = 256


def background(number: int) -> NDArray[np.uint8]:
    """A smooth picture, uint8 BGR [SIDE, SIDE, 3]."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    waves = [np.sin(4 * rows + 3 * columns * k + number) for k in (1, 2, 3)]
    return np.stack([127 + 100 * wave for wave in waves], -1).astype(np.uint8)


def draw_film(folder: Path, faces: int, empty: int = 0) -> tuple[Path, Path]:
    """Draw frames with a face each, and some without.

    Returns:
        The folders of the frames and of the aligned faces.
    """
    workspace = write_drawn_faces(folder / "workspace", faces)
    aligned, frames = workspace / "data_dst" / "aligned", folder / "frames"
    frames.mkdir()
    faceset = open_faceset(aligned)
    for at, face in enumerate(faceset.faces):
        assert face.source_landmarks is not None
        matrix = alignment_matrix(face.source_landmarks, face.width, face.face_type)
        picture, frame = faceset.picture(at), background(at)
        where = np.full(picture.shape[:2], 255, np.uint8)
        back = cv2.WARP_INVERSE_MAP
        laid = cv2.warpAffine(picture, matrix, (SIDE, SIDE), flags=back | cv2.INTER_CUBIC)
        inside = cv2.warpAffine(where, matrix, (SIDE, SIDE), flags=back | cv2.INTER_NEAREST) > 0
        cv2.imwrite(str(frames / str(face.source_filename)), np.where(inside[..., None], laid, frame))
    for number in range(empty):
        cv2.imwrite(str(frames / f"{90000 + number}.png"), background(number))
    return frames, aligned
