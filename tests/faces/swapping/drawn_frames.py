"""Frames of a film: the drawn ones of a person, and some with nobody on them."""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from frugan.faces.data.drawn_faces import write_drawn_faces

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
    frames = folder / "frames"
    frames.mkdir()
    for path in (workspace / "data_dst").glob("*.png"):
        path.rename(frames / path.name)
    for number in range(empty):
        cv2.imwrite(str(frames / f"{90000 + number}.png"), background(number))
    return frames, workspace / "data_dst" / "aligned"
