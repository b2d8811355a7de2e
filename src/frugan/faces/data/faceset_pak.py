"""DeepFaceLab's faceset.pak: many aligned JPEGs in one file, behind an index. Untrusted.

Layout, numbers uint64 little-endian: the version; the size of the index; the index, a pickled list of dicts; n + 1
offsets; the JPEGs one after another. Offsets count from the first JPEG, but the last is the file's size.
"""

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import (
    NotJpeg,
    face_from_metadata,
    mask_for_file,
    metadata_segments,
    polygons_for_file,
)
from frugan.faces.data.face import Face, FaceType
from frugan.files import atomic_file
from frugan.safe_pickle.reader import load_pickle
from frugan.safe_pickle.writer import Global, dump_pickle
from frugan.wording import shown

PAK_NAME = "faceset.pak"
VERSION = 1
HEADER = struct.Struct("<QQ")
OFFSET_BYTES = 8
SAMPLE_TYPE = ("samplelib.Sample", "SampleType")
FACE_TYPE = ("facelib.FaceType", "FaceType")
FACE_SAMPLE = 1  # SampleType.FACE
CURE = "Copy the file again, or pack the faces again, with DeepFaceLab or `frugan prepare`."


@dataclass(frozen=True, eq=False)
class Pak:
    """The index of a pak."""

    faces: tuple[Face, ...]  # what is known of each face, [n]
    ranges: tuple[tuple[int, int], ...]  # where each JPEG begins and ends in the file, [n]
    digest: str  # of index and offsets, 64 hexadecimal digits


def read_pak(path: Path) -> Pak:
    """Read the index of a pak; the JPEGs are left where they are.

    Raises:
        BadInput: not a pak, one of another version, cut off or damaged.
    """
    where = shown(str(path))
    try:
        with path.open("rb") as file:
            return read_index(file, os.fstat(file.fileno()).st_size, where)
    except OSError as error:
        raise BadInput(f"{where} cannot be read: {error.strerror}. Check the path and the rights.") from error


def read_index(file: BinaryIO, size: int, where: str) -> Pak:
    """Read the index at the beginning of an open pak of `size` bytes.

    Raises:
        BadInput: as `read_pak`.
    """
    header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        raise BadInput(f"{where} is too short for a faceset.pak. {CURE}")
    version, index_bytes = HEADER.unpack(header)
    if version != VERSION:
        raise BadInput(f"{where} is no faceset.pak of version {VERSION} (it says {version}). {CURE}")
    if index_bytes > size - HEADER.size:
        raise BadInput(f"{where} is cut off: its index takes {index_bytes:,} bytes, the file has {size:,}. {CURE}")
    index = file.read(index_bytes)
    # the sample type says that these are faces, whatever its number
    stand_ins = {SAMPLE_TYPE: lambda number: None, FACE_TYPE: FaceType}
    entries = load_pickle(index, f"{where}: its index", stand_ins)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadInput(f"{where}: its index is no list of faces. {CURE}")
    table = file.read((len(entries) + 1) * OFFSET_BYTES)
    if len(table) < (len(entries) + 1) * OFFSET_BYTES:
        raise BadInput(f"{where} is cut off before its {len(entries):,} faces. {CURE}")
    offsets = struct.unpack(f"<{len(entries) + 1}Q", table)
    ranges = _ranges(offsets, size, size - HEADER.size - index_bytes - len(table), where)
    faces = tuple(_face(entry, f"{where}: face {number}") for number, entry in enumerate(entries))
    return Pak(faces, ranges, sha256(header + index + table).hexdigest())


def _ranges(offsets: Sequence[int], size: int, pictures_bytes: int, where: str) -> tuple[tuple[int, int], ...]:
    """Return where each JPEG lies in a file of `size` bytes, of which the last `pictures_bytes` are the JPEGs."""
    *starts, last = offsets
    # the original writes the first of the two; the second is what its other offsets mean
    if last not in (size, pictures_bytes):
        raise BadInput(f"{where} is cut off or was added to: it was {last:,} bytes long and has {size:,}. {CURE}")
    ends = [*starts[1:], pictures_bytes][: len(starts)]
    if any(not start < end <= pictures_bytes for start, end in zip(starts, ends, strict=True)):
        raise BadInput(f"{where}: its offsets do not rise within the file. {CURE}")
    begin = size - pictures_bytes
    return tuple((begin + start, begin + end) for start, end in zip(starts, ends, strict=True))


