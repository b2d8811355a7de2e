"""Zips of pictures, honest and not."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from frugan.data.formats.detect import open_source
from frugan.data.formats.source import Unreadable
from frugan.errors import BadInput
from limits import Limit

Encode = Callable[..., bytes]
MakePicture = Callable[..., Image.Image]
Pack = Callable[..., Path]
NAMES = ("00000/img00000000.png", "00000/img00000001.png", "00001/img00000002.png")


@pytest.fixture
def pack(tmp_path: Path, picture: MakePicture, encoded: Encode) -> Pack:
    """Make a zip of pictures with these names, and of other members."""

    def make(names: tuple[str, ...] = NAMES, method: int = zipfile.ZIP_STORED, **others: Any) -> Path:
        path = tmp_path / "set.zip"
        with zipfile.ZipFile(path, "w", method) as archive:
            for seed, name in enumerate(names):
                archive.writestr(name, encoded(picture(seed)))
            for name, content in others.items():
                archive.writestr(name.replace("__", "/").replace("_", "."), content)
        return path

    return make


def labels(*rows: Any) -> str:
    return json.dumps({"labels": [list(row) for row in rows]})


def test_labels_of_dataset_json(pack: Pack, picture: MakePicture) -> None:
    text = labels((NAMES[2], 1), (NAMES[0], 3), (NAMES[1], 0))
    with open_source(pack(dataset_json=text)) as source:
        assert list(source.names) == list(NAMES)
        assert source.classes.labels.tolist() == [3, 0, 1]
        assert source.classes.names == ("0", "1", "2", "3")
        assert source.classes.labelled
        assert source.size(1) == (16, 16)
        np.testing.assert_array_equal(np.asarray(source.picture(2)), np.asarray(picture(2)))


def test_one_hot_labels_are_class_numbers(pack: Pack) -> None:
    text = labels((NAMES[2], [0, 1.0, 0]), (NAMES[0], [0, 0, 1]), (NAMES[1], [1, 0.0, 0]))
    with open_source(pack(dataset_json=text)) as source:
        assert source.classes.labels.tolist() == [2, 0, 1]


def test_classes_without_pictures_are_told_of(pack: Pack) -> None:
    with open_source(pack(dataset_json=labels((NAMES[2], 1), (NAMES[0], 3), (NAMES[1], 0)))) as source:
        assert "4 numbered classes" in source.classes.lines[0]
        assert "1 of them without pictures" in source.classes.lines[0]


def test_labels_of_pictures_that_are_not_there(pack: Pack) -> None:
    rows = [(name, 0) for name in NAMES]
    with pytest.raises(BadInput, match=r"names 5 pictures, of which 2 are not there: not/there.png, nor/this.png"):
        open_source(pack(dataset_json=labels(*rows, ("not/there.png", 9), ("nor/this.png", 1))))
    with pytest.raises(BadInput, match=rf"gives several labels to {NAMES[0]}"):
        open_source(pack(dataset_json=labels(*rows, (NAMES[0], 1))))


@pytest.mark.parametrize("name", ["../cat/1.png", "cat/../../dog/1.png", "/etc/1.png", "..\\cat\\1.png"])
def test_names_that_lead_out_of_the_zip(pack: Pack, name: str) -> None:
    with pytest.raises(BadInput, match=r"holds the name '.*', which leads out of the zip"):
        open_source(pack(("cat/1.png", name)))


def test_folders_of_old_programs_of_windows(pack: Pack) -> None:
    with open_source(pack(("pets\\cat\\1.png", "pets\\cat\\2.png", "pets\\dog\\1.png"))) as source:
        assert source.classes.names == ("cat", "dog")
        assert source.classes.labels.tolist() == [0, 0, 1]
        assert source.size(2) == (16, 16)


def test_class_folders_without_pictures(pack: Pack) -> None:
    with pytest.raises(BadInput, match="this class folder has no pictures: fox"):
        open_source(pack(("cat/1.png", "dog/1.png"), fox__=""))


@pytest.mark.parametrize("share", [0.3, 0.99])
def test_zips_that_are_cut_short(pack: Pack, share: float) -> None:
    path = pack()
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BadInput, match="cut short or no zip"):
        open_source(path)


def test_labels_null_is_unlabelled(pack: Pack) -> None:
    with open_source(pack(dataset_json='{"labels": null}')) as source:
        assert not source.classes.labelled
        assert source.classes.labels.tolist() == [0, 0, 0]


def test_without_dataset_json_folders_are_classes(pack: Pack) -> None:
    with open_source(
        pack(("cat/1.png", "dog/1.png", "__MACOSX/dog/1.png", "dog/._1.png"), README_txt="hello")
    ) as source:
        assert source.classes.names == ("cat", "dog")
        assert len(source) == 2


def test_without_folders_unlabelled(pack: Pack) -> None:
    with open_source(pack(("1.png", "2.png"), zipfile.ZIP_DEFLATED)) as source:
        assert not source.classes.labelled
        assert source.picture(1).size == (16, 16)


def test_a_folder_around_everything_is_no_class(pack: Pack) -> None:
    with open_source(pack(("my set/cat/1.png", "my set/dog/1.png"))) as source:
        assert source.classes.names == ("cat", "dog")
        assert "my set/" in source.lines[0]
    with open_source(pack(("x/00000/1.png",), x__dataset_json=labels(("00000/1.png", 0)))) as source:
        assert source.classes.labelled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "expected"),
        ('{"labels": 3}', "expected"),
        ('{"labels": [["a.png"]]}', "among the labels"),
        (labels((NAMES[0], [0.1, 0.9])), "of vectors only those of zeros and a single 1 can be used"),
        (labels((NAMES[0], [0, 0])), "of vectors only those of zeros and a single 1"),
        (labels((NAMES[0], [])), "of vectors only those of zeros and a single 1"),
        (labels((NAMES[0], [0, True])), "of vectors only those of zeros and a single 1"),
        (labels((NAMES[0], [0, "1"])), "of vectors only those of zeros and a single 1"),
        (labels((NAMES[0], [0, 1]), (NAMES[1], [0, 0, 1])), "not of one kind: a vector of 2, a vector of 3"),
        (labels((NAMES[0], [0, 1]), (NAMES[1], 1)), "not of one kind: a number, a vector of 2"),
        (labels((NAMES[0], 0.5)), "fractions cannot be used"),
        (labels((NAMES[0], -1)), "has the label -1; expected a class number"),
        (labels((NAMES[0], 10**12)), "has the label 1000000000000"),
        (labels((NAMES[0], True)), "has the label True"),
        (labels((NAMES[0], 1)), "no label for 2 of 3 pictures: 00000/img00000001.png, 00001/img00000002.png"),
    ],
)
def test_wrong_dataset_json(pack: Pack, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        open_source(pack(dataset_json=text))


def test_what_is_no_picture_is_counted(pack: Pack) -> None:
    with open_source(pack(a_jfif=b"x", b_jfif=b"x", dataset_json=labels(*((name, 0) for name in NAMES)))) as source:
        assert source.lines == ("2 files of other kinds ignored: .jfif 2",)


def test_no_pictures(pack: Pack) -> None:
    with pytest.raises(BadInput, match="no pictures"):
        open_source(pack((), notes_txt="x"))


def test_encrypted(pack: Pack) -> None:
    path = pack()
    data = bytearray(path.read_bytes())
    directory = data.index(b"PK\x01\x02")
    data[directory + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(BadInput, match="encrypted; unpack"):
        open_source(path)


def test_cut_zip(pack: Pack) -> None:
    path = pack()
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadInput, match="is cut short or no zip"):
        open_source(path)


def test_damaged_member_is_one_bad_picture(pack: Pack) -> None:
    path = pack()
    data = bytearray(path.read_bytes())
    data[200] ^= 255  # inside the first picture's pixels: its CRC in the zip no longer holds
    path.write_bytes(data)
    with open_source(path) as source:
        with pytest.raises(Unreadable, match="damaged in the zip"):
            source.picture(0)
        assert source.picture(1).size == (16, 16)


def test_bomb_is_refused_by_its_declared_size(pack: Pack, limit: Limit) -> None:
    limit("bytes of a file in a zip", 1000)
    path = pack((), zipfile.ZIP_DEFLATED, bomb_png=b"\0" * 2000)
    with open_source(path) as source:
        for read in (source.picture, source.size):
            with pytest.raises(Unreadable, match="2,000 bytes unpacked"):
                read(0)


def test_bomb_that_lies_about_its_size_unpacks_no_more_than_it_said(pack: Pack, encoded: Encode) -> None:
    path = pack((), zipfile.ZIP_DEFLATED, bomb_png=b"\0" * 5_000_000)
    data = bytearray(path.read_bytes())
    directory = data.index(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = (100).to_bytes(4, "little")
    path.write_bytes(data)
    with open_source(path) as source, pytest.raises(Unreadable):
        source.picture(0)


def test_bomb_in_dataset_json(pack: Pack, limit: Limit) -> None:
    limit("bytes of labels in a zip", 1000)
    with pytest.raises(BadInput, match=r"dataset.json of .* cannot be read: 9,000 bytes"):
        open_source(pack(method=zipfile.ZIP_DEFLATED, dataset_json=" " * 9000))


def test_other_packing_methods_are_named(pack: Pack) -> None:
    with open_source(pack(method=zipfile.ZIP_BZIP2)) as source, pytest.raises(Unreadable, match="method 12"):
        source.picture(0)


def test_dots_and_backslashes_are_no_part_of_names(pack: Pack) -> None:
    with open_source(pack(("./a/1.png", "./b/2.png"))) as source:
        assert source.names == ["a/1.png", "b/2.png"]
        assert source.classes.names == ("a", "b")
    text = labels(("./a/1.png", 1), ("b\\2.png", 0))
    with open_source(pack(("a/1.png", "b/2.png"), dataset_json=text)) as source:
        assert source.classes.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *(("表", "shift_jis"), ("写真A", "shift_jis"), ("猫", "utf-8"), ("é", "cp437")),
        # which could be read in Shift-JIS or GBK
        *((name, "cp437") for name in ("Hütte", "Äpfel", "génial", "Straße", "Jalapeño")),
    ],
)
def test_names_in_codes_that_a_zip_does_not_name(name: str, code: str, pack: Pack) -> None:
    raw = name.encode(code)  # a byte of the first looks like a backslash
    path = pack((f"{'x' * len(raw)}/1.png", "b/2.png"))
    path.write_bytes(path.read_bytes().replace(b"x" * len(raw) + b"/1.png", raw + b"/1.png"))
    with open_source(path) as source:
        assert set(source.classes.names) == {name, "b"}
        assert any("taken for shift_jis" in line for line in source.lines) == (code == "shift_jis")
