"""faceset.pak: the original's is read, ours is what the original would have written, and damage is named."""

import json
import os
import pickle
import struct
from contextlib import suppress
from dataclasses import replace
from hashlib import sha1
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from faces.data.golden_faces import GOLDEN, load_face
from frugan.errors import BadInput
from frugan.faces.data.face import FaceType
from frugan.faces.data.faceset_pak import Pak, read_pak, write_pak
from frugan.safe_pickle.writer import Global, dump_pickle

PACKED = GOLDEN / "faceset" / "packed" / "faceset.pak"
JPEGS = sorted((GOLDEN / "faceset" / "aligned").glob("*.jpg"))


def expected() -> dict[str, Any]:
    about: dict[str, Any] = json.loads((GOLDEN / "faceset" / "packed_expected.json").read_text())
    return about


def items(path: Path, pak: Pak) -> list[bytes]:
    data = path.read_bytes()
    return [data[begin:end] for begin, end in pak.ranges]


def repack(path: Path) -> Pak:
    faces = [load_face(index)[0] for index in range(8)]
    write_pak(path, faces, (jpeg.read_bytes() for jpeg in JPEGS))
    return read_pak(path)


def test_the_originals_pak() -> None:
    about, pak = expected(), read_pak(PACKED)
    assert len(pak.faces) == about["n"]
    data_start = about["file_size"] - sum(sample["orig_size"] for sample in about["samples"])
    for face, sample, (begin, end), jpeg in zip(pak.faces, about["samples"], pak.ranges, JPEGS, strict=True):
        assert (face.name, face.face_type, face.person) == (sample["filename"], sample["face_type"], None)
        assert [face.height, face.width, 3] == sample["shape"]
        np.testing.assert_array_equal(face.landmarks[0], np.float32(sample["landmarks0"]))
        assert face.eyebrows_expand_mod == sample["eyebrows_expand_mod"]
        assert face.source_filename == sample["source_filename"]
        assert len(face.polygons) == sample["n_polys"]
        assert (face.xseg_mask is not None) == sample["has_xseg"]
        assert (begin, end - begin) == (sample["offset"], sample["orig_size"])  # "size" is overstated for the last
        assert begin >= data_start
        raw = PACKED.read_bytes()[begin:end]
        assert sha1(raw).hexdigest() == sample["orig_sha1"]
        assert raw == jpeg.read_bytes()


def test_ours_is_the_originals_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "faceset.pak"
    pak = repack(path)
    assert items(path, pak) == [jpeg.read_bytes() for jpeg in JPEGS]
    assert path.read_bytes() == PACKED.read_bytes()


def test_landmarks_that_are_not_those_of_the_file_count(tmp_path: Path) -> None:
    face, path = load_face(0)[0], tmp_path / "faceset.pak"
    moved = replace(face, landmarks=face.landmarks + np.float32(0.5))
    write_pak(path, [moved], [JPEGS[0].read_bytes()])
    np.testing.assert_array_equal(read_pak(path).faces[0].landmarks, moved.landmarks)


def test_read_again_it_is_the_same(tmp_path: Path) -> None:
    ours, theirs = repack(tmp_path / "a.pak"), read_pak(PACKED)
    for mine, original in zip(ours.faces, theirs.faces, strict=True):
        assert (mine.name, mine.face_type, mine.xseg_mask) == (original.name, original.face_type, original.xseg_mask)
        np.testing.assert_array_equal(mine.landmarks, original.landmarks)
        for one, other in zip(mine.polygons, original.polygons, strict=True):
            assert one.include == other.include
            np.testing.assert_array_equal(one.points, other.points)
    assert ours.digest == repack(tmp_path / "b.pak").digest == theirs.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pak", "b.pak"]  # nothing unfinished is left


def test_persons_and_progress(tmp_path: Path) -> None:
    face, seen = load_face(0)[0], []
    faces = [replace(face, person="Zoë"), replace(face, person=None)]
    write_pak(tmp_path / "x.pak", faces, [b"one", b"three"], lambda done, number: seen.append((done, number)))
    pak = read_pak(tmp_path / "x.pak")
    assert [face.person for face in pak.faces] == ["Zoë", None]
    assert items(tmp_path / "x.pak", pak) == [b"one", b"three"]
    assert seen == [(1, 2), (2, 2)]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Any:
        yield b"one"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_pak(tmp_path / "x.pak", [load_face(0)[0]] * 2, failing())
    assert not list(tmp_path.iterdir())


