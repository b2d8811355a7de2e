"""Aligned faces in JPEGs with DeepFaceLab's metadata in an APP15 segment: read and checked. Untrusted."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.data.face import LANDMARKS, Face, FaceType, Polygon
from frugan.faces.data.geometry import resize_since
from frugan.safe_pickle.reader import load_pickle
from frugan.safe_pickle.writer import dump_pickle
from frugan.wording import shown

# The segments that come before a JPEG's pixels.
#
# By hand, though Pillow lists segments too: where a length is damaged it goes on at whatever looks like the next
# marker, and takes frames that no decoder here reads. Of 20,000 damaged faces it opened 5,500 that are refused by name
# here; they would show at the step that samples them.
#
# Source: ITU-T T.81, annex B.

START, SCAN, END = 0xD8, 0xDA, 0xD9
APP15 = 0xEF
FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # baseline, extended sequential, progressive: what decoders can read
AFTER_START = 2  # where the first segment begins
ALONE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length


class NotJpeg(Exception):
    """The bytes are no JPEG, or one that is cut off before its pixels; the text says which."""


class NoMetadata(BadInput):
    """A whole JPEG, and not one that the extractor made."""


@dataclass(frozen=True)
class Segment:
    """One marker with its content."""

    marker: int  # its second byte
    start: int  # where the marker begins in the file
    content: int  # where what follows its length begins
    end: int  # where the next marker begins


def segments(data: bytes) -> Iterator[Segment]:
    """Yield the segments up to the scan, which is the last one.

    Raises:
        NotJpeg: the bytes do not go on as a JPEG does, or end first.
    """
    if data[:AFTER_START] != bytes([0xFF, START]):
        raise NotJpeg("nothing but zeros, as a power loss leaves files" if data and not any(data) else "not a JPEG")
    position = AFTER_START
    while True:
        start = position
        if data[start : start + 1] != b"\xff":
            raise NotJpeg("cut off before its pixels" if start >= len(data) else "a damaged JPEG")
        while data[position : position + 1] == b"\xff":  # any number of them may stand before the marker's own byte
            position += 1
        if position + 3 > len(data):
            raise NotJpeg("cut off before its pixels")
        marker = data[position]
        if marker in ALONE:
            position += 1
            continue
        (length,) = struct.unpack_from(">H", data, position + 1)
        if marker in {0x00, START, END} or length < 2:
            raise NotJpeg("a damaged JPEG")
        content, position = position + 3, position + 1 + length
        if position > len(data):
            raise NotJpeg("cut off before its pixels")
        yield Segment(marker, start, content, position)
        if marker == SCAN:
            return


def picture_size(data: bytes) -> tuple[int, int]:
    """Return (height, width) of a JPEG in pixels.

    Raises:
        NotJpeg: no JPEG, a damaged one, or one of a rare kind.
    """
    frame = next((segment for segment in segments(data) if segment.marker in FRAMES), None)
    if frame is None:
        raise NotJpeg("a JPEG of a rare kind (lossless or arithmetic-coded)")
    if frame.end - frame.content < 5:
        raise NotJpeg("a damaged JPEG")
    _, height, width = struct.unpack_from(">BHH", data, frame.content)
    if not height or not width:
        raise NotJpeg("a JPEG without a size")
    return height, width


# What DeepFaceLab's dictionaries say of a face, checked, and the values that it expects back. Untrusted.
#
# Source: DeepFaceLab's behaviour.

MOST_SIDE = 8192  # pixels of a face or a mask; the extractor writes up to 2048
MOST_EYEBROWS = 10.0  # eyebrows_expand_mod; DeepFaceLab's own are 1 and 0.75
PNG_START = b"\x89PNG\r\n\x1a\n"
CURE = "Extract this face again with DeepFaceLab, or take the file out."


def face_from_metadata(
    about: Mapping[str, Any],
    *,
    where: str,
    name: str,
    face_type: FaceType,
    size: tuple[int, int],
    mask: Any,
    person: str | None = None,
) -> Face:
    """Return the face that a dictionary out of a file describes.

    Args:
        about: the dictionary.
        where: the file, for messages.
        name: of the picture.
        face_type: how much of the head it shows.
        size: height and width of the picture in pixels.
        mask: the entry with the encoded mask, or None.
        person: whose face it is.

    Raises:
        BadInput: an entry is missing or of another form than DeepFaceLab's, or lies far outside the picture.
    """
    if max(size) > MOST_SIDE:
        raise BadInput(f"{where}: {size[1]:,} x {size[0]:,} pixels; expected faces of at most {MOST_SIDE:,}. {CURE}")
    eyebrows = about.get("eyebrows_expand_mod", 1.0)
    eyebrows = 1.0 if eyebrows is None else eyebrows
    if not _is_number(eyebrows) or not 0 <= eyebrows <= MOST_EYEBROWS:
        raise BadInput(f"{where}: eyebrows_expand_mod is no number from 0 to {MOST_EYEBROWS:g}. {CURE}")
    landmarks = _numbers(about.get("landmarks"), (LANDMARKS, 2), f"{where}: landmarks")
    if np.ptp(landmarks, axis=0).min() < 1:
        raise BadInput(f"{where}: landmarks all lie on one line or point; that is no face. {CURE}")
    oddities: list[str] = []
    factor = _resize_since(landmarks, size, face_type, oddities)
    landmarks = landmarks * factor
    _check_inside(landmarks, size, f"{where}: landmarks")
    optional = {key: _optional(about, key, shape, oddities) for key, shape in UNUSED.items()}
    if not isinstance(source_filename := about.get("source_filename"), str | None):
        source_filename = None
        oddities.append(DAMAGED.format("source_filename"))
    return Face(
        name=name,
        face_type=face_type,
        height=size[0],
        width=size[1],
        landmarks=landmarks.astype(np.float32),
        eyebrows_expand_mod=float(eyebrows),
        polygons=_polygons(about.get("seg_ie_polys"), size, factor, oddities),
        xseg_mask=_mask(mask, where),
        source_filename=source_filename,
        person=person,
        source_landmarks=_fp32(optional["source_landmarks"]),
        source_rect=_fp32(optional["source_rect"]),
        image_to_face=optional["image_to_face_mat"],
        oddities=tuple(oddities),
    )


UNUSED: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"source_landmarks": (LANDMARKS, 2), "source_rect": (4,), "image_to_face_mat": (2, 3)}
)
"""Entries that training does not use, with their shapes."""
DAMAGED = "a damaged entry {}, which is left out"
NOT_SQUARE = "pictures that are not square, which are squeezed to a square"
MISFIT = "landmarks that are not where such pictures have them: masks made of them, and directions, may be wrong"
FAR_POLYGONS = "polygons far outside the picture, which are kept and not trained on"


def _resize_since(
    landmarks: NDArray[np.float64], size: tuple[int, int], face_type: FaceType, oddities: list[str]
) -> float:
    """Return the factor that brings landmarks to the picture's size; note what is odd about the two."""
    height, width = size
    if height != width:
        oddities.append(NOT_SQUARE)
        return 1.0
    factor = resize_since(landmarks, width, face_type)
    if factor is None:
        oddities.append(MISFIT)
        return 1.0
    if factor != 1:
        oddities.append(
            f"landmarks for pictures of {width / factor:.0f} pixels and not {width}: they are resized with them"
        )
    return factor


