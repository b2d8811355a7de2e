"""Metadata of aligned faces in a file of its own, while other programs, which lose them, edit the pictures. Untrusted.

A zip with a member for each face, under its name: its JPEG up to the pixels.
"""

import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import (
    NotJpeg,
    metadata_segments,
    picture_size,
    read_face_jpeg,
    segments,
    with_metadata,
    write_face_jpeg,
)
from frugan.faces.data.face import Face
from frugan.faces.data.faceset import open_faceset
from frugan.files import atomic_file
from frugan.wording import MIB, count, first_names, shown

MOST_HEAD_BYTES = MIB
"""Largest head of a JPEG, before its pixels: some segments of 64 KiB."""

Say = Callable[[str], None]
Progress = Callable[[int, int], None]


def save_metadata(source: Path, out: Path, say: Say, progress: Progress | None) -> int:
    """Write the metadata of faces, and return of how many.

    Raises:
        BadInput: no faces, or `out` exists.
    """
    if out.exists():
        raise BadInput(f"{shown(str(out))} exists already. Take it away, or choose another name.")
    faces = open_faceset(source)
    for line in faces.lines:
        say(f"data: {line}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(out) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as file:
        for number, face in enumerate(faces.faces):
            jpeg = faces.encoded(number)
            *_, scan = segments(jpeg)
            file.writestr("/".join([*([face.person] if face.person else []), face.name]), jpeg[: scan.end])
            if progress is not None:
                progress(number + 1, len(faces))
    return len(faces)


def restore_metadata(source: Path, folder: Path, say: Say, progress: Progress | None) -> int:
    """Write metadata into the JPEGs of a folder that have their names, and return into how many.

    Where a picture has another size than before, landmarks, outlines and the map from the frame are resized with it.

    Raises:
        BadInput: the file is none, or no JPEG of the folder has a name in it; pictures before a faulty one are done.
    """
    with _opened(source) as file:
        names = [name for name in file.namelist() if _is_below(folder, name)]
        there = [name for name in names if (folder / name).is_file()]
        if not there:
            raise BadInput(
                f"{shown(str(folder))}: no picture there is called as in {shown(str(source))}: {first_names(names)}"
            )
        for number, name in enumerate(there):
            if file.getinfo(name).file_size > MOST_HEAD_BYTES:
                raise BadInput(f"{shown(str(source))}: {shown(name)} is larger than metadata are. Save them again.")
            with _as_bad_input(source):
                head = file.read(name)
            _restore(folder / name, head)
            if progress is not None:
                progress(number + 1, len(there))
    if missing := sorted({*file.namelist()} - {*there}):
        say(f"{count(len(missing), 'face')} without a picture in {shown(str(folder))}: {first_names(missing)}")
    return len(there)


def _opened(source: Path) -> zipfile.ZipFile:
    with _as_bad_input(source):
        return zipfile.ZipFile(source)


@contextmanager
def _as_bad_input(source: Path) -> Iterator[None]:
    """Refuse a file that cannot be read."""
    try:
        yield
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise BadInput(
            f"{shown(str(source))}: no file of face metadata that can be read ({error}). Save them again."
        ) from error


def _is_below(folder: Path, name: str) -> bool:
    return (folder / name).resolve().is_relative_to(folder.resolve())


def _restore(path: Path, head: bytes) -> None:
    face, jpeg = read_face_jpeg(head, str(path)), path.read_bytes()
    try:
        size = picture_size(jpeg)
    except NotJpeg as error:
        raise BadInput(f"{shown(str(path))} is {error}; expected a JPEG") from error
    if size == picture_size(head):
        segment = next(metadata_segments(head))
        edited = with_metadata(jpeg, head[segment.content : segment.end], path.name)
    else:
        edited = write_face_jpeg(jpeg, _resized(face, size))
    with atomic_file(path) as beside:
        beside.write_bytes(edited)
        shutil.copymode(path, beside)


def _resized(face: Face, size: tuple[int, int]) -> Face:
    """Return a face for a picture of another height and width."""
    factors = np.array([size[1] / face.width, size[0] / face.height])  # x, y
    matrix = None if face.image_to_face is None else face.image_to_face * factors[:, None]
    return replace(
        face,
        height=size[0],
        width=size[1],
        landmarks=(face.landmarks * factors).astype(np.float32),
        polygons=tuple(replace(one, points=(one.points * factors).astype(np.float32)) for one in face.polygons),
        image_to_face=matrix,
    )
