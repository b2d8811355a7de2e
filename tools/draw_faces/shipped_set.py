"""The zip of drawn faces that ships, as `frugan.faces.data.drawn_faces` reads it."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frugan.faces.data.drawn_faces import (
    FACES,
    FRAME_SIDE_PIXELS,
    SIDE_PIXELS,
    UNSEEN,
    UNSEEN_SIDE_PIXELS,
    Unseen,
    face_names,
    frame_names,
)
from frugan.faces.data.face import FaceType
from frugan.faces.data.faceset import ALIGNED, SOURCES
from frugan.faces.data.geometry import alignment_matrix
from tools.draw_faces.drawn_faceset import draw_faceset
from tools.draw_faces.frame import draw_frame
from tools.draw_faces.moment import draw_moment
from tools.draw_faces.people import PEOPLE

SEED = 0
SOURCE, DESTINATION = 0, 1  # of the PEOPLE
MOMENTS = {
    Unseen.SOURCE: (SOURCE, SOURCE),
    Unseen.DESTINATION: (DESTINATION, DESTINATION),
    Unseen.TRUTH: (SOURCE, DESTINATION),
}
"""Who is drawn, and in whose moments."""

_FRAME_QUALITY = 85
_SOME_DAY = (2026, 1, 1, 0, 0, 0)  # the same faces make the same file
_UNIX = 3  # system that the zip says it was made on
_READABLE = 0o644 << 16


def write_shipped_set(out: Path) -> None:
    """Draw everything and write it; the file appears when all is drawn.

    Args:
        out: the zip; replaced if it is there.
    """
    members: dict[str, bytes] = {}
    with TemporaryDirectory() as folder:
        for person, source in zip((SOURCE, DESTINATION), SOURCES.values(), strict=True):
            frames = Path(folder) / source
            draw_faceset(frames / ALIGNED, person, FACES, seed=SEED, size=SIDE_PIXELS, frames=frames)
            members |= {name: (Path(folder) / name).read_bytes() for name in face_names(source, FACES)}
            stored = zip(frame_names(source, FACES), frame_names(source, FACES, ".webp"), strict=True)
            members |= {webp: frame_webp(Path(folder) / name) for name, webp in stored}
    for which, (person, moments_of) in MOMENTS.items():
        pictures, landmarks = unseen(person, moments_of, range(UNSEEN))
        members[which.pictures] = _lossless(np.concatenate(pictures))
        members[which.landmarks] = _array(landmarks)
    write_members(out, members)


def write_members(out: Path, members: Mapping[str, bytes]) -> None:
    """Write a zip; the same members make the same file."""
    with ZipFile(out, "w") as archive:
        for name, content in members.items():
            about = ZipInfo(name, _SOME_DAY)
            about.create_system, about.external_attr = _UNIX, _READABLE
            archive.writestr(about, content, ZIP_DEFLATED, compresslevel=9)


def frame_webp(path: Path) -> bytes:
    """Return a frame as WebP, whose pixels differ by 1.8 of 255 on average: 3.5 KB, where a JPEG like them takes 7."""
    file = BytesIO()
    with Image.open(path) as frame:
        frame.save(file, "WEBP", quality=_FRAME_QUALITY, method=6)
    return file.getvalue()


def unseen(person: int, moments_of: int, which: range) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Draw a person in moments that come after those to train on, and cut out the whole face.

    Returns:
        pictures BGR [n, R, R, 3]; landmarks in the frame [n, 68, 2].
    """
    side = UNSEEN_SIDE_PIXELS
    pictures, landmarks = [], []
    for index in which:
        moment = draw_moment(SEED, moments_of, FACES + index)
        frame = draw_frame(PEOPLE[person], moment, FRAME_SIDE_PIXELS)
        matrix = alignment_matrix(frame.landmarks, side, FaceType.WHOLE_FACE)
        pictures.append(
            cv2.warpAffine(frame.picture, matrix, (side, side), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REPLICATE)
        )
        landmarks.append(frame.landmarks)
    return np.stack(pictures).astype(np.uint8), np.stack(landmarks)


def _lossless(picture: NDArray[np.uint8]) -> bytes:
    """Return a picture, BGR, as WebP that gives every byte back."""
    file = BytesIO()
    Image.fromarray(np.ascontiguousarray(picture[..., ::-1])).save(file, "WEBP", lossless=True, quality=100, method=6)
    return file.getvalue()


def _array(array: NDArray[np.float32]) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()