def polygons_for_file(face: Face) -> dict[str, Any]:
    """Return the face's polygons as `seg_ie_polys` holds them."""
    return {"polys": [{"type": int(polygon.include), "pts": polygon.points} for polygon in face.polygons]}


def mask_for_file(face: Face) -> NDArray[np.uint8] | None:
    """Return the face's encoded mask as files hold it, uint8 [bytes]."""
    return None if face.xseg_mask is None else np.frombuffer(face.xseg_mask, np.uint8)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _numbers(value: Any, shape: tuple[int, ...], what: str) -> NDArray[np.float64]:
    """Return an array or nested lists as float64 of that shape, -1 for any number.

    Raises:
        BadInput: of another shape, not of numbers, or not finite.
    """
    form = " x ".join("n" if count < 0 else str(count) for count in shape)
    if not _has_form(value, shape):
        raise BadInput(f"{what} are not {form} numbers. {CURE}")
    try:
        numbers = np.asarray(value, np.float64).reshape(shape)
    except OverflowError as error:  # an int beyond all floats
        raise BadInput(f"{what} are not {form} finite numbers. {CURE}") from error
    if not (abs(numbers) < np.finfo(np.float32).max).all():  # NaN neither
        raise BadInput(f"{what} are not {form} finite numbers. {CURE}")
    return numbers


