"""Two people who do not exist, drawn by `tools/draw_faces`: faces to train on, and others to judge the training by.

The file is a zip: `data_src/aligned` and `data_dst/aligned` as in a DeepFaceLab workspace, JPEGs with metadata; and for
each `Unseen` a strip of pictures one below the other (lossless WebP) with their landmarks.
"""

from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.data.face import FaceType
from frugan.faces.data.faceset import ALIGNED, SOURCES
from frugan.faces.data.geometry import alignment_matrix, face_mask, opencv
from frugan.files import atomic_folder, refuse_full

FACES = 120
"""Training faces of each person."""

SIDE_PIXELS = 128
"""Side of the aligned training faces."""

UNSEEN = 40
"""Moments in which the two were drawn besides, for judging."""

UNSEEN_SIDE_PIXELS = 64
FRAME_SIDE_PIXELS = 256
"""Side of the frames that the unseen faces were cut from, in whose pixels their landmarks are."""


class Unseen(StrEnum):
    """Whom the unseen faces show: source and destination, each in moments of their own, and the perfect swap."""

    SOURCE = "src"
    DESTINATION = "dst"
    TRUTH = "truth"  # the source person in the destination's moments

    @property
    def pictures(self) -> str:
        """Name in the zip of uint8 [UNSEEN · R, R, 3]."""
        return f"unseen/{self}.webp"

    @property
    def landmarks(self) -> str:
        """Name in the zip of float32 [UNSEEN, 68, 2], x and y in pixels of the frame."""
        return f"unseen/{self}.npy"


@dataclass(frozen=True, eq=False)
class UnseenFaces:
    """Aligned whole faces."""

    pictures: NDArray[np.uint8]  # uint8 BGR [UNSEEN, R, R, 3]
    masks: NDArray[np.float32]  # 1 inside the face, float32 [UNSEEN, R, R]


def face_names(folder: str, count: int) -> list[str]:
    """Return where in the zip, and in a workspace, the first faces of a person are."""
    return [f"{folder}/{ALIGNED}/{index:05d}_0.jpg" for index in range(count)]


def write_drawn_faces(out: Path, faces: int = FACES) -> Path:
    """Write the first faces of both people as a DeepFaceLab workspace, whole or not at all.

    Args:
        out: the workspace to make, with data_src/aligned and data_dst/aligned in it; must not be there, or be empty.
        faces: of each person, 1 to `FACES`.

    Returns:
        The workspace.

    Raises:
        BadInput: another number of faces, or `out` is there already; nothing is written then.
    """
    if not 1 <= faces <= FACES:
        raise BadInput(f"{faces:,} faces: the set has {FACES} of each of the two people; expected 1 to {FACES}")
    refuse_full(out, "the drawn faces")
    with _shipped() as archive, atomic_folder(out) as folder:
        archive.extractall(folder, [name for source in SOURCES.values() for name in face_names(source, faces)])
    return out


def unseen_faces(which: Unseen) -> UnseenFaces:
    """Return the faces to judge by.

    Raises:
        BadInput: OpenCV is missing.
        RuntimeError: this OpenCV cannot read WebP.
    """
    cv2 = opencv()
    side, frame = UNSEEN_SIDE_PIXELS, FRAME_SIDE_PIXELS
    with _shipped() as archive:
        strip = cv2.imdecode(np.frombuffer(archive.read(which.pictures), np.uint8), cv2.IMREAD_COLOR)
        landmarks: NDArray[np.float32] = np.load(BytesIO(archive.read(which.landmarks)))
    if strip is None:
        raise RuntimeError(f"{which.pictures}: this build of OpenCV cannot read WebP; install opencv-python-headless")
    masks = np.stack(
        [
            cv2.warpAffine(
                face_mask(points, frame, frame),
                alignment_matrix(points, side, FaceType.WHOLE_FACE),
                (side, side),
                flags=cv2.INTER_LINEAR,
            )
            for points in landmarks
        ]
    )
    return UnseenFaces(strip.reshape(UNSEEN, side, side, 3), masks)


def _shipped() -> ZipFile:
    return ZipFile(BytesIO((files("frugan.faces.data") / "drawn_faces.zip").read_bytes()))
