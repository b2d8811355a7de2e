"""Zips that NVlabs' programs read: ours are theirs, file by file."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from frugan.data.export import NvlabsZip, pack_pictures
from frugan.data.formats.decoding import background
from frugan.data.formats.detect import open_source
from frugan.data.formats.picture_set import open_prepared
from frugan.data.prepare import prepare
from frugan.data.survey import Fitting
from frugan.errors import BadInput

MakePicture = Callable[..., Image.Image]
MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]
GOLDEN = Path(__file__).parents[1] / "golden" / "stylegan2" / "dataset"


def test_the_release_s_zip_is_read_as_the_release_reads_it(tmp_path: Path) -> None:
    prepare(GOLDEN / "tiny_dataset.zip", tmp_path / "set", resolution=16)
    prepared, expected = open_prepared(tmp_path / "set"), load_file(GOLDEN / "expected.safetensors")
    np.testing.assert_array_equal(prepared.pictures, expected["full_images"])
    np.testing.assert_array_equal(np.eye(len(prepared.class_names))[prepared.labels], expected["full_labels"])


def test_what_we_write_of_it_has_the_same_files(tmp_path: Path) -> None:
    count, _ = pack_pictures(GOLDEN / "tiny_dataset.zip", tmp_path / "ours.zip", NvlabsZip(), Fitting(16))
    ours, theirs = zipfile.ZipFile(tmp_path / "ours.zip"), zipfile.ZipFile(GOLDEN / "tiny_dataset.zip")
    assert count == 10
    assert sorted(ours.namelist()) == sorted(theirs.namelist())
    for name in ours.namelist():
        assert ours.getinfo(name).compress_type == zipfile.ZIP_STORED
        if name == "dataset.json":
            assert json.loads(ours.read(name)) == json.loads(theirs.read(name))
            continue
        with Image.open(ours.open(name)) as one, Image.open(theirs.open(name)) as other:
            assert one.mode == other.mode
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_class_folders_become_labels(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    path = folder({f"{name}/{i}.png": picture(i, 20, 16) for name in ("cat", "dog") for i in range(2)})
    _, lines = pack_pictures(path, tmp_path / "out" / "set.zip", NvlabsZip(), Fitting(8))
    assert any("0 cat, 1 dog" in line for line in lines)
    with open_source(tmp_path / "out" / "set.zip") as source:
        assert source.classes.labels.tolist() == [0, 0, 1, 1]
        assert source.size(0) == (8, 8)


def test_without_classes_labels_are_null(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    pack_pictures(folder({"1.png": picture(1)}), tmp_path / "set.zip", NvlabsZip(), Fitting(16))
    assert json.loads(zipfile.ZipFile(tmp_path / "set.zip").read("dataset.json")) == {"labels": None}


def test_a_side_that_nvlabs_programs_refuse_is_told_of(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path
) -> None:
    _, lines = pack_pictures(folder({"1.png": picture(1)}), tmp_path / "set.zip", NvlabsZip(), Fitting(12))
    assert "12 is no power of two" in lines[-1]


def test_the_same_pictures_give_the_same_bytes(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    path = folder({f"{i}.png": picture(i) for i in range(3)})
    for name, workers in (("a.zip", 1), ("b.zip", 3)):
        pack_pictures(path, tmp_path / name, NvlabsZip(), Fitting(16), workers=workers)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_nothing_is_overwritten_and_nothing_is_left_behind(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path
) -> None:
    path = folder({f"{i}.png": picture(i) for i in range(3)})
    (tmp_path / "there.zip").write_bytes(b"mine")
    with pytest.raises(BadInput, match="exists; it is not overwritten"):
        pack_pictures(path, tmp_path / "there.zip", NvlabsZip(), Fitting(16))
    for name in ("1.png", "2.png"):
        (path / name).write_bytes((path / name).read_bytes()[:200])
    with pytest.raises(BadInput, match="cannot be read, more than 1%"):
        pack_pictures(path, tmp_path / "new.zip", NvlabsZip(), Fitting(16))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "there.zip"]


def test_transparent_pictures_lie_on_the_colour_of_choice(folder: MakeFolder, tmp_path: Path) -> None:
    """In a zip, in a prepared set, and in a set prepared from a zip."""
    path = folder({"1.png": Image.new("RGBA", (8, 8), (200, 0, 0, 0))})
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.write(path / "1.png", "1.png")
    on = background("#102030")
    pack_pictures(path, tmp_path / "set.zip", NvlabsZip(), Fitting(8, background=on))
    with open_source(tmp_path / "set.zip") as source:
        assert source.picture(0).getpixel((3, 3)) == (16, 32, 48)
    for name in ("source", "packed.zip"):
        prepare(tmp_path / name, tmp_path / f"{name}-set", resolution=8, background=on)
        assert open_prepared(tmp_path / f"{name}-set").pictures[0, :, 3, 3].tolist() == [16, 32, 48]
    with pytest.raises(BadInput, match="holds another set"):
        prepare(path, tmp_path / "source-set", resolution=8)


@pytest.mark.parametrize(("text", "same"), [("black", "#000000"), ("#fff", "#ffffff"), ("#10203040", "#102030")])
def test_colours(text: str, same: str) -> None:
    assert background(text) == same


@pytest.mark.parametrize("text", ["", "blak", "#12", "1,2,3"])
def test_no_colours(text: str) -> None:
    with pytest.raises(BadInput, match="no such colour; expected a name such as black, or #rrggbb"):
        background(text)
