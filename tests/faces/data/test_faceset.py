"""Facesets: folders of aligned JPEGs, persons, paks, and what is passed over or refused."""

import io
import os
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from faces.data.golden_faces import GOLDEN, expected_faces
from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import MISFIT, write_face_jpeg
from frugan.faces.data.face import Face, FaceType
from frugan.faces.data.faceset import Faceset, open_faceset, pack_faceset, unpack

ALIGNED, PACKED = GOLDEN / "faceset" / "aligned", GOLDEN / "faceset" / "packed"
LANDMARKS = np.stack([np.arange(68), np.arange(68)], 1).astype(np.float32)


def face_jpeg(value: int = 0, size: int = 80) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), (value, 0, 255 - value)).save(file, "JPEG", quality=95)
    return write_face_jpeg(file.getvalue(), Face("x.jpg", FaceType.FULL, size, size, LANDMARKS))


MakeFaces = Callable[..., Path]


@pytest.fixture
def faces(tmp_path: Path) -> MakeFaces:
    """Make a folder of faces with these names; the picture differs with the place."""

    def make(*names: str, **others: bytes) -> Path:
        folder = tmp_path / "aligned"
        for place, name in enumerate(names):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(face_jpeg(place))
        for name, content in others.items():
            (folder / name.replace("_", ".")).write_bytes(content)
        return folder

    return make


def test_the_originals_folder_and_pak_hold_the_same() -> None:
    loose, packed = open_faceset(ALIGNED), open_faceset(PACKED)
    assert (len(loose), loose.path, loose.passed_over) == (8, ALIGNED, ())
    assert packed.path == PACKED / "faceset.pak"
    assert open_faceset(PACKED / "faceset.pak").digest == packed.digest
    for index, (one, other) in enumerate(zip(loose.faces, packed.faces, strict=True)):
        assert one.name == other.name == f"{index:05}_0.jpg"
        np.testing.assert_array_equal(one.landmarks, other.landmarks)
        assert loose.encoded(index) == packed.encoded(index) == (ALIGNED / one.name).read_bytes()
        picture = loose.picture(index)
        assert picture.shape == (one.height, one.width, 3)
        assert picture.dtype == np.uint8
        np.testing.assert_array_equal(picture, packed.picture(index))
        np.testing.assert_array_equal(picture, cv2.imread(str(ALIGNED / one.name)))


def test_yaws() -> None:
    yaws = open_faceset(ALIGNED).yaws
    np.testing.assert_allclose(yaws, [face["__pitch_yaw_roll__"][1] for face in expected_faces()], rtol=0, atol=1e-5)


def test_it_is_pickled_small_and_whole() -> None:
    loose = open_faceset(ALIGNED)
    data = pickle.dumps(loose)
    assert len(data) < 30_000  # the JPEGs are twice that
    again: Faceset = pickle.loads(data)
    assert (again.digest, again.path) == (loose.digest, loose.path)
    np.testing.assert_array_equal(again.picture(4), loose.picture(4))


def test_names_of_any_kind(faces: MakeFaces) -> None:
    names = ["b c.JPG", "лицо.jpg", "顔.jpeg", "a.jpg"]
    faceset = open_faceset(faces(*names, notes_txt=b"x", Thumbs_db=b"x"))
    assert [face.name for face in faceset.faces] == sorted(names)
    assert [face.person for face in faceset.faces] == [None] * 4
    assert faceset.passed_over == ()
    assert faceset.picture(sorted(names).index("顔.jpeg")).shape == (80, 80, 3)


def test_folders_are_persons_only_without_loose_faces(faces: MakeFaces) -> None:
    folder = faces("Zoë/1.jpg", "Ann/2.jpg", "Ann/1.jpg", "Ann/deeper/3.jpg", ".hidden/4.jpg")
    faceset = open_faceset(folder)
    assert [(face.person, face.name) for face in faceset.faces] == [
        ("Ann", "1.jpg"),
        ("Ann", "2.jpg"),
        ("Zoë", "1.jpg"),
    ]
    assert faceset.encoded(2) == face_jpeg(0)
    (folder / "loose.jpg").write_bytes(face_jpeg())
    faceset = open_faceset(folder)
    assert [(face.person, face.name) for face in faceset.faces] == [(None, "loose.jpg")]
    assert faceset.passed_over == ("Ann/", "Zoë/")


def test_a_pak_wins_over_loose_faces(faces: MakeFaces) -> None:
    folder = faces("a.jpg")
    shutil.copy(PACKED / "faceset.pak", folder)
    assert len(open_faceset(folder)) == 8