def _has_form(value: Any, shape: tuple[int, ...]) -> bool:
    """Look before NumPy does, which would take text for numbers and make room for any size."""
    if not shape:
        return _is_number(value)
    if isinstance(value, np.ndarray):
        fits = value.ndim == len(shape) and all(w in (-1, n) for n, w in zip(value.shape, shape, strict=True))
        return fits and value.dtype.kind in "iuf"
    fits = isinstance(value, list | tuple) and shape[0] in (-1, len(value))
    return fits and all(_has_form(part, shape[1:]) for part in value)


def _optional(
    about: Mapping[str, Any], key: str, shape: tuple[int, ...], oddities: list[str]
) -> NDArray[np.float64] | None:
    """Return an entry that training does not use; one that is damaged is noted and left out."""
    if (value := about.get(key)) is None:
        return None
    try:
        return _numbers(value, shape, key)
    except BadInput:
        oddities.append(DAMAGED.format(key))
        return None


def _fp32(value: NDArray[np.float64] | None) -> NDArray[np.float32] | None:
    return None if value is None else value.astype(np.float32)


def _check_inside(points: NDArray[np.float64], size: tuple[int, int], what: str) -> None:
    """Refuse points further outside the picture than the picture is large.

    Some outside are normal: the jaw of a half face lies a third of the picture below it, and brows and hair rise above.
    Nothing of a face is a whole picture away, and drawing such points would overflow.
    """
    height, width = size
    for name, values, side in (("x", points[:, 0], width), ("y", points[:, 1], height)):
        if len(outside := _far_outside(values, side)):
            raise BadInput(
                f"{what}: {name} = {outside[0]:g} is more than a picture away from a picture of {width} x {height} "
                f"pixels. {CURE}"
            )


def _far_outside(values: NDArray[np.float64], side: int) -> NDArray[np.float64]:
    return values[(values < -side) | (values > 2 * side)]


def _polygons(value: Any, size: tuple[int, int], factor: float, oddities: list[str]) -> tuple[Polygon, ...]:
    """Return the polygons of {"polys": [{"type": 0 or 1, "pts": [n, 2]}]}, or of the old form [(0 or 1, [n, 2])].

    Nothing here draws them: what is wrong with them is noted, and damaged ones are left out.

    Args:
        factor: by which the picture was resized since.
    """
    if value is None:
        return ()
    listed = value.get("polys") if isinstance(value, dict) else value
    polygons: list[Polygon] = []
    try:
        for one in listed if isinstance(listed, list | tuple) else [listed]:
            kind, points = (one.get("type"), one.get("pts")) if isinstance(one, dict) else _pair(one)
            if not _is_number(kind) or kind not in (0, 1):
                raise BadInput(f"a polygon of kind {kind!r:.20}; expected 0 (exclude) or 1 (include)")
            outline = _numbers(points, (-1, 2), "points") * factor
            polygons.append(Polygon(bool(kind), outline.astype(np.float32)))
    except BadInput:
        oddities.append(DAMAGED.format("seg_ie_polys"))
        return ()
    sides = (0, size[1]), (1, size[0])
    if any(
        len(_far_outside(polygon.points[:, axis].astype(np.float64), side))
        for polygon in polygons
        for axis, side in sides
    ):
        oddities.append(FAR_POLYGONS)
    return tuple(polygons)


def _pair(value: Any) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, list | tuple) and len(value) == 2 else (None, None)


def _mask(value: Any, where: str) -> bytes | None:
    """Return the bytes of an encoded mask, uint8 [n] or [n, 1], whose header promises no more than it should."""
    if value is None:
        return None
    if (
        not isinstance(value, np.ndarray)
        or value.dtype != np.uint8
        or value.shape not in {(value.size,), (value.size, 1)}
    ):
        raise BadInput(f"{where}: its XSeg mask is no row of bytes. Make the mask again.")
    encoded = value.tobytes()
    try:
        if encoded.startswith(PNG_START) and len(encoded) >= 24:
            width, height = struct.unpack_from(">II", encoded, 16)
        else:
            height, width = picture_size(encoded)
    except NotJpeg as error:
        raise BadInput(f"{where}: its XSeg mask is neither a PNG nor a JPEG. Make the mask again.") from error
    if not 0 < max(height, width) <= MOST_SIDE:
        raise BadInput(
            f"{where}: an XSeg mask of {width:,} x {height:,} pixels; expected 1 to {MOST_SIDE:,}. Make the mask again."
        )
    return encoded


