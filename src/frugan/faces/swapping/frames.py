"""Frames, the aligned faces that were cut from them, and the folder that swapped frames go into."""

import io
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import read_face_jpeg
from frugan.faces.data.face import Face, FaceType
from frugan.faces.data.faceset import Faceset
from frugan.faces.data.geometry import alignment_matrix, opencv
from frugan.files import atomic_file, read_json, write_flushed
from frugan.progress import Say
from frugan.wording import count, first_names, shown

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
SETTINGS_FILE = "swap.json"
"""Kept in OUT: how its frames were made, and of what, so that others do not mix with them."""
ORIGINS = "frames"
"""Key in it: frame's name -> digest of what it was made of."""
JPEG_QUALITY = 100
PNG_LEVEL = 1
"""Frames are many: packing them better takes several times as long."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame with the faces that were found in it."""

    number: int  # in the order of their names
    path: Path
    faces: tuple[Face, ...]  # with the landmarks that they have in it

    @property
    def origin(self) -> str:
        """Digest of what its swapped frame is made of: its file, by size and time, and where its faces are in it."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise BadInput(f"{shown(str(self.path))} cannot be read: {error.strerror}") from error
        digest = blake2b(f"{status.st_size} {status.st_mtime_ns}".encode(), digest_size=8)
        for face in self.faces:
            if face.source_landmarks is not None:
                digest.update(face.source_landmarks.tobytes())
        return digest.hexdigest()

    def picture(self) -> NDArray[np.uint8]:
        """Pixels, uint8 BGR [H, W, 3].

        Raises:
            BadInput: it cannot be read.
        """
        cv2 = opencv()
        try:
            content = np.frombuffer(self.path.read_bytes(), np.uint8)
        except OSError as error:
            raise BadInput(f"{shown(str(self.path))} cannot be read: {error.strerror}") from error
        pixels: NDArray[np.uint8] | None = None
        if len(content):
            pixels = cv2.imdecode(content, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        if pixels is None:
            raise BadInput(
                f"{shown(str(self.path))} cannot be decoded; extract it again, or take it out (what is done stays)"
            )
        return pixels

    def matrices(self, side: int, face_type: FaceType) -> list[NDArray[np.float32]]:
        """The map from the frame to the square of each face.

        Raises:
            BadInput: landmarks are those of no face.
        """
        try:
            landmarks = [face.source_landmarks for face in self.faces if face.source_landmarks is not None]
            return [alignment_matrix(points, side, face_type) for points in landmarks]
        except (BadInput, ValueError, np.linalg.LinAlgError) as error:
            raise BadInput(f"{shown(self.path.name)}: {error}; take its aligned face out") from error


def find_frames(folder: Path, faceset: Faceset, say: Say) -> list[Frame]:
    """Find the frames of a folder, in the order of their names, with those of a set's faces that were cut from them.

    Raises:
        BadInput: there are no frames, or no face belongs to one.
    """
    if not folder.is_dir():
        raise BadInput(f"{shown(str(folder))}: no such folder; expected the frames of a film, such as data_dst")
    paths = sorted((p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file()), key=_natural)
    if not paths:
        raise BadInput(f"{shown(str(folder))}: holds no frames; expected pictures ({', '.join(SUFFIXES)})")
    for line in faceset.lines:
        say(f"aligned: {line}")
    placed = [face for face in _in_full(faceset) if face.source_landmarks is not None and face.source_filename]
    if not placed:
        raise BadInput(
            f"{shown(str(faceset.path))}: none of its {count(len(faceset), 'face')} says where it was cut from (source "
            "landmarks); extract the faces again"
        )
    if lost := len(faceset) - len(placed):
        say(f"aligned: {count(lost, 'face')} without source landmarks left out: nobody can say where they belong")
    by_frame = _by_frame(paths, placed, say)
    if not by_frame:
        raise BadInput(
            f"{shown(str(faceset.path))}: its faces are of {first_names([str(f.source_filename) for f in placed])}, "
            f"and none of these is in {shown(str(folder))}; name the frames that they were cut from"
        )
    return [Frame(number, path, tuple(by_frame.get(path.name, ()))) for number, path in enumerate(paths)]


def _in_full(faceset: Faceset) -> Iterator[Face]:
    """Faces with what their own files say, which the list in a pak leaves out."""
    for at, face in enumerate(faceset.faces):
        if face.source_landmarks is None:
            with suppress(BadInput):
                yield read_face_jpeg(faceset.encoded(at), face.name)
                continue
        yield face


def _natural(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Key that sorts frame 9 before frame 10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], path.name


def _by_frame(paths: Sequence[Path], faces: Sequence[Face], say: Say) -> Mapping[str, list[Face]]:
    """Frame's name -> its faces; frames may have been converted to another kind of file since."""
    names = {path.name: path.name for path in paths}
    stems: dict[str, str | None] = {}
    for path in paths:
        stems[path.stem] = None if path.stem in stems else path.name  # two of them: neither
    found: dict[str, list[Face]] = {}
    elsewhere: list[str] = []
    for face in faces:
        source = str(face.source_filename).replace("\\", "/").rpartition("/")[2]
        frame = names.get(source) or stems.get(Path(source).stem)
        if frame is None:
            elsewhere.append(source)
        else:
            found.setdefault(frame, []).append(face)
    if elsewhere:
        say(f"aligned: {count(len(elsewhere), 'face')} of frames that are not there: {first_names(elsewhere)}")
    return found