def test_loose_faces_beside_a_pak_are_told(faces: MakeFaces) -> None:
    folder = faces("1.jpg", "2.jpg", "3.jpg")
    pak = pack_faceset(open_faceset(folder), folder)
    (line,) = open_faceset(folder).notes
    assert line == "3 pictures beside faceset.pak are not read, as in DeepFaceLab"
    for name in ("2.jpg", "3.jpg"):
        os.utime(folder / name, (pak.stat().st_mtime + 60,) * 2)
    (line,) = open_faceset(folder).notes
    assert line.endswith("; 2 of them are newer than it: 2.jpg, 3.jpg. To train on them, take the pak away")
    assert open_faceset(pak).notes == ()


def test_what_is_odd_is_told_by_count_and_file(faces: MakeFaces) -> None:
    folder = faces("1.jpg", "2.jpg", **{"3_jpg": (ALIGNED / "00000_0.jpg").read_bytes()})
    assert open_faceset(folder).lines == (f"2 faces with {MISFIT}: 1.jpg, 2.jpg",)


def test_a_few_pictures_without_metadata_are_passed_over(faces: MakeFaces) -> None:
    folder = faces(*(f"{index:03}.jpg" for index in range(100)))
    (folder / "050.jpg").write_bytes(b"")
    faceset = open_faceset(folder)
    assert (len(faceset), faceset.passed_over) == (99, ("050.jpg",))