# A whole face.
#
# Source: DeepFaceLab's behaviour.

_PICKLE_START = b"\x80"  # other programs put their own things into APP15


def read_face_jpeg(data: bytes, where: str) -> Face:
    """Return what an aligned JPEG says of its face; no pixel is decoded.

    Args:
        data: the file; what comes before the pixels is enough.
        where: its path, for messages; the last part becomes the face's name.

    Raises:
        NoMetadata: a JPEG without metadata of a face.
        BadInput: no JPEG, or metadata that is no face's.
    """
    try:
        size = picture_size(data)
        contents = [data[segment.content : segment.end] for segment in metadata_segments(data)]
    except NotJpeg as error:
        raise BadInput(f"{where} is {error}; expected an aligned JPEG by DeepFaceLab's extractor.") from error
    if not contents:
        raise NoMetadata(f"{where} is a JPEG without face metadata; expected one by DeepFaceLab's extractor.")
    about = load_pickle(contents[0], f"{where}: the face metadata")
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


def metadata_segments(data: bytes) -> Iterator[Segment]:
    """Return the segments with DeepFaceLab's metadata of the face."""
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


# A face's metadata, written into a picture.

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
    return with_metadata(jpeg, _fitting(face, content), face.name)


Label = Literal["polygons", "xseg_mask"]
"""Fields of a `Face` that label it: drawn outlines, and the mask that was applied."""


def relabelled_jpeg(jpeg: bytes, face: Face, label: Label) -> bytes:
    """Return an aligned JPEG with the face's polygons or its mask, whatever else its metadata holds.

    Landmarks that were written for a picture of another size are brought to this one's with new polygons, which are in
    its pixels.

    Raises:
        BadInput: no JPEG with metadata of a face, or more metadata than a segment holds, 65,533 bytes.
    """
    try:
        content = next((jpeg[one.content : one.end] for one in metadata_segments(jpeg)), None)
    except NotJpeg as error:
        raise BadInput(f"{shown(face.name)} is {error}; expected the JPEG of an aligned face.") from error
    about = None if content is None else load_pickle(content, f"{face.name}: the face metadata")
    if not isinstance(about, dict):
        raise BadInput(f"{shown(face.name)} is a JPEG without face metadata; expected one by DeepFaceLab's extractor.")
    if label == "polygons":
        changes: dict[str, Any] = {"seg_ie_polys": polygons_for_file(face) if face.polygons else None}
        if not np.allclose(about["landmarks"], face.landmarks, atol=0.1):
            changes["landmarks"] = face.landmarks.tolist()
    else:
        changes = {"xseg_mask": mask_for_file(face)}
    content = dump_pickle({key: value for key, value in {**about, **changes}.items() if value is not None})
    return with_metadata(jpeg, _fitting(face, content), face.name)


def _fitting(face: Face, content: bytes) -> bytes:
    """Return encoded metadata that a segment holds.

    Raises:
        BadInput: they take more than 65,533 bytes.
    """
    if len(content) > MOST_CONTENT:
        raise BadInput(
            f"{shown(face.name)}: its metadata takes {len(content):,} bytes, of which {len(face.xseg_mask or b''):,} "
            f"are the mask and {sum(one.points.nbytes for one in face.polygons):,} points of polygons; a JPEG holds "
            f"{MOST_CONTENT:,}. Encode the mask as JPEG, or smaller; draw polygons with fewer points."
        )
    return content


def with_metadata(jpeg: bytes, content: bytes, name: str) -> bytes:
    """Return a JPEG with encoded metadata of at most 65,533 bytes, in place of what it had.

    Raises:
        BadInput: no JPEG.
    """
    try:
        picture_size(jpeg)
        end = max((segment.end for segment in segments(jpeg) if APP0 <= segment.marker <= APP15), default=AFTER_START)
        old = list(metadata_segments(jpeg))
    except NotJpeg as error:
        raise BadInput(f"{name} is {error}; expected the JPEG of an aligned face.") from error
    head = jpeg[:end]
    for segment in reversed(old):
        head = head[: segment.start] + head[segment.end :]
    return head + struct.pack(">BBH", 0xFF, APP15, len(content) + 2) + content + jpeg[end:]