def test_only_the_index_is_read(tmp_path: Path) -> None:
    data = PACKED.read_bytes()
    large = 1 << 36  # 64 GiB, none of which is on the disk
    last = 16 + expected()["config_bytes"] + 8 * 8
    path = tmp_path / "faceset.pak"
    path.write_bytes(data[:last] + struct.pack("<Q", large) + data[last + 8 :])
    os.truncate(path, large)
    assert read_pak(path).ranges[-1][1] == large


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "sample_type": Global("samplelib.Sample", "SampleType", (1,)),
        "filename": "a.jpg",
        "face_type": Global("facelib.FaceType", "FaceType", (4,)),
        "shape": (64, 64, 3),
        "landmarks": [[1.0, 2.0], [30.0, 40.0]] * 34,
        "seg_ie_polys": None,
        "xseg_mask_compressed": None,
        "eyebrows_expand_mod": 1.0,
    } | changes


def pak_of(index: bytes, offsets: list[int] | None = None, pictures: bytes = b"picture") -> bytes:
    size = 16 + len(index) + 16 + len(pictures)
    offsets = [0, size] if offsets is None else offsets
    return struct.pack("<QQ", 1, len(index)) + index + struct.pack(f"<{len(offsets)}Q", *offsets) + pictures


ONE = dump_pickle([entry()])
TWO = dump_pickle([entry(), entry()])


def test_the_smallest_pak(tmp_path: Path) -> None:
    path = tmp_path / "x.pak"
    path.write_bytes(pak_of(ONE))
    pak = read_pak(path)
    assert items(path, pak) == [b"picture"]
    assert pak.faces[0].face_type is FaceType.WHOLE_FACE
    path.write_bytes(pak_of(ONE, [0, len(b"picture")]))  # as if the last offset counted like the others
    assert items(path, read_pak(path)) == [b"picture"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "too short for a faceset.pak"),
        (struct.pack("<QQ", 2, 5) + b"12345", r"no faceset\.pak of version 1 \(it says 2\)"),
        (b"\xff\xd8\xff\xe0" * 9, "no faceset.pak of version 1"),
        (struct.pack("<QQ", 1, 2**60) + b"12345", "is cut off: its index takes"),
        (pak_of(ONE)[:-1], "is cut off or was added to"),
        (pak_of(ONE) + b"x", "is cut off or was added to"),
        (pak_of(ONE)[: -len(b"picture") - 1], "is cut off before its 1 faces"),
        (pak_of(TWO, [0, 0, 7]), "offsets do not rise"),
        (pak_of(TWO, [0, 8, 7]), "offsets do not rise"),
        (pak_of(TWO, [3, 2, 7]), "offsets do not rise"),
        (pak_of(TWO, [0, 2**63, 7]), "offsets do not rise"),
        (pak_of(dump_pickle({"a": 1})), "index is no list of faces"),
        (pak_of(dump_pickle([1])), "index is no list of faces"),
        (pak_of(dump_pickle([entry(filename=None)])), "face 0 has no file name"),
        (pak_of(dump_pickle([entry(person_name=3)])), "a person's name that is no text"),
        (pak_of(dump_pickle([entry(face_type=4)])), r"face 0 \(a.jpg\) has no face type"),
        (pak_of(dump_pickle([entry(shape=(64, 64))])), "no shape of height, width"),
        (pak_of(dump_pickle([entry(shape=(64, 0, 3))])), "no shape of height, width"),
        (pak_of(dump_pickle([entry(shape=(64, 10**6, 3))])), "1,000,000 x 64 pixels"),
        (pak_of(dump_pickle([entry(landmarks=[])])), r"face 0 \(a.jpg\): landmarks are not 68 x 2"),
        (pak_of(dump_pickle([entry(face_type=Global("facelib.FaceType", "FaceType", (7,)))])), "its index is damaged"),
        (pak_of(dump_pickle([entry(face_type=Global("os", "system", ("true",)))])), "its index refers to 'os.system'"),
        (pak_of(pickle.dumps([os.system])), "its index refers to 'posix.system|nt.system'"),
    ],
)
def test_wrong_paks(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "faceset.pak"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=message) as refused:
        read_pak(path)
    assert str(path) in str(refused.value)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_pak(tmp_path / "x.pak")


def test_cut_or_damaged_anywhere(tmp_path: Path) -> None:
    data, path, random = PACKED.read_bytes(), tmp_path / "faceset.pak", Random(1)
    for length in [*range(40), *(random.randrange(len(data)) for _ in range(60))]:
        path.write_bytes(data[:length])
        with pytest.raises(BadInput):
            read_pak(path)
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(3):
            damaged[random.randrange(20_000)] = random.randrange(256)
        path.write_bytes(damaged)
        with suppress(BadInput):
            assert len(read_pak(path).faces) == 8