def _face(entry: dict[str, Any], where: str) -> Face:
    name, shape, person = entry.get("filename"), entry.get("shape"), entry.get("person_name")
    if not isinstance(name, str) or not isinstance(person, str | None):
        raise BadInput(f"{where} has no file name, or a person's name that is no text. {CURE}")
    face_type = entry.get("face_type")
    if not _is_size(shape) or not isinstance(face_type, FaceType):
        raise BadInput(f"{where} ({shown(name)}) has no face type, or no shape of height, width, channels. {CURE}")
    return face_from_metadata(
        entry,
        where=f"{where} ({shown(name)})",
        name=name,
        face_type=face_type,
        size=(shape[0], shape[1]),
        mask=entry.get("xseg_mask_compressed"),
        person=person,
    )


def _is_size(shape: Any) -> TypeGuard[tuple[int, int, int]]:
    return isinstance(shape, tuple | list) and len(shape) == 3 and all(type(side) is int and side > 0 for side in shape)


def write_pak(
    out: Path,
    faces: Sequence[Face],
    jpegs: Iterable[bytes],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a pak as the original does, byte for byte; it appears under its name when it is complete.

    Args:
        out: its path.
        faces: what is known of each face.
        jpegs: their files, in the same order.
        progress: gets (faces done, faces in all).

    Raises:
        OSError: it cannot be written.
    """
    landmarks: list[NDArray[np.floating[Any]]] = [face.landmarks for face in faces]
    begin = HEADER.size + len(_index(faces, landmarks)) + (len(faces) + 1) * OFFSET_BYTES
    with atomic_file(out) as beside, beside.open("wb") as file:
        file.seek(begin)
        offsets = []
        for number, (face, jpeg) in enumerate(zip(faces, jpegs, strict=True)):
            offsets.append(file.tell() - begin)
            file.write(jpeg)
            landmarks[number] = _unrounded(face, jpeg)
            if progress is not None:
                progress(number + 1, len(faces))
        offsets.append(file.tell())
        file.seek(0)
        index = _index(faces, landmarks)  # as long as it was: every float takes 9 bytes
        file.write(HEADER.pack(VERSION, len(index)) + index + struct.pack(f"<{len(offsets)}Q", *offsets))
        file.flush()
        os.fsync(file.fileno())


def _unrounded(face: Face, jpeg: bytes) -> NDArray[np.floating[Any]]:
    """The face's landmarks as its own file has them, in float64, if they are the same ones, [68, 2]."""
    try:
        content = next((jpeg[one.content : one.end] for one in metadata_segments(jpeg)), b"")
        about = load_pickle(content, face.name)
        exact = np.asarray(about["landmarks"], np.float64)
    except (NotJpeg, BadInput, KeyError, TypeError, ValueError, OverflowError):
        return face.landmarks
    return exact if np.array_equal(exact.astype(np.float32), face.landmarks) else face.landmarks


def _index(faces: Sequence[Face], landmarks: Sequence[NDArray[np.floating[Any]]]) -> bytes:
    sample_type = Global(*SAMPLE_TYPE, (FACE_SAMPLE,))
    face_types = {face_type: Global(*FACE_TYPE, (int(face_type),)) for face_type in FaceType}
    return dump_pickle(
        [
            _entry(face, points, sample_type, face_types[face.face_type])
            for face, points in zip(faces, landmarks, strict=True)
        ]
    )


def _entry(face: Face, landmarks: NDArray[np.floating[Any]], sample_type: Global, face_type: Global) -> dict[str, Any]:
    # in the original they come out of a file of their own, with dtypes of their own
    points, byte = (np.dtype(np.dtype(kind), copy=True) for kind in (np.float32, np.uint8))
    mask, polygons = mask_for_file(face), polygons_for_file(face)["polys"]
    return {
        "sample_type": sample_type,
        "filename": face.name,
        "face_type": face_type,
        "shape": (face.height, face.width, 3),
        "landmarks": landmarks.tolist(),
        "seg_ie_polys": {"polys": [{**polygon, "pts": polygon["pts"].view(points)} for polygon in polygons]},
        "xseg_mask": None,
        "xseg_mask_compressed": None if mask is None else mask.view(byte),
        "eyebrows_expand_mod": face.eyebrows_expand_mod,
        "source_filename": face.source_filename,
        "person_name": face.person,
    }
