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
from frugan.faces.data.face import LANDMARKS, Face, FaceType
from frugan.faces.data.faceset import Faceset, refuse_cut_off
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
MOST_COMPARED = 8
"""Faces, spread over the film, that are compared with their frames."""
LEAST_ALIKE = 0.25
"""Share of the compared faces that must be alike: some may have been painted over, or their frames exchanged."""
COMPARED_SIDE = 16
"""Pixels of the side at which a face and its frame are compared: enhancing, compressing and resizing change less."""
LEAST_LIKENESS = 0.7
"""Correlation from which on a face is alike. Drawn faces of another film reach 0.45, and 0.53 where face lies on face;
the very ones have 0.99, and 0.82 in the worst of seven ways of editing (contrast equalised in parts)."""
LEAST_DEVIATION = 1.0
"""Grey levels, of 255; what varies less shows nothing that could be compared."""


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
            content = self.path.read_bytes()
        except OSError as error:
            raise BadInput(f"{shown(str(self.path))} cannot be read: {error.strerror}") from error
        refuse_cut_off(io.BytesIO(content), 0, len(content), shown(str(self.path)))
        pixels: NDArray[np.uint8] | None = None
        if content:
            pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        if pixels is None:
            raise BadInput(f"{shown(str(self.path))} cannot be decoded; extract it again, or take it out")
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
        BadInput: there are no frames, no face belongs to one, or they belong to those of another film.
    """
    if not folder.is_dir():
        raise BadInput(f"{shown(str(folder))}: no such folder; expected the frames of a film, such as data_dst")
    paths = sorted((p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file()), key=_natural)
    if not paths:
        raise BadInput(f"{shown(str(folder))}: holds no frames; expected pictures ({', '.join(SUFFIXES)})")
    for line in faceset.lines:
        say(f"aligned: {line}")
    full = list(_in_full(faceset))
    placed = [face for face in full if face.source_landmarks is not None and face.source_filename]
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
    found = [Frame(number, path, tuple(by_frame.get(path.name, ()))) for number, path in enumerate(paths)]
    _refuse_those_of_another_film(found, faceset, {face: at for at, face in enumerate(full)})
    return found


def _refuse_those_of_another_film(frames: Sequence[Frame], faceset: Faceset, places: Mapping[Face, int]) -> None:
    """Refuse faces that do not look like what the frames show at their landmarks: all extractors use the same names.

    Args:
        places: face -> its place in the set.
    """
    pairs = [(frame, face) for frame in frames for face in frame.faces]
    alike: list[bool] = []
    for at in np.linspace(0, len(pairs) - 1, min(MOST_COMPARED, len(pairs))).round().astype(int):
        frame, face = pairs[at]
        with suppress(BadInput):  # what cannot be read is told of when its turn comes
            if (value := likeness(frame.picture(), face, faceset.picture(places[face]))) is not None:
                alike.append(value >= LEAST_LIKENESS)
    if alike and sum(alike) < LEAST_ALIKE * len(alike):
        raise BadInput(
            "these faces were not cut from these frames, whatever their names say: of "
            f"{count(len(alike), 'face')} looked at in {shown(str(faceset.path))}, {sum(alike)} look like what "
            f"{shown(str(frames[0].path.parent))} shows in their places; name the frames and the faces of one film, "
            "such as data_dst and data_dst/aligned"
        )


def likeness(frame: NDArray[np.uint8], face: Face, aligned: NDArray[np.uint8]) -> float | None:
    """Correlation of a face with what the frame has where it should have been cut, from -1 to 1; None: nobody can say.

    As a correlation it does not ask for the same brightness, contrast or colours.

    Args:
        frame: uint8 BGR [H, W, 3].
        aligned: the face's picture, uint8 BGR [h, w, 3].
    """
    there = face.source_landmarks
    if there is None or not np.isfinite(there).all():
        return None
    cv2 = opencv()
    points = np.column_stack([there.astype(np.float64), np.ones(LANDMARKS)])  # [68, 3]
    matrix = np.linalg.lstsq(points, face.landmarks.astype(np.float64), rcond=None)[0].T  # [2, 3]
    height, width = aligned.shape[:2]
    cut = cv2.warpAffine(frame, matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    greys = [cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY).astype(np.float32) for picture in (cut, aligned)]
    a, b = (cv2.resize(grey, (COMPARED_SIDE, COMPARED_SIDE), interpolation=cv2.INTER_AREA) for grey in greys)
    if min(a.std(), b.std()) < LEAST_DEVIATION:
        return None
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


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
    there = _names_in(out, frames)
    known = _origins_before(out, settings, replace_files=replace_files) if SETTINGS_FILE in there else {}
    now = {frame.path.name: frame.origin for frame in frames}
    redone = frozenset(name for name in now if name in there and known.get(name) != now[name])
    left = [frame for frame in frames if frame.path.name not in there or frame.path.name in redone]
    origins = {name: origin for name in now if (origin := known.get(name) if name in redone else now[name])}
    folder = SwapFolder(out, settings, left, redone, now, origins)
    out.mkdir(parents=True, exist_ok=True)
    folder.note(without=redone)  # killed from here on, nothing is known of these
    return folder


def _names_in(out: Path, frames: Sequence[Frame]) -> set[str]:
    """Names of the files in a folder for swapped frames, which need not exist.

    Raises:
        BadInput: it is a file, it is the folder of the frames themselves, or it holds something else than such frames.
    """
    where = shown(str(out))
    if not out.exists():
        return set()
    if not out.is_dir():
        raise BadInput(f"{where}: is a file; expected a folder for the frames")
    if out.resolve() == frames[0].path.parent.resolve():
        raise BadInput(f"{where}: holds the frames themselves; name another folder for the swapped ones")
    there = {path.name for path in out.iterdir()}
    if there and SETTINGS_FILE not in there:
        raise BadInput(f"{where}: holds {shown(min(there))}, which `frugan swap` did not write; name a new folder")
    ours = {frame.path.name for frame in frames} | {SETTINGS_FILE}
    others = sorted(name for name in there - ours if not name.startswith("."))
    if others:
        raise BadInput(f"{where}: holds {shown(others[0])}, which is none of the frames; name a new folder")
    return there


def _origins_before(out: Path, settings: Mapping[str, Any], *, replace_files: bool) -> Mapping[str, Any]:
    """Name -> origin of the frames that a folder notes; none where other settings made them and they may be replaced.

    Raises:
        BadInput: its note is damaged, or names other settings.
    """
    kept = out / SETTINGS_FILE
    damaged = BadInput(f"{shown(str(kept))} is damaged; name a new folder")
    before = read_json(kept, lambda error: damaged)
    known = before.pop(ORIGINS, {})
    if not isinstance(known, dict):
        raise damaged
    changed = sorted(name for name in {*before, *settings} if before.get(name) != settings.get(name))
    if changed and not replace_files:
        raise BadInput(_other_settings(out, changed[0], str(before.get(changed[0])), str(settings.get(changed[0]))))
    return {} if changed else known


def _other_settings(out: Path, name: str, before: str, now: str) -> str:
    """Message on a setting by which frames were made; of two checkpoints of a run their steps are enough."""
    was, is_now = (re.fullmatch(r"(.+) at step (\d+)", text) for text in (before, now))
    where = f"{shown(str(out))}: its frames were made"
    if was is not None and is_now is not None:
        checkpoint, folder = Path(was[1]).parent, Path(is_now[1]).parent.parent  # of the files with the weights
        if checkpoint.parent == folder and folder.name == "checkpoints":
            kept = f", or give RUN/{folder.name}/{checkpoint.name} as it was" if checkpoint.is_dir() else ""
            of = "" if name == "model" else f"{name} "
            return (
                f"{where} at {of}step {int(was[2]):,}, now it is {int(is_now[2]):,}; name a new folder, add --replace "
                f"to make them all anew{kept}"
            )
    return (
        f"{where} with {name} {before}, now it is {now}; name a new folder, give what it was, or add --replace to make "
        "them all anew"
    )


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