def test_up_to_a_tenth_is_left_out_and_named_for_what_it_is(faces: MakeFaces) -> None:
    folder = faces(*(f"{index:03}.jpg" for index in range(40)))
    whole = (folder / "000.jpg").read_bytes()
    (folder / "003.jpg").write_bytes(whole[: len(whole) // 2])  # a copy that was broken off
    (folder / "017.jpg").write_bytes(bytes(len(whole)))  # what a power loss leaves
    (folder / "frame.png").write_bytes(b"\x89PNG")
    plain = io.BytesIO()
    Image.new("RGB", (80, 80)).save(plain, "JPEG")
    (folder / "holiday.jpg").write_bytes(plain.getvalue())
    (folder / "debug").mkdir()
    faceset = open_faceset(folder)
    assert len(faceset) == 38
    assert faceset.lines[:3] == (
        "2 damaged faces of 42 left out: 003.jpg, 017.jpg",
        "2 pictures without face metadata left out: frame.png, holiday.jpg",
        "1 folder not looked into, beside pictures: debug/",
    )
    (folder / "018.jpg").write_bytes(b"")
    with pytest.raises(BadInput, match=r"no usable face in 5 of 42 pictures: 003\.jpg, 017\."):
        open_faceset(folder)


def test_a_workspace_and_a_folder_of_frames_name_their_aligned_faces(faces: MakeFaces, tmp_path: Path) -> None:
    workspace = tmp_path / "film"
    sides = [workspace / "data_src", workspace / "data_dst"]
    for side in sides:
        shutil.copytree(faces("1.jpg", "2.jpg"), side / "aligned")
        (side / "00001.png").write_bytes(b"\x89PNG")
    src, dst = (re.escape(str(side / "aligned")) for side in sides)
    with pytest.raises(BadInput, match=rf"no usable face in 2 of 2 pictures.*Did you mean {src} or {dst}\?"):
        open_faceset(workspace)
    with pytest.raises(BadInput, match=rf"no usable face in 1 of 1 picture: .*Did you mean {dst}\?"):
        open_faceset(sides[1])
    shutil.rmtree(sides[0])
    (sides[1] / "00001.png").unlink()
    with pytest.raises(BadInput, match=rf"no faces in .*Did you mean {dst}\?"):
        open_faceset(workspace)


def test_at_most_8_bad_names_are_listed(faces: MakeFaces) -> None:
    folder = faces("a.jpg", **{f"{index}_jpg": b"x" for index in range(10)})
    with pytest.raises(
        BadInput, match=r"10 of 11 pictures: .* 6\.jpg, 7\.jpg and 2 more; .* The first: .*0\.jpg is not a"
    ):
        open_faceset(folder)


def test_nothing_there(faces: MakeFaces, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist; expected aligned JPEGs"):
        open_faceset(tmp_path / "none")
    for other in ({}, {"notes_txt": b"x"}):
        faces("x.jpg", **other)
        (tmp_path / "aligned" / "x.jpg").unlink()
        with pytest.raises(
            BadInput, match=r"no faces in .*; expected aligned JPEGs made by DeepFaceLab's extractor, or faceset\.pak\."
        ):
            open_faceset(tmp_path / "aligned")


def test_an_empty_pak(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no faces in"):
        open_faceset(pack_faceset(replace(open_faceset(ALIGNED), faces=(), places=()), tmp_path / "x.pak"))


def test_the_digest_is_of_what_the_faces_are(faces: MakeFaces, tmp_path: Path) -> None:
    folder = faces("a.jpg", "b.jpg")
    digest = open_faceset(folder).digest
    shutil.copytree(folder, tmp_path / "other place")
    os.utime(tmp_path / "other place" / "a.jpg", (1, 1))
    assert open_faceset(tmp_path / "other place").digest == digest
    data = (folder / "b.jpg").read_bytes()
    for changed in (data + b"x", data.replace(b"full_face", b"half_face"), data[:-20] + b"\x11" + data[-19:]):
        (folder / "b.jpg").write_bytes(changed)
        assert open_faceset(folder).digest != digest
    (folder / "b.jpg").write_bytes(data)
    assert open_faceset(folder).digest == digest
    (folder / "b.jpg").rename(folder / "c.jpg")
    assert open_faceset(folder).digest != digest


def test_metadata_beyond_what_is_read_at_first(faces: MakeFaces) -> None:
    folder = faces("a.jpg")
    data = (folder / "a.jpg").read_bytes()
    profile = b"\xff\xe2\xff\xff" + bytes(65_533)
    (folder / "a.jpg").write_bytes(data[:2] + profile * 2 + data[2:])
    assert open_faceset(folder).picture(0).shape == (80, 80, 3)


def test_files_that_change_under_our_hands(faces: MakeFaces) -> None:
    folder = faces("a.jpg")
    faceset = open_faceset(folder)
    path = folder / "a.jpg"
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    with pytest.raises(BadInput, match=r"a\.jpg.* is cut off"):
        faceset.picture(0)
    path.unlink()
    with pytest.raises(BadInput, match="cannot be read any more: No such file"):
        faceset.picture(0)


def test_pictures_that_are_not_what_they_say(faces: MakeFaces) -> None:
    folder = faces("a.jpg")
    path = folder / "a.jpg"
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    with pytest.raises(BadInput, match=r"a\.jpg.* is cut off"):
        open_faceset(folder).picture(0)
    path.write_bytes(data)
    faceset = open_faceset(folder)
    with pytest.raises(BadInput, match="80 x 80 pixels, but 64 x 80 by its metadata"):
        replace(faceset, faces=(replace(faceset.faces[0], width=64),)).picture(0)
    scan = data.index(b"\xff\xda")
    path.write_bytes(data[:scan] + b"\xff\xda\x00\x03\x00" + b"\xff\xd9")
    with pytest.raises(BadInput, match=r"a\.jpg.* cannot be decoded"):
        open_faceset(folder).picture(0)


def test_packing_and_opening_again(faces: MakeFaces, tmp_path: Path) -> None:
    loose = open_faceset(faces("Ann/1.jpg", "Bob/1.jpg"))
    seen: list[tuple[int, int]] = []
    packed = pack_faceset(loose, tmp_path, lambda done, number: seen.append((done, number)))
    assert packed == tmp_path / "faceset.pak"
    assert seen == [(1, 2), (2, 2)]
    opened = open_faceset(tmp_path)
    assert [(face.person, face.name) for face in opened.faces] == [("Ann", "1.jpg"), ("Bob", "1.jpg")]
    for index in range(2):
        np.testing.assert_array_equal(opened.picture(index), loose.picture(index))
        np.testing.assert_array_equal(opened.faces[index].landmarks, loose.faces[index].landmarks)
    with pytest.raises(BadInput, match=r"faceset\.pak exists already"):
        pack_faceset(opened, tmp_path)
    with pytest.raises(BadInput, match=r"none.x\.pak cannot be written: No such file"):
        pack_faceset(opened, tmp_path / "none" / "x.pak")


def test_a_pak_is_unpacked_into_what_was_packed(faces: MakeFaces, tmp_path: Path, said: list[str]) -> None:
    folder = faces("ann/1.jpg", "bob/1.jpg", "bob/2.jpg")
    pak = pack_faceset(open_faceset(folder), tmp_path / "faceset.pak")
    assert unpack(pak, tmp_path / "again", said.append, None) == 3
    files = [
        {p.relative_to(of).as_posix(): p.read_bytes() for p in of.rglob("*.jpg")} for of in (folder, tmp_path / "again")
    ]
    assert files[0] == files[1]
    with pytest.raises(BadInput, match="is there already; choose a new or empty folder for the faces"):
        unpack(pak, tmp_path / "again", said.append, None)


@pytest.mark.parametrize("name", ["../x.jpg", "a/b.jpg", "a\\b.jpg", "..", "C:x.jpg", "1.jpg"])
def test_names_in_a_pak_lead_nowhere_else(faces: MakeFaces, tmp_path: Path, said: list[str], name: str) -> None:
    """The last one is that of another face."""
    loose = open_faceset(faces("1.jpg", "2.jpg"))
    renamed = replace(loose, faces=(loose.faces[0], replace(loose.faces[1], name=name)))
    pak = pack_faceset(renamed, tmp_path / "faceset.pak")
    with pytest.raises(BadInput, match=r"faceset\.pak: face 1 is called '.*', which is no name for a file here"):
        unpack(pak, tmp_path / "out", said.append, None)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "x.jpg").exists()
