"""Aligned faces in JPEGs with DeepFaceLab's metadata in an APP15 segment. Untrusted.

Source: DeepFaceLab's behaviour
"""

import struct
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from frugan.data.faces.face import Face
from frugan.data.faces.face_type import FaceType
from frugan.data.faces.jpeg_segments import (
    AFTER_START,
    APP0,
    APP15,
    MOST_CONTENT,
    NotJpeg,
    Segment,
    picture_size,
    segments,
)
from frugan.data.faces.metadata import face_from_metadata, mask_for_file, polygons_for_file
from frugan.errors import BadInput
from frugan.pickles.reader import load_pickle
from frugan.pickles.writer import dump_pickle

_PICKLE_START = b"\x80"  # other programs put their own things into APP15


def read_face_jpeg(data: bytes, where: str) -> Face:
    """Return what an aligned JPEG says of its face; no pixel is decoded.

    Args:
        data: the file; what comes before the pixels is enough.
        where: its path, for messages; the last part becomes the face's name.

    Raises:
        BadInput: no JPEG, no metadata in it, or metadata that is no face's.
    """
    try:
        size = picture_size(data)
        found = [data[segment.content : segment.end] for segment in _metadata_segments(data)]
    except NotJpeg as error:
        raise BadInput(f"{where} is {error}; expected an aligned JPEG by DeepFaceLab's extractor.") from error
    if not found:
        raise BadInput(f"{where} is a JPEG without face metadata; expected one by DeepFaceLab's extractor.")
    about = load_pickle(found[0], f"{where}: the face metadata")
    if not isinstance(about, dict):
        raise BadInput(f"{where}: the face metadata is a {type(about).__name__}; expected a dict. Extract it again.")
    return face_from_metadata(
        about,
        where=where,
        name=PurePath(where).name,
        face_type=_face_type(about.get("face_type", FaceType.FULL.in_files), where),
        size=size,
        mask=about.get("xseg_mask"),
    )


def write_face_jpeg(jpeg: bytes, face: Face) -> bytes:
    """Return a JPEG with the face's metadata, in place of what it had.

    Args:
        jpeg: the picture.
        face: what to say of it. Its person is not kept: that is the folder's name.

    Raises:
        BadInput: no JPEG, or more metadata than a segment holds, 65,533 bytes.
    """
    about: dict[str, Any] = {
        "face_type": face.face_type.in_files,
        "landmarks": face.landmarks.tolist(),
        "source_filename": face.source_filename,
        "source_rect": None if face.source_rect is None else face.source_rect.astype(int).tolist(),
        "source_landmarks": None if face.source_landmarks is None else face.source_landmarks.tolist(),
        "image_to_face_mat": face.image_to_face,
        "eyebrows_expand_mod": face.eyebrows_expand_mod if face.eyebrows_expand_mod != 1 else None,
        "seg_ie_polys": polygons_for_file(face) if face.polygons else None,
        "xseg_mask": mask_for_file(face),
    }
    content = dump_pickle({key: value for key, value in about.items() if value is not None})
    if len(content) > MOST_CONTENT:
        raise BadInput(
            f"{face.name}: its metadata takes {len(content):,} bytes, of which {len(face.xseg_mask or b''):,} are the "
            f"mask; a JPEG holds {MOST_CONTENT:,}. Encode the mask as JPEG, or smaller."
        )
    try:
        picture_size(jpeg)
        end = max((found.end for found in segments(jpeg) if APP0 <= found.marker <= APP15), default=AFTER_START)
        old = list(_metadata_segments(jpeg))
    except NotJpeg as error:
        raise BadInput(f"{face.name} is {error}; expected the JPEG of an aligned face.") from error
    head = jpeg[:end]
    for found in reversed(old):
        head = head[: found.start] + head[found.end :]
    return head + struct.pack(">BBH", 0xFF, APP15, len(content) + 2) + content + jpeg[end:]


def _metadata_segments(data: bytes) -> Iterator[Segment]:
    for segment in segments(data):
        if segment.marker == APP15 and data.startswith(_PICKLE_START, segment.content):
            yield segment


def _face_type(word: Any, where: str) -> FaceType:
    if not isinstance(word, str):
        raise BadInput(f"{where}: face_type is no text. Extract the face again with DeepFaceLab.")
    try:
        return FaceType.from_file(word)
    except BadInput as error:
        raise BadInput(f"{where}: {error}. Extract the face again with DeepFaceLab.") from error
