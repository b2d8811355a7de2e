"""Two people who do not exist, drawn by `tools/draw_faces`: faces to train on, and others to judge the training by.

The file is a zip: `data_src/aligned` and `data_dst/aligned` as in a DeepFaceLab workspace, JPEGs with metadata, and
beside them the frames that they were cut from (WebP); and for each `Unseen` a strip of pictures one below the other
(lossless WebP) with their landmarks.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import read_face_jpeg, relabelled_jpeg
from frugan.faces.data.face import Face, FaceType, Polygon
from frugan.faces.data.faceset import ALIGNED, SOURCES
from frugan.faces.data.geometry import alignment_matrix, face_mask, opencv
from frugan.files import atomic_folder, refuse_full

FACES = 120
"""Training faces of each person."""

SIDE_PIXELS = 128
"""Side of the aligned training faces."""

LABELLED = 10
"""Faces of each person, the first ones, whose files have polygons to train XSeg on."""

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


def frame_names(folder: str, count: int, suffix: str = ".png") -> list[str]:
    """Return where in a workspace the frames are that the first faces of a person were cut from.

    Args:
        suffix: of the files; in the zip ".webp".
    """
    return [f"{folder}/{index:05d}{suffix}" for index in range(count)]


def write_drawn_faces(out: Path, faces: int = FACES) -> Path:
    """Write the first faces of both people as a DeepFaceLab workspace, whole or not at all.

    Args:
        out: the workspace to make, with frames in data_src and data_dst and their faces in `aligned` there, of which
            `LABELLED` have polygons; must not be there, or be empty.
        faces: of each person, 1 to `FACES`.

    Returns:
        The workspace.

    Raises:
        BadInput: another number of faces, `out` is there already, or OpenCV is missing; nothing is written then.
        RuntimeError: this OpenCV cannot read WebP.
    """
    if not 1 <= faces <= FACES:
        raise BadInput(f"{faces:,} faces: the set has {FACES} of each of the two people; expected 1 to {FACES}")
    refuse_full(out, "the drawn faces")
    cv2 = opencv()
    with _shipped() as archive, atomic_folder(out) as folder:
        for source in SOURCES.values():
            (folder / source / ALIGNED).mkdir(parents=True)
            for index, name in enumerate(face_names(source, faces)):
                jpeg = archive.read(name)
                (folder / name).write_bytes(_labelled(jpeg, name) if index < LABELLED else jpeg)
            for name, stored in zip(frame_names(source, faces), frame_names(source, faces, ".webp"), strict=True):
                _, png = cv2.imencode(".png", _decoded(archive, stored))
                (folder / name).write_bytes(png.tobytes())
    return out


def _labelled(jpeg: bytes, name: str) -> bytes:
    face = read_face_jpeg(jpeg, name)
    return relabelled_jpeg(jpeg, replace(face, polygons=(outline(face),)), "polygons")


def true_mask(face: Face) -> NDArray[np.uint8]:
    """Return the mask of a drawn face that its landmarks tell, 0 or 1, [H, W]."""
    return face_mask(face.landmarks, face.height, face.width).astype(np.uint8)


def outline(face: Face) -> Polygon:
    """Return the outline of a drawn face's true mask."""
    cv2 = opencv()
    found, _ = cv2.findContours(true_mask(face), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    return Polygon(True, max(found, key=len)[:, 0].astype(np.float32))


def unseen_faces(which: Unseen) -> UnseenFaces:
    """Return the faces to judge by.

    Raises:
        BadInput: OpenCV is missing.
        RuntimeError: this OpenCV cannot read WebP.
    """
    cv2 = opencv()
    side, frame = UNSEEN_SIDE_PIXELS, FRAME_SIDE_PIXELS
    with _shipped() as archive:
        strip = _decoded(archive, which.pictures)
        landmarks: NDArray[np.float32] = np.load(BytesIO(archive.read(which.landmarks)))
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


def _decoded(archive: ZipFile, name: str) -> NDArray[np.uint8]:
    """A WebP's pixels, uint8 BGR [H, W, 3]."""
    cv2 = opencv()
    pixels: NDArray[np.uint8] | None = cv2.imdecode(np.frombuffer(archive.read(name), np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise RuntimeError(f"{name}: this build of OpenCV cannot read WebP; install opencv-python-headless")
    return pixels


def _shipped() -> ZipFile:
    return ZipFile(BytesIO((files("frugan.faces.data") / "drawn_faces.zip").read_bytes()))
