"""What is known of one aligned picture, without its pixels."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frugan.data.faces.face_type import FaceType

LANDMARKS = 68


@dataclass(frozen=True, eq=False)
class Polygon:
    """One hand-drawn outline that adds to the face's mask or takes from it.

    Attributes:
        include: whether its inside belongs to the face.
        points: float32 [n, 2]: x, y in pixels of the aligned picture.
    """

    include: bool
    points: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Face:
    """One aligned picture's metadata (as its own extractor writes it).

    Attributes:
        name: file name, for messages.
        face_type: how much of the head it shows.
        height: of the picture in pixels.
        width: of the picture in pixels.
        landmarks: float32 [68, 2]: x, y in pixels of the aligned picture.
        eyebrows_expand_mod: how far the mask rises above the eyebrows; 1 is usual.
        polygons: hand-drawn outlines of the mask.
        xseg_mask: the mask as an encoded PNG or JPEG; its resolution may differ from the picture's.
        source_filename: the frame it was cut from.
        person: in sets of many people, whose face it is.
        source_landmarks: float32 [68, 2]: the landmarks in the frame. Only in JPEGs, as the next two.
        source_rect: float32 [4]: left, top, right, bottom of the found face in the frame.
        image_to_face: float64 [2, 3]: the map from the frame to the aligned picture.
    """

    name: str
    face_type: FaceType
    height: int
    width: int
    landmarks: NDArray[np.float32]
    eyebrows_expand_mod: float = 1.0
    polygons: tuple[Polygon, ...] = ()
    xseg_mask: bytes | None = None
    source_filename: str | None = None
    person: str | None = None
    source_landmarks: NDArray[np.float32] | None = None
    source_rect: NDArray[np.float32] | None = None
    image_to_face: NDArray[np.float64] | None = None