@dataclass(eq=False)
class SwapFolder:
    """The folder that swapped frames go into, and what those that are there were made of."""

    path: Path
    settings: Mapping[str, Any]  # how its frames are made
    left: Sequence[Frame]  # to be made: those that it lacks, and those that changed
    changed: frozenset[str]  # names of those that are there, and are not known to be made of this frame and these faces
    now: Mapping[str, str]  # name -> digest of what a frame is made of now
    origins: dict[str, str]  # name -> digest of what it was made of, or will be where it is not there yet

    @contextmanager
    def making(self, frame: Frame) -> Iterator[Path]:
        """Give the path that a frame is to be written to; stopped in the middle, nothing is known of the frame."""
        name = frame.path.name
        self.origins.pop(name, None)
        yield self.path / name
        self.origins[name] = self.now[name]

    @property
    def done(self) -> int:
        """How many of its frames are there, made of what they are made of now."""
        return sum(self.origins.get(name) == now and (self.path / name).is_file() for name, now in self.now.items())

    def note(self, without: Collection[str] = ()) -> None:
        """Write what its frames are made of, if that is news."""
        origins = {name: self.origins[name] for name in sorted(self.origins) if name not in without}
        content = json.dumps({**self.settings, ORIGINS: origins}, indent=1).encode("utf-8")
        path = self.path / SETTINGS_FILE
        if not path.is_file() or path.read_bytes() != content:
            with atomic_file(path) as beside:
                write_flushed(beside, content)


def open_out(
    out: Path, frames: Sequence[Frame], settings: Mapping[str, Any], *, replace_files: bool = False
) -> SwapFolder:
    """Make the folder for swapped frames, or go on in it.

    Args:
        replace_files: it may hold frames of another model or other settings, which are then all to be made anew.

    Raises:
        BadInput: it holds other files, or frames of another model or other settings.
    """
    if out.exists() and not out.is_dir():
        raise BadInput(f"{shown(str(out))}: is a file; expected a folder for the frames")
    if out.exists() and out.resolve() == frames[0].path.parent.resolve():
        raise BadInput(f"{shown(str(out))}: holds the frames themselves; name another folder for the swapped ones")
    there = {path.name for path in out.iterdir()} if out.exists() else set()
    kept = out / SETTINGS_FILE
    if there and SETTINGS_FILE not in there:
        raise BadInput(
            f"{shown(str(out))}: holds {shown(min(there))}, which `frugan swap` did not write; name a new folder"
        )
    names = {frame.path.name for frame in frames}
    others = sorted(name for name in there - names - {SETTINGS_FILE} if not name.startswith("."))
    if others:
        raise BadInput(f"{shown(str(out))}: holds {shown(others[0])}, which is none of the frames; name a new folder")
    known: Any = {}
    if SETTINGS_FILE in there:
        damaged = BadInput(f"{shown(str(kept))} is damaged; name a new folder")
        before = read_json(kept, lambda error: damaged)
        known = before.pop(ORIGINS, {})
        if not isinstance(known, dict):
            raise damaged
        changed = sorted(name for name in {*before, *settings} if before.get(name) != settings.get(name))
        if changed and replace_files:
            known = {}
        elif changed:
            name = changed[0]
            raise BadInput(
                f"{shown(str(out))}: its frames were made with {name} {before.get(name)}, now it is "
                f"{settings.get(name)}; name a new folder, give what it was, or add --replace to make them all anew"
            )
    now = {frame.path.name: frame.origin for frame in frames}
    redone = frozenset(name for name in now if name in there and known.get(name) != now[name])
    left = [frame for frame in frames if frame.path.name not in there or frame.path.name in redone]
    origins = {name: origin for name in now if (origin := known.get(name) if name in redone else now[name])}
    folder = SwapFolder(out, settings, left, redone, now, origins)
    out.mkdir(parents=True, exist_ok=True)
    folder.note(without=redone)  # killed from here on, nothing is known of these
    return folder


def write_frame(path: Path, pixels: NDArray[np.uint8], about: Mapping[str, str]) -> None:
    """Write a frame as its name says, whole or not at all; JPEGs in the best quality.

    Args:
        pixels: BGR [H, W, 3].
        about: texts that it carries, as PNG text, EXIF or TIFF description; a BMP has no room for them.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    kind = Image.registered_extensions()[path.suffix.lower()]
    chunks, exif = PngInfo(), Image.Exif()
    for keyword, text in about.items():
        chunks.add_itxt(keyword, text)
    exif[ExifTags.Base.ImageDescription] = "\n".join(f"{keyword}: {text}" for keyword, text in about.items())
    options: Mapping[str, Mapping[str, Any]] = {
        "PNG": {"pnginfo": chunks, "compress_level": PNG_LEVEL},
        "JPEG": {"quality": JPEG_QUALITY, "exif": exif},
        "WEBP": {"lossless": True, "exif": exif},
        "TIFF": {"compression": "tiff_lzw", "exif": exif},
        "BMP": {},
    }
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1])).save(file, kind, **options[kind])
    with atomic_file(path) as beside:
        write_flushed(beside, file.getvalue())


def copy_frame(path: Path, to: Path) -> None:
    """Copy a frame byte for byte, whole or not at all.

    Raises:
        OSError: it cannot be read, or the disk is full or cannot be written.
    """
    with atomic_file(to) as beside:
        write_flushed(beside, path.read_bytes())
