"""Facesets of drawn people, as DeepFaceLab's extractor would leave them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from frugan.faces.data.dfl_jpeg import write_face_jpeg
from frugan.faces.data.face import Face, FaceType
from frugan.faces.data.geometry import alignment_matrix, opencv, transform_points
from tools.draw_faces.frame import DrawnFrame, draw_frame
from tools.draw_faces.moment import draw_moment
from tools.draw_faces.people import PEOPLE
from tools.draw_faces.person import Person

_JPEG_QUALITY = 95
_FRAME_SHARE = 0.75  # half of a frame's side, in sides of the aligned picture: pixels of about the same size


def draw_faceset(
    out: Path,
    person_index: int,
    count: int,
    *,
    seed: int,
    size: int = 192,
    face_type: FaceType = FaceType.WHOLE_FACE,
    people: Sequence[Person] = PEOPLE,
    frames: Path | None = None,
) -> list[Path]:
    """Draw frames of a person, cut out the aligned faces and write them as JPEGs with DeepFaceLab's metadata.

    Args:
        out: folder; made if missing.
        person_index: which of the people; has moments of its own.
        count: how many faces.
        seed: of the moments drawn.
        size: side of the aligned pictures in pixels, at least 64.
        face_type: how much of the head they show.
        people: those who can be drawn.
        frames: folder for the frames too, as the files that the faces say they are of; made if missing.

    Returns:
        the files, 00000_0.jpg and so on.

    Raises:
        ValueError: no such person, or a negative count.
        BadInput: OpenCV is not installed.
    """
    if person_index not in range(len(people)) or count < 0:
        raise ValueError(f"person {person_index}, count {count}: expected 0 to {len(people) - 1}, and at least 0")
    cv2, person = opencv(), people[person_index]
    for folder in filter(None, (out, frames)):
        folder.mkdir(parents=True, exist_ok=True)
    files = []
    for index in range(count):
        file = out / f"{index:05d}_0.jpg"
        frame = draw_frame(person, draw_moment(seed, person_index, index), 2 * round(_FRAME_SHARE * size))
        file.write_bytes(_aligned_jpeg(frame, _frame_name(index), size, face_type, file.name))
        if frames is not None:
            cv2.imwrite(str(frames / _frame_name(index)), frame.picture)
        files.append(file)
    return files


def _frame_name(index: int) -> str:
    return f"{index:05d}.png"


def _aligned_jpeg(frame: DrawnFrame, frame_name: str, size: int, face_type: FaceType, name: str) -> bytes:
    cv2 = opencv()
    matrix = alignment_matrix(frame.landmarks, size, face_type)
    picture = cv2.warpAffine(
        frame.picture, matrix, (size, size), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    how = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1]  # the same pixels in 5 % fewer bytes
    written, jpeg = cv2.imencode(".jpg", picture, how)
    if not written:
        raise RuntimeError(f"{name}: OpenCV cannot write JPEGs")
    left, top = np.floor(frame.landmarks.min(axis=0))
    right, bottom = np.ceil(frame.landmarks.max(axis=0))
    face = Face(
        name=name,
        face_type=face_type,
        height=size,
        width=size,
        landmarks=transform_points(matrix, frame.landmarks).astype(np.float32),
        source_filename=frame_name,
        source_landmarks=frame.landmarks,
        source_rect=np.array([left, top, right, bottom], np.float32),
        image_to_face=matrix.astype(np.float64),
    )
    return write_face_jpeg(jpeg.tobytes(), face)
