"""Aligned JPEGs: what the original wrote is read, what we write it would read, and the rest is refused by name."""

import io
import os
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from faces.data.golden_faces import GOLDEN, expected_faces
from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import DAMAGED, FAR_POLYGONS, MISFIT, NOT_SQUARE, read_face_jpeg, write_face_jpeg
from frugan.faces.data.face import Face, FaceType, Polygon
from frugan.safe_pickle.writer import dump_pickle

LANDMARKS = [[10.0 + i, 20.5 + i] for i in range(68)]


def golden(index: int) -> bytes:
    return (GOLDEN / "faceset" / "aligned" / f"{index:05}_0.jpg").read_bytes()


def jpeg(width: int = 100, height: int = 100, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "grey").save(file, "JPEG", **options)
    return file.getvalue()


def with_segment(content: bytes, into: bytes | None = None, marker: int = 0xEF) -> bytes:
    into = into or jpeg()
    return into[:2] + struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content + into[2:]


def with_metadata(about: Any, **options: Any) -> bytes:
    return with_segment(pickle.dumps(about), jpeg(**options))


def segment_of(data: bytes) -> dict[str, Any]:
    """Return the metadata as the original reads it: through Python's own pickle."""
    at = data.index(b"\xff\xef")
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    about: dict[str, Any] = pickle.loads(data[at + 4 : at + 2 + length])
    return about


@pytest.mark.parametrize("index", range(8))
def test_the_originals_faces(index: int) -> None:
    expected = expected_faces()[index]
    face = read_face_jpeg(golden(index), f"somewhere/{index:05}_0.jpg")
    assert face.name == expected["__file__"]
    assert face.face_type.in_files == expected["face_type"]
    assert [face.height, face.width, 3] == expected["__shape__"]
    np.testing.assert_array_equal(face.landmarks, np.float32(expected["landmarks"]))
    np.testing.assert_array_equal(face.source_landmarks, np.float32(expected["source_landmarks"]))
    np.testing.assert_array_equal(face.source_rect, np.float32(expected["source_rect"]))
    np.testing.assert_array_equal(face.image_to_face, expected["image_to_face_mat"])
    assert face.source_filename == expected["source_filename"]
    assert face.eyebrows_expand_mod == expected.get("eyebrows_expand_mod", 1.0)
    polygons = expected.get("seg_ie_polys", {"polys": []})["polys"]
    assert [polygon.include for polygon in face.polygons] == [polygon["type"] == 1 for polygon in polygons]
    for ours, polygon in zip(face.polygons, polygons, strict=True):
        np.testing.assert_array_equal(ours.points, np.float32(polygon["pts"]))
    mask = expected.get("__xseg__")
    assert (face.xseg_mask is None) == (mask is None)
    if mask is not None and face.xseg_mask is not None:
        assert len(face.xseg_mask) == mask["png_bytes"]
        assert list(Image.open(io.BytesIO(face.xseg_mask)).size) == mask["shape"][:2]


@pytest.mark.parametrize("index", range(8))
def test_written_faces_hold_what_the_originals_hold(index: int) -> None:
    data = golden(index)
    face = read_face_jpeg(data, "x.jpg")
    written = write_face_jpeg(data, face)
    ours, theirs = segment_of(written), segment_of(data)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert type(ours[key]) is type(value), key
    assert (ours["face_type"], ours["source_rect"]) == (theirs["face_type"], theirs["source_rect"])
    np.testing.assert_allclose(ours["landmarks"], theirs["landmarks"], rtol=0, atol=4e-6)  # float32 in between
    assert len(written) - len(data) == len(dump_pickle(ours)) - len(dump_pickle(theirs))
    assert written[written.index(b"\xff\xdb") :] == data[data.index(b"\xff\xdb") :]
    again = read_face_jpeg(written, "x.jpg")
    assert write_face_jpeg(written, again) == written


