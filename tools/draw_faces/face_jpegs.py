"""JPEGs with what DeepFaceLab's extractor says of a face: the inverse of `read_face_jpeg`."""

import struct
from typing import Any

from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import (
    AFTER_START,
    APP15,
    NotJpeg,
    mask_for_file,
    metadata_segments,
    picture_size,
    polygons_for_file,
    segments,
)
from frugan.faces.data.face import Face
from frugan.safe_pickle.writer import dump_pickle

APP0 = 0xE0
MOST_CONTENT = 65_533  # bytes; a length takes 2 bytes and counts itself


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
        end = max((segment.end for segment in segments(jpeg) if APP0 <= segment.marker <= APP15), default=AFTER_START)
        old = list(metadata_segments(jpeg))
    except NotJpeg as error:
        raise BadInput(f"{face.name} is {error}; expected the JPEG of an aligned face.") from error
    head = jpeg[:end]
    for segment in reversed(old):
        head = head[: segment.start] + head[segment.end :]
    return head + struct.pack(">BBH", 0xFF, APP15, len(content) + 2) + content + jpeg[end:]
