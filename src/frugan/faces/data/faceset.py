"""A set of aligned faces: a folder of DeepFaceLab's JPEGs, a workspace, or a faceset.pak. Untrusted."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from frugan.contract.data import LabelDigests
from frugan.data.formats.source import MOST_LOST, is_hidden, is_picture_name
from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import (
    NoMetadata,
    NotJpeg,
    metadata_segments,
    picture_size,
    read_face_jpeg,
    segments,
)
from frugan.faces.data.face import Face
from frugan.faces.data.faceset_pak import PAK_NAME, read_index, read_pak, write_pak
from frugan.faces.data.geometry import opencv, yaw
from frugan.files import atomic_folder, refuse_full
from frugan.wording import MIB, count, first_names, shown

EXPECTED = f"expected aligned JPEGs made by DeepFaceLab's extractor, or {PAK_NAME}"
HEAD_BYTES = 1 << 16  # of each JPEG are read at first: with the metadata, but for those with large masks
TAIL_BYTES = 4096  # of each, where it should end
MOST_FILE_BYTES = 256 * MIB  # of a JPEG: one of 8192 x 8192 pixels that are all noise
LABEL_DIGITS = 4  # hexadecimal, of a face's labels: one change in 65,536 is not counted
JPEG_SUFFIXES = (".jpg", ".jpeg")
END_OF_IMAGE = b"\xff\xd9"

Place = tuple[str, int, int, int]  # file, where the JPEG begins in it, where it ends, when the file was modified, in ns


@dataclass(frozen=True, eq=False)
class Faceset:
    """Metadata of N faces and the places of their JPEGs, without a picture."""

    faces: Sequence[Face]  # [N]
    digest: str  # of what the faces are, whatever the folder is called and whenever it was copied; 64 hex digits
    path: Path  # the folder or the pak
    places: Sequence[Place]  # of each JPEG, [N]
    # pictures without usable metadata, and folders that were not looked into (with a final "/")
    passed_over: tuple[str, ...] = ()
    damaged: frozenset[str] = frozenset()  # those of them that were faces: cut off, or with metadata that make no sense
    notes: tuple[str, ...] = ()  # lines on what was found beside or in it
    label_digests: LabelDigests | None = None  # of polygons and masks; None: of a pak, which knows no JPEG without
    # of paks that were written anew since: file and when -> where the JPEG of each person and name lies by now
    _repacked: dict[tuple[str, int], Mapping[tuple[str | None, str], tuple[int, int]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.faces)

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines on what was passed over, and on what is odd."""
        odd: dict[str, list[str]] = {}
        for face in self.faces:
            for oddity in face.oddities:
                odd.setdefault(oddity, []).append(face.name)
        lines = [f"{count(len(names), 'face')} with {oddity}: {first_names(names)}" for oddity, names in odd.items()]
        return (*self._left_out, *lines, *self.notes)

    @property
    def _left_out(self) -> Iterator[str]:
        """Lines on what was passed over: damaged faces, pictures that are none, and folders."""
        files = [name for name in self.passed_over if not name.endswith("/")]
        others = [name for name in files if name not in self.damaged]
        if damaged := [name for name in files if name in self.damaged]:
            all_of_them = f"{len(self) + len(files):,}"
            yield f"{count(len(damaged), 'damaged face')} of {all_of_them} left out: {first_names(damaged)}"
        if others:
            yield f"{count(len(others), 'picture')} without face metadata left out: {first_names(others)}"
        if folders := [name for name in self.passed_over if name.endswith("/")]:
            yield f"{count(len(folders), 'folder')} not looked into, beside pictures: {first_names(folders)}"

    @cached_property
    def yaws(self) -> NDArray[np.float64]:
        """How far each face is turned to the side, in radians, float64 [N]; 0.6 ms a face, once.

        Raises:
            BadInput: OpenCV is missing.
        """
        return np.array([yaw(face) for face in self.faces], np.float64)

    def has_changed(self, index: int) -> bool:
        """Return whether the file of a face has been written since the set was opened, and is still there."""
        file, _, _, modified_ns = self.places[index]
        try:
            return os.stat(file).st_mtime_ns != modified_ns
        except OSError:
            return False

    def encoded(self, index: int) -> bytes:
        """Return the JPEG of one face, as it is by now: masks may have been applied to the faces since.

        Raises:
            BadInput: it cannot be read any more.
        """
        file = self.places[index][0]
        try:
            with open(file, "rb") as opened:
                begin, end = self._range(index, opened)
                opened.seek(begin)
                data = opened.read(end - begin)
        except OSError as error:
            raise BadInput(
                f"{shown(file)} cannot be read any more: {error.strerror}. Is the disk still there?"
            ) from error
        if len(data) != end - begin:
            raise BadInput(f"{shown(file)} has changed while it was in use. Start again, from the last checkpoint.")
        return data

    def _range(self, index: int, opened: BinaryIO) -> tuple[int, int]:
        """Where a face's JPEG begins and ends in its file, which may have been written anew; as before if unknown."""
        file, begin, end, modified_ns = self.places[index]
        about = os.fstat(opened.fileno())
        if about.st_mtime_ns == modified_ns:
            return begin, end
        if begin == 0:  # a file of its own: in a pak the index comes first
            return 0, min(about.st_size, MOST_FILE_BYTES)
        if (version := (file, about.st_mtime_ns)) not in self._repacked:
            self._repacked.clear()
            self._repacked[version] = _ranges_by_name(opened, about.st_size, shown(file))
        face = self.faces[index]
        return self._repacked[version].get((face.person, face.name), (begin, end))

    def picture(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of one face, uint8 BGR [H, W, 3].

        Raises:
            BadInput: it cannot be read or decoded, has another size than its metadata says, or OpenCV is missing.
        """
        cv2 = opencv()
        face, data = self.faces[index], self.encoded(index)
        where = f"{shown(self.places[index][0])} ({shown(face.name)})"
        try:
            height, width = picture_size(data)  # decoding makes room for what the header promises
            *_, scan = segments(data)
        except NotJpeg as error:
            raise BadInput(f"{where} is {error}; {EXPECTED}.") from error
        if (height, width) != (face.height, face.width):
            raise BadInput(
                f"{where} has {width} x {height} pixels, but {face.width} x {face.height} by its metadata. Take it out."
            )
        if data.find(END_OF_IMAGE, scan.end) < 0:  # decoders fill in what is missing with grey
            raise BadInput(f"{where} is cut off. Copy it again, or take it out.")
        try:
            pixels: NDArray[np.uint8] | None = cv2.imdecode(
                np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
            )
        except cv2.error as error:
            raise BadInput(f"{where} cannot be decoded ({error.err}). Copy it again, or take it out.") from error
        if pixels is None:
            raise BadInput(f"{where} cannot be decoded. Copy it again, or take it out.")
        return pixels


def _ranges_by_name(pak: BinaryIO, size: int, where: str) -> Mapping[tuple[str | None, str], tuple[int, int]]:
    """Person and name -> where the JPEG lies in a pak; empty if it has become none, which its pictures will tell."""
    try:
        now = read_index(pak, size, where)
    except BadInput:
        return {}
    return {(face.person, face.name): place for face, place in zip(now.faces, now.ranges, strict=True)}


def open_faceset(path: Path) -> Faceset:
    """Open a folder of aligned JPEGs, the faceset.pak in a folder, or a pak by itself.

    As in the original, a faceset.pak wins over loose files, and folders within the folder are looked into only if it
    has no pictures itself: then each is a person.

    Raises:
        BadInput: no faces, more than a tenth of the pictures without usable metadata, or a damaged pak.
    """
    pak = path / PAK_NAME if path.is_dir() else path
    if pak.is_file():
        return replace(_open_pak(pak), notes=tuple(_loose_beside(pak)) if path.is_dir() else ())
    if not path.is_dir():
        raise BadInput(f"{shown(str(path))} does not exist; {EXPECTED}. Check the path.")
    try:
        names, folders = listed(path)
        if names:
            return _open_files(path, names, tuple(f"{name}/" for name in folders))
        inside = [f"{folder}/{name}" for folder in folders for name in listed(path / folder)[0]]
        return _open_files(path, inside, ())
    except BadInput as error:
        folders_of_faces = [path / ALIGNED, *(path / folder / ALIGNED for folder in SOURCES.values())]
        meant = [shown(str(folder)) for folder in folders_of_faces if folder.is_dir()]
        if not meant:
            raise
        raise BadInput(f"{error} Did you mean {' or '.join(meant)}?") from error


def pack_faceset(faceset: Faceset, out: Path, progress: Callable[[int, int], None] | None = None) -> Path:
    """Write a faceset as one faceset.pak; the loose files stay.

    Args:
        faceset: the faces.
        out: the file to write, or a folder to write faceset.pak into; must not exist.
        progress: gets (faces done, faces in all).

    Returns:
        The path of the pak.

    Raises:
        BadInput: it exists already, a face cannot be read, or there is no room.
    """
    pak = out / PAK_NAME if out.is_dir() else out
    if pak.exists():
        raise BadInput(f"{shown(str(pak))} exists already. Take it away, or choose another name.")
    try:
        write_pak(pak, faceset.faces, map(faceset.encoded, range(len(faceset))), progress)
    except OSError as error:
        raise BadInput(f"{shown(str(pak))} cannot be written: {error.strerror}.") from error
    return pak


def _open_pak(path: Path) -> Faceset:
    pak = read_pak(path)
    if not pak.faces:
        raise BadInput(f"no faces in {shown(str(path))}; {EXPECTED}.")
    unreadable: dict[str, str] = {}
    faces, places = [], []
    with path.open("rb") as file:
        modified_ns = os.fstat(file.fileno()).st_mtime_ns
        for face, (begin, end) in zip(pak.faces, pak.ranges, strict=True):
            try:
                refuse_cut_off(file, begin, end, f"{shown(str(path))} ({shown(face.name)})")
            except BadInput as error:
                unreadable[face.name] = str(error)
                continue
            faces.append(face)
            places.append((str(path), begin, end, modified_ns))
    _refuse_many(shown(str(path)), unreadable, len(pak.faces))
    return Faceset(tuple(faces), pak.digest, path, tuple(places), tuple(unreadable), frozenset(unreadable))


def _loose_beside(pak: Path) -> Iterator[str]:
    """Tell of pictures beside a pak, which the original does not read either; newer ones may be meant."""
    loose = listed(pak.parent)[0]
    if not loose:
        return
    packed_at = pak.stat().st_mtime
    newer = [name for name in loose if (pak.parent / name).stat().st_mtime > packed_at]
    what = f"{count(len(loose), 'picture')} beside {PAK_NAME} are not read, as in DeepFaceLab"
    if newer:
        what += f"; {len(newer):,} of them are newer than it: {first_names(newer)}. To train on them, take the pak away"
    yield what


def listed(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the pictures and of the folders in a folder, each in order."""
    try:
        with os.scandir(folder) as entries:
            visible = sorted((entry.name, entry.is_dir()) for entry in entries if not is_hidden(entry.name))
    except OSError as error:
        raise BadInput(f"cannot list {shown(str(folder))}: {error.strerror}. Check the rights.") from error
    pictures = [name for name, is_folder in visible if not is_folder and is_picture_name(name)]
    return pictures, [name for name, is_folder in visible if is_folder]


def _open_files(folder: Path, names: list[str], not_looked_into: tuple[str, ...]) -> Faceset:
    """Read the metadata of the pictures `names`, relative to `folder`; the part before a "/" is a person."""
    faces, places, unreadable, without = [], [], dict[str, str](), set[str]()
    digest, without_labels, labels = sha256(), sha256(), list[str]()
    for name in names:
        try:
            face, about, head = _read_head(folder / name)
        except BadInput as error:
            unreadable[name] = str(error)
            if isinstance(error, NoMetadata) or not name.lower().endswith(JPEG_SUFFIXES):
                without.add(name)
            continue
        person = name.rpartition("/")[0]
        faces.append(replace(face, person=person) if person else face)
        places.append((str(folder / name), 0, about.st_size, about.st_mtime_ns))
        digest.update(sha256(os.fsencode(name)).digest() + about.st_size.to_bytes(8, "little") + sha256(head).digest())
        picture_bytes = about.st_size - sum(one.end - one.start for one in metadata_segments(head))
        without_labels.update(sha256(os.fsencode(name)).digest() + picture_bytes.to_bytes(8, "little"))
        without_labels.update(face.landmarks.tobytes())
        labels.append(_label_digest(face))
    where = shown(str(folder))
    if not names:
        raise BadInput(f"no faces in {where}; {EXPECTED}.")
    _refuse_many(where, unreadable, len(names))
    return Faceset(
        tuple(faces),
        digest.hexdigest(),
        folder,
        tuple(places),
        (*unreadable, *not_looked_into),
        frozenset(unreadable.keys() - without),
        label_digests=LabelDigests(without_labels.hexdigest(), tuple(labels)),
    )


def _label_digest(face: Face) -> str:
    """Short, as checkpoints keep that of every face."""
    digest = sha256(face.xseg_mask or b"")
    for polygon in face.polygons:
        digest.update(bytes([polygon.include]) + polygon.points.tobytes() + b"/")
    return digest.hexdigest()[:LABEL_DIGITS]


def _refuse_many(where: str, unreadable: Mapping[str, str], number: int) -> None:
    if len(unreadable) > MOST_LOST * number:
        raise BadInput(
            f"{where}: no usable face in {len(unreadable):,} of {count(number, 'picture')}: "
            f"{first_names(list(unreadable), 8)}; up to a tenth would be left out: take them out, or name another "
            f"folder. The first: {next(iter(unreadable.values()))}"
        )


def refuse_cut_off(file: BinaryIO, begin: int, end: int, where: str) -> None:
    """Refuse a JPEG without an end: decoders fill in what is missing with grey, at the step that samples it.

    Args:
        file: holds it, from `begin` to `end`.

    Raises:
        BadInput: it is cut off.
    """
    tail = max(begin, end - TAIL_BYTES)
    file.seek(tail)
    if END_OF_IMAGE in file.read(end - tail) and tail > begin:
        return
    file.seek(begin)
    data = file.read(end - begin)
    try:
        *_, scan = segments(data)
    except NotJpeg:
        return  # told of in other words
    if data.find(END_OF_IMAGE, scan.end) < 0:
        raise BadInput(f"{where} is cut off. Copy it again, or take it out.")


def _read_head(path: Path) -> tuple[Face, os.stat_result, bytes]:
    """Return a file's face, what the system says about it, and as much of its content as was read for that.

    Raises:
        BadInput: it is no aligned JPEG.
    """
    where = shown(str(path))
    try:
        if not path.is_file():  # a pipe would be waited for, and a device never ends
            raise BadInput(f"{where} is no file. Take it out.")
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            size = about.st_size
            if size > MOST_FILE_BYTES:
                raise BadInput(f"{where} has {size:,} bytes; expected at most {MOST_FILE_BYTES:,}. Take it out.")
            head = file.read(HEAD_BYTES)
            refuse_cut_off(file, 0, size, where)
            try:
                return read_face_jpeg(head, where), about, head
            except BadInput:
                if len(head) == size:
                    raise
            file.seek(len(head))
            head += file.read(size - len(head))
            return read_face_jpeg(head, where), about, head
    except OSError as error:
        raise BadInput(f"{where} cannot be read: {error.strerror}.") from error


def pack(source: Path, out: Path, say: Callable[[str], None], progress: Callable[[int, int], None] | None) -> int:
    """Pack faces.

    Returns:
        How many.

    Raises:
        BadInput: no faces, or `out` exists.
    """
    faces = open_faceset(source)
    say(f"data: {len(faces.faces):,} faces in {faces.path}")
    for line in faces.lines:
        say(f"data: {line}")
    out.parent.mkdir(parents=True, exist_ok=True)
    pack_faceset(faces, out, progress)
    return len(faces)


def holds_pak(path: Path) -> bool:
    """Return whether a path is a faceset.pak, whatever its name, or a folder with one."""
    return path.suffix == Path(PAK_NAME).suffix if path.is_file() else (path / PAK_NAME).is_file()


def unpack(source: Path, out: Path, say: Callable[[str], None], progress: Callable[[int, int], None] | None) -> int:
    """Write the faces of a pak as loose files, those of each person into a folder; whole or not at all.

    Returns:
        How many.

    Raises:
        BadInput: no pak, `out` holds something, or a face has a name that no file can have here, or that of another.
    """
    faces = open_faceset(source)
    for line in faces.lines:
        say(f"data: {line}")
    write_loose(out, faces, map(faces.encoded, range(len(faces))), progress)
    return len(faces)


def write_loose(
    out: Path, faceset: Faceset, jpegs: Iterable[bytes], progress: Callable[[int, int], None] | None = None
) -> None:
    """Write the faces of a set as loose files, those of each person into a folder; whole or not at all.

    Args:
        out: the folder, new or empty.
        faceset: names them.
        jpegs: their files, in the same order.
        progress: gets (faces done, faces in all).

    Raises:
        BadInput: `out` holds something, or a face has a name that no file can have here, or that of another.
    """
    refuse_full(out, "the faces")
    with atomic_folder(out.absolute()) as beside:
        for number, (face, jpeg) in enumerate(zip(faceset.faces, jpegs, strict=True)):
            parts = [*(face.person.split("/") if face.person else []), face.name]
            path = beside.joinpath(*parts)
            is_taken = path.exists() or path.parent.is_file()
            if is_taken or any(set(part) & set("/\\:\0") or part in ("", ".", "..") for part in parts):
                raise BadInput(
                    f"{shown(str(faceset.path))}: face {number} is called {shown('/'.join(parts))!r}, which is "
                    "no name for a file here, or that of another face"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg)
            if progress is not None:
                progress(number + 1, len(faceset))


SOURCES = {"src": "data_src", "dst": "data_dst"}
ALIGNED = "aligned"


def find_facesets(path: Path) -> dict[str, Path]:
    """Return where a workspace keeps its faces: "src" and "dst", each a folder that `open_faceset` opens.

    Args:
        path: the folder with data_src/aligned and data_dst/aligned in it.

    Raises:
        BadInput: one of them is missing.
    """
    where = shown(str(path))
    if not path.is_dir():
        raise BadInput(f"{where} is no folder; expected a DeepFaceLab workspace. Check the path.")
    folders = {side: path / folder / ALIGNED for side, folder in SOURCES.items()}
    missing = [f"{folder}/{ALIGNED}" for side, folder in SOURCES.items() if not folders[side].is_dir()]
    if missing:
        raise BadInput(
            f"{where} has no {' and no '.join(missing)}; looked there for aligned faces or {PAK_NAME}, as in a "
            "DeepFaceLab workspace. Give the workspace folder itself, or each folder: --data src=PATH --data dst=PATH."
        )
    return folders