def test_the_metadata_comes_after_the_last_application_segment() -> None:
    picture = with_segment(b"Exif\0\0", jpeg(), marker=0xE1)
    face = Face("a.jpg", FaceType.HEAD, 100, 100, np.array(LANDMARKS, np.float32))
    written = write_face_jpeg(picture, face)
    assert written.index(b"\xff\xe1") < written.index(b"JFIF") < written.index(b"\xff\xef") < written.index(b"\xff\xdb")
    bare = picture[:2] + picture[picture.index(b"\xff\xdb") :]
    assert write_face_jpeg(bare, face)[2:4] == b"\xff\xef"
    foreign = with_segment(b"another program's", bare)
    written = write_face_jpeg(foreign, face)
    assert b"another program's" in written
    assert read_face_jpeg(written, "b.jpg").face_type is FaceType.HEAD
    assert write_face_jpeg(written, face) == written


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 100, "subsampling": 0}])
def test_kinds_of_jpeg(options: dict[str, Any]) -> None:
    data = with_metadata({"landmarks": LANDMARKS}, width=120, height=90, **options)
    face = read_face_jpeg(data, "x.jpg")
    assert (face.height, face.width, face.face_type) == (90, 120, FaceType.FULL)
    assert (face.polygons, face.xseg_mask, face.eyebrows_expand_mod) == ((), None, 1.0)
    filled = data.replace(b"\xff\xdb", b"\xff\xff\xff\xdb", 1)  # fill bytes before a marker
    assert read_face_jpeg(filled, "x.jpg").width == 120


def test_other_forms_of_the_entries() -> None:
    mask = np.frombuffer(golden_mask(), np.uint8)
    about = {
        "landmarks": np.array(LANDMARKS),
        "source_rect": np.array([1, 2, 3, 4]),
        "source_filename": None,
        "eyebrows_expand_mod": None,
        "seg_ie_polys": [(1, [[1, 2], [3, 4], [5, 6]]), (0, np.zeros((3, 2), np.float32))],  # the old form
        "xseg_mask": mask.reshape(-1, 1),
    }
    face = read_face_jpeg(with_metadata(about), "x.jpg")
    assert [polygon.include for polygon in face.polygons] == [True, False]
    assert face.polygons[0].points.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert face.xseg_mask == mask.tobytes()
    assert face.source_rect is not None
    assert face.source_rect.tolist() == [1, 2, 3, 4]


def golden_mask() -> bytes:
    mask = read_face_jpeg(golden(5), "x.jpg").xseg_mask
    assert mask is not None
    return mask


def bomb() -> bytes:
    mask = bytearray(golden_mask())
    mask[16:24] = struct.pack(">II", 60_000, 60_000)
    return bytes(mask)


