"""Tar files of WebDataset: read where they lie, written so that the library itself reads them."""

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frugan.data.export import Shards, pack_pictures
from frugan.data.formats.detect import open_source
from frugan.data.formats.picture_set import open_prepared
from frugan.data.prepare import prepare
from frugan.data.survey import Fitting
from frugan.errors import BadInput

MakePicture = Callable[..., Image.Image]
MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]


def tar(path: Path, members: Mapping[str, bytes | tarfile.TarInfo]) -> Path:
    """A tar of files by name, or of members by hand."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return path


def encoded(picture: Image.Image, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    picture.save(file, form)
    return file.getvalue()


def link(name: str, to: str) -> tarfile.TarInfo:
    about = tarfile.TarInfo(name)
    about.type, about.linkname = tarfile.SYMTYPE, to
    return about


def test_pictures_labels_and_names(picture: MakePicture, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    tar(shards / "b.tar", {"000.png": encoded(picture(2)), "000.cls": b"1", "000.txt": b"a caption"})
    tar(
        shards / "a.tar",
        {
            "sub/000.cls": b"0\n",
            "sub/000.json": b"{}",
            "sub/000.PNG": encoded(picture(0)),
            "sub/001.png": encoded(picture(1)),
            "sub/001.seg.png": encoded(picture(9)),
            "sub/001.cls": b"2",
            "sub/002.json": b"no picture",
            "link.png": link("link.png", "/etc/passwd"),
        },
    )
    with open_source(shards) as source:
        assert source.names == ["a.tar:sub/000.png", "a.tar:sub/001.png", "b.tar:000.png"]
        assert source.classes.labels.tolist() == [0, 2, 1]
        assert source.classes.names == ("0", "1", "2")
        for index in range(3):
            assert source.size(index) == (16, 16)
            np.testing.assert_array_equal(np.asarray(source.picture(index)), np.asarray(picture(index)))
    (shards / "class_names.json").write_text(json.dumps(["cat", "dog", "eel", "fox"]), "utf-8")
    with open_source(shards) as source:
        assert source.classes.names == ("cat", "dog", "eel", "fox")
    with open_source(shards / "b.tar") as source:
        assert (source.kind, len(source)) == ("WebDataset shards (1 tar file)", 1)


@pytest.mark.parametrize("folder", ["./", "v1.0/", "a.b/c/"])
def test_folders_with_dots_keep_their_labels(folder: str, picture: MakePicture, tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for number in range(3):
        members |= {f"{folder}{number}.png": encoded(picture(number)), f"{folder}{number}.cls": str(number).encode()}
    with open_source(tar(tmp_path / "a.tar", members)) as source:
        assert source.classes.labels.tolist() == [0, 1, 2]


def test_what_is_no_picture_is_counted_and_hidden_tars_are_none(picture: MakePicture, tmp_path: Path) -> None:
    png = encoded(picture(0))
    tar(tmp_path / "all" / "a.tar", {"a.png": png, "IMG.0001.png": png, "IMG.0002.png": png, "b.jfif": b"x"})
    (tmp_path / "all" / "._a.tar").write_bytes(b"what a Mac leaves")
    with open_source(tmp_path / "all") as source:
        assert source.names == ["a.tar:a.png"]
        assert source.lines == ("3 files of other kinds ignored: .0001.png 1, .0002.png 1, .jfif 1",)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"000.txt": b"x"}, r"no pictures in .*\.txt 1"),
        ({"000.png": b"p", "000.cls": b"3", "001.png": b"p"}, "1 of 2 pictures have no .cls file"),
        ({"000.png": b"p", "000.cls": b"dog"}, "holds 'dog'; expected a class number"),
        ({"000.png": b"p", "000.cls": b"1" * 99}, "expected a class number"),
        ({"000.png": b"p", "000.cls": b"9999999999"}, "is not a class number"),
    ],
)
def test_wrong_tars(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        open_source(tar(tmp_path / "x.tar", members))
    assert "uncompressed tar" not in str(refused.value)  # it is one; what is wrong stands in it


@pytest.mark.parametrize("names", ["[1, 2]", '["a"]', '["a", "a"]', "{", "[" * 100_000])
def test_wrong_class_names(picture: MakePicture, tmp_path: Path, names: str) -> None:
    tar(tmp_path / "s" / "a.tar", {"0.png": encoded(picture()), "0.cls": b"1"})
    (tmp_path / "s" / "class_names.json").write_text(names)
    with pytest.raises(BadInput, match=r"class_names\.json"):
        open_source(tmp_path / "s")


def test_a_tar_that_is_cut_short(picture: MakePicture, tmp_path: Path) -> None:
    whole = tar(tmp_path / "whole.tar", {f"{i}.png": encoded(picture(i)) for i in range(3)}).read_bytes()
    second = 512 + -(-len(encoded(picture(0))) // 512) * 512
    for length in (0, 10, 700, second, second + 700):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with pytest.raises(BadInput, match=r"cannot be read as an uncompressed tar|is cut short"):
            open_source(tmp_path / "cut.tar")


def test_what_we_write_comes_back(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    path = folder({f"{name}/{i}.png": picture(i, 20, 16) for name in ("cat", "dog") for i in range(6)})
    count, lines = pack_pictures(path, tmp_path / "shards", Shards(shard_bytes=3000), Fitting(16))
    assert count == 12
    assert any("class_names.json" in line for line in lines)
    assert [file.name for file in sorted((tmp_path / "shards").glob("*.tar"))][:2] == [
        "shard-000000.tar",
        "shard-000001.tar",
    ]
    prepare(path, tmp_path / "one", resolution=16)
    prepare(tmp_path / "shards", tmp_path / "other", resolution=16)
    one, other = open_prepared(tmp_path / "one"), open_prepared(tmp_path / "other")
    assert (one.digest, one.class_names) == (other.digest, other.class_names)
    pack_pictures(path, tmp_path / "again", Shards(shard_bytes=3000), Fitting(16), workers=5)
    for file in (tmp_path / "shards").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()
    with pytest.raises(BadInput, match="exists"):
        pack_pictures(path, tmp_path / "again", Shards(), Fitting(16))


def test_without_classes(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    pack_pictures(folder({"1.png": picture(1)}), tmp_path / "shards", Shards(), Fitting(16))
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["shard-000000.tar"]
    with open_source(tmp_path / "shards") as source:
        assert not source.classes.labelled


def test_the_library_reads_them(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    path = folder({f"{name}/{i}.png": picture(i) for name in ("cat", "dog") for i in range(2)})
    pack_pictures(path, tmp_path / "shards", Shards(), Fitting(16))
    dataset = webdataset.WebDataset(str(tmp_path / "shards" / "shard-000000.tar"), shardshuffle=False)
    samples = list(dataset.decode("rgb8").to_tuple("png", "cls"))
    assert [label for _, label in samples] == [0, 0, 1, 1]
    np.testing.assert_array_equal(samples[1][0], np.asarray(picture(1)))


def test_tars_with_holes_are_refused(picture: MakePicture, tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", {"000.png": encoded(picture(0))})
    content = bytearray(path.read_bytes())
    content[156:157] = tarfile.GNUTYPE_SPARSE
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"000\.png is stored with holes .*without --sparse"):
        open_source(path)


def test_class_folders_in_a_tar_are_told_to_be_none(picture: MakePicture, tmp_path: Path) -> None:
    members = {f"./pets/{name}/0.png": encoded(picture(0)) for name in ("cat", "dog")}
    members |= {f"./pets/{place}/x.jpg": encoded(picture(1)) for place in ("cat/@eaDir", ".thumbs")}
    with open_source(tar(tmp_path / "a.tar", members)) as source:
        assert len(source) == 2
        assert "if cat, dog are the classes, unpack it and give the folder pets/" in source.classes.lines[0]
