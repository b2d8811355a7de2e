"""The original's own faceset and what it made of it."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from frugan.faces.data.dfl_jpeg import read_face_jpeg
from frugan.faces.data.face import Face

GOLDEN = Path(__file__).parents[2] / "golden" / "saehd"
OPENCV_4 = int(cv2.__version__.split(".")[0]) < 5
"""The recordings are OpenCV 4.10's. From 5 on, it no longer rounds where a pixel comes from to 1/32 pixel."""


def expected_faces() -> list[dict[str, Any]]:
    """What the original read from each of the 8 pictures."""
    faces: list[dict[str, Any]] = json.loads((GOLDEN / "faceset" / "aligned_expected.json").read_text())
    return faces


def load_face(index: int) -> tuple[Face, NDArray[np.uint8]]:
    """Return one of the 8 faces and its picture."""
    path = GOLDEN / "faceset" / "aligned" / expected_faces()[index]["__file__"]
    data = path.read_bytes()
    return read_face_jpeg(data, path.name), np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), 1), np.uint8)


def recorded(name: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of one file of recordings."""
    with np.load(GOLDEN / "sample_proc" / name) as file:
        return dict(file)