MOVED = [[10.0, 10.0]] * 67
ROW = np.frombuffer


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({}, "landmarks are not 68 x 2 numbers"),
        ({"landmarks": LANDMARKS[:67]}, "landmarks are not 68 x 2 numbers"),
        ({"landmarks": [*MOVED, [1.0]]}, "landmarks are not 68 x 2 numbers"),
        ({"landmarks": [*MOVED, ["1", "2"]]}, "landmarks are not 68 x 2 numbers"),
        ({"landmarks": "x" * 68}, "landmarks are not 68 x 2 numbers"),
        ({"landmarks": np.zeros((68, 3))}, "landmarks are not 68 x 2 numbers"),
        ({"landmarks": [*MOVED, [1.0, float("nan")]]}, "landmarks are not 68 x 2 finite numbers"),
        ({"landmarks": [*MOVED, [1.0, float("inf")]]}, "landmarks are not 68 x 2 finite numbers"),
        ({"landmarks": [*MOVED, [1.0, 10**400]]}, "landmarks are not 68 x 2 finite numbers"),
        ({"landmarks": [*MOVED, [201.0, 5.0]]}, "landmarks: x = 201 is more than a picture away"),
        ({"landmarks": [*MOVED, [5.0, -101.0]]}, "landmarks: y = -101 is more than a picture away"),
        ({"landmarks": LANDMARKS, "face_type": "full"}, "face type 'full': expected one of half_face"),
        ({"landmarks": LANDMARKS, "face_type": 4}, "face_type is no text"),
        ({"landmarks": LANDMARKS, "eyebrows_expand_mod": float("nan")}, "eyebrows_expand_mod"),
        ({"landmarks": LANDMARKS, "eyebrows_expand_mod": "1"}, "eyebrows_expand_mod"),
        ({"landmarks": LANDMARKS, "xseg_mask": b"abc"}, "XSeg mask is no row of bytes"),
        ({"landmarks": LANDMARKS, "xseg_mask": np.zeros(3, np.float32)}, "XSeg mask is no row of bytes"),
        ({"landmarks": LANDMARKS, "xseg_mask": np.zeros(30, np.uint8)}, "neither a PNG nor a JPEG"),
        ({"landmarks": LANDMARKS, "xseg_mask": ROW(bomb(), np.uint8)}, "60,000 x 60,000"),
        ([LANDMARKS], "face metadata is a list"),
    ],
)
def test_other_metadata_is_refused(about: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        read_face_jpeg(with_metadata(about), "folder/a.jpg")
    assert str(refused.value).startswith("folder/a.jpg")


@pytest.mark.parametrize(
    ("about", "entry"),
    [
        ({"source_filename": 3}, "source_filename"),
        ({"source_rect": [1, 2, 3]}, "source_rect"),
        ({"source_landmarks": "x" * 68}, "source_landmarks"),
        ({"image_to_face_mat": np.zeros((2, 2))}, "image_to_face_mat"),
        ({"seg_ie_polys": 3}, "seg_ie_polys"),
        ({"seg_ie_polys": [3]}, "seg_ie_polys"),
        ({"seg_ie_polys": [(2, [])]}, "seg_ie_polys"),
        ({"seg_ie_polys": {"polys": [{"type": 1}]}}, "seg_ie_polys"),
    ],
)
def test_what_training_does_not_use_is_noted_and_left_out(about: dict[str, Any], entry: str) -> None:
    face = read_face_jpeg(with_metadata({"landmarks": LANDMARKS, **about}), "a.jpg")
    assert DAMAGED.format(entry) in face.oddities
    assert (face.source_filename, face.source_rect, face.source_landmarks, face.image_to_face) == (None,) * 4
    assert face.polygons == ()


def test_polygons_far_outside_are_noted_and_kept() -> None:
    about = {"landmarks": LANDMARKS, "seg_ie_polys": [(1, [[1e9, 0], [1, 2], [3, 4]])]}
    face = read_face_jpeg(with_metadata(about), "a.jpg")
    assert FAR_POLYGONS in face.oddities
    assert face.polygons[0].points.tolist() == [[1e9, 0], [1, 2], [3, 4]]


@pytest.mark.parametrize("side", [32, 100, 128, 130, 512])
def test_landmarks_of_resized_pictures_are_resized_with_them(side: int) -> None:
    """Faces of 128 pixels were enlarged or reduced by a program that keeps the metadata."""
    before = read_face_jpeg(golden(4), "a.jpg")
    assert before.oddities == ()
    points = before.landmarks.tolist()
    entries = {"landmarks": points, "face_type": before.face_type.in_files, "seg_ie_polys": [(1, points)]}
    face = read_face_jpeg(with_metadata(entries, width=side, height=side), "a.jpg")
    factor = 1 if side in (128, 130) else side / 128
    np.testing.assert_allclose(face.landmarks, before.landmarks * factor, rtol=1e-6)
    np.testing.assert_allclose(face.polygons[0].points, before.landmarks * factor, rtol=1e-6)
    words = f"landmarks for pictures of 128 pixels and not {side}: they are resized with them"
    assert face.oddities == (() if factor == 1 else (words,))


def test_landmarks_of_another_picture_are_noted() -> None:
    before = read_face_jpeg(golden(4), "a.jpg")
    assert before.face_type is FaceType.WHOLE_FACE
    moved = {"landmarks": before.landmarks + 40, "face_type": "whole_face"}
    assert read_face_jpeg(with_metadata(moved, width=128, height=128), "a.jpg").oddities == (MISFIT,)
    near = {"landmarks": before.landmarks + 9, "face_type": "whole_face"}  # another version's extractor
    assert read_face_jpeg(with_metadata(near, width=128, height=128), "a.jpg").oddities == ()
    unaligned = {"landmarks": before.landmarks + 40, "face_type": "head_no_align"}
    assert read_face_jpeg(with_metadata(unaligned, width=128, height=128), "a.jpg").oddities == ()


def test_pictures_that_are_not_square_are_noted() -> None:
    assert read_face_jpeg(with_metadata({"landmarks": LANDMARKS}, width=120, height=90), "a.jpg").oddities == (
        NOT_SQUARE,
    )


def test_landmarks_may_lie_outside() -> None:
    outside = [[-99.0, 199.0], *LANDMARKS[1:]]
    assert read_face_jpeg(with_metadata({"landmarks": outside}), "x.jpg").landmarks[0].tolist() == [-99, 199]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a JPEG"),
        (bytes(100), "is nothing but zeros, as a power loss leaves files"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not a JPEG"),
        (jpeg(), "without face metadata"),
        (with_segment(b"another program's"), "without face metadata"),
        (jpeg()[:100], "cut off before its pixels"),
        (b"\xff\xd8\xff\xe0\x00\x01", "a damaged JPEG"),
        (b"\xff\xd8\xff\xd9\x00\x02", "a damaged JPEG"),
        (b"\xff\xd8abc", "a damaged JPEG"),
        (jpeg().replace(b"\xff\xc0\x00\x11", b"\xff\xc3\x00\x11"), "a rare kind"),
        (jpeg().replace(b"\xff\xc0\x00\x11\x08\x00\x64\x00\x64", b"\xff\xc0\x00\x11\x08\x00\x00\x00\x64"), "a size"),
        (with_metadata({"landmarks": LANDMARKS}, width=8193, height=8), "8,193 x 8 pixels"),
        (with_segment(b"\x80\x04garbage"), "face metadata has the pickle opcode|face metadata is damaged"),
        (with_segment(pickle.dumps(os.system)), "refers to 'posix.system|nt.system'"),
    ],
)
def test_no_faces(data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        read_face_jpeg(data, "folder/a.jpg")
    assert str(refused.value).startswith("folder/a.jpg")


def test_metadata_that_does_not_fit_a_segment() -> None:
    face = read_face_jpeg(golden(4), "a.jpg")
    polygon = Polygon(True, np.zeros((7400, 2), np.float32))
    with pytest.raises(BadInput, match=r"a\.jpg: its metadata takes 6\d,\d+ bytes, of which 4,205 are the mask"):
        write_face_jpeg(golden(4), replace(face, polygons=(polygon,)))
    polygon = Polygon(True, np.zeros((7100, 2), np.float32))
    full = write_face_jpeg(golden(4), replace(face, polygons=(polygon,)))
    assert len(read_face_jpeg(full, "a.jpg").polygons[0].points) == 7100


def test_written_into_no_jpeg() -> None:
    with pytest.raises(BadInput, match="is not a JPEG"):
        write_face_jpeg(b"PNG", Face("a.jpg", FaceType.HEAD, 1, 1, np.array(LANDMARKS, np.float32)))


DAMAGE: list[Callable[[bytearray, Random], None]] = [
    lambda data, random: data.__setitem__(random.randrange(len(data)), random.randrange(256)),
    lambda data, random: data.__delitem__(slice(random.randrange(len(data)), None)),
    lambda data, random: data.__delitem__(slice(at := random.randrange(len(data)), at + random.randrange(9))),
]


@pytest.mark.parametrize("index", [3, 5])
def test_nothing_but_bad_input_comes_of_damage(index: int) -> None:
    whole, random = golden(index), Random(index)
    head = whole[: whole.index(b"\xff\xda") + 20]
    refused = 0
    for _ in range(700):
        damaged = bytearray(head)
        for _ in range(random.randint(1, 3)):
            random.choice(DAMAGE)(damaged, random)
            if not damaged:
                break
        refused += 1
        with suppress(BadInput):
            face = read_face_jpeg(bytes(damaged), "x.jpg")
            assert face.landmarks.shape == (68, 2)
            refused -= 1
    assert 100 < refused < 700
