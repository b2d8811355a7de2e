"""What a folder's names mean."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from frugan.data.facts import look_at
from frugan.data.formats.detect import open_source
from frugan.data.formats.source import HEIF_CURE, READS_HEIF, Unreadable
from frugan.errors import BadInput

MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]
SMALL = Image.new("RGB", (4, 4))


def test_class_folders_in_sorted_order_with_nested_pictures(folder: MakeFolder) -> None:
    path = folder({"b/1.png": SMALL, "b/deep/er/2.png": SMALL, "a-b/3.png": SMALL, "a/4.png": SMALL, "10/5.png": SMALL})
    source = open_source(path)
    assert source.classes.names == ("10", "a", "a-b", "b")
    assert list(source.names) == ["10/5.png", "a/4.png", "a-b/3.png", "b/1.png", "b/deep/er/2.png"]
    assert source.classes.labels.tolist() == [0, 1, 2, 3, 3]
    assert source.classes.labelled
    assert any("deeper" in line and "'b'" in line for line in source.classes.lines)


def test_folders_below_their_initials_are_the_classes(folder: MakeFolder) -> None:
    names = ["a/airfield/1.png", "a/apartment/outdoor/2.png", "a/apartment-b/3.png", "b/Bay/4.png", "b/Bay/5.png"]
    source = open_source(folder(dict.fromkeys(names, SMALL)))
    assert source.classes.names == ("a/airfield", "a/apartment/outdoor", "a/apartment-b", "b/Bay")
    assert list(source.names) == names
    assert source.classes.labels.tolist() == [0, 1, 2, 3, 3]
    assert "4 classes from the folders that hold the pictures" in source.classes.lines[0]


@pytest.mark.parametrize("odd", ["a/1.png", "a/zoo/1.png", "ab/airfield/1.png"])
def test_one_picture_elsewhere_and_the_first_level_is_the_class(folder: MakeFolder, odd: str) -> None:
    source = open_source(folder(dict.fromkeys(["a/airfield/1.png", "b/bay/2.png", odd], SMALL)))
    assert set(source.classes.names) == {"a", "b", odd.partition("/")[0]}


def test_flat_folder_is_one_class_unlabelled(folder: MakeFolder) -> None:
    source = open_source(folder({"2.png": SMALL, "1.jpg": SMALL}))
    assert (source.classes.names, source.classes.labelled, len(source)) == (("pictures",), False, 2)
    assert "unlabelled" in source.classes.lines[0]


def test_one_class_folder_is_unlabelled(folder: MakeFolder) -> None:
    source = open_source(folder({"cats/1.png": SMALL, "cats/2.png": SMALL}))
    assert (source.classes.names, source.classes.labelled) == (("cats",), False)


def test_suffixes_in_any_case_and_other_files(folder: MakeFolder) -> None:
    names = ["1.PNG", "2.JPeG", "3.jpg", "4.bmp", "5.WebP", "6.gif", "7.TIF", "8.tiff"]
    other = ["Thumbs.db", ".DS_Store", ".hidden.png", ".git/x.png", "notes.txt", "film.mov", "README"]
    pictures: dict[str, Image.Image | bytes] = dict.fromkeys(names, SMALL)
    source = open_source(folder(pictures | dict.fromkeys(other, b"no picture")))
    assert list(source.names) == sorted(names)
    assert source.lines[0].startswith("3 files of other kinds ignored")
    assert ".mov 1" in source.lines[0]


def test_unicode_names(folder: MakeFolder) -> None:
    source = open_source(folder({"猫/ねこ 一.png": SMALL, "собака/Ünïcödé 🐕.png": SMALL}))
    assert source.classes.names == ("собака", "猫")
    assert source.picture(0).size == (4, 4)
    assert source.size(1) == (4, 4)


def test_names_that_are_not_text(folder: MakeFolder) -> None:
    path = folder({"a.png": SMALL})
    os.rename(os.fsencode(path) + b"/a.png", os.fsencode(path) + b"/\xff\xfe.png")
    assert open_source(path).picture(0).size == (4, 4)


def test_links_are_followed_but_not_in_circles(folder: MakeFolder, tmp_path: Path) -> None:
    path = folder({"a/1.png": SMALL, "b/2.png": SMALL})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    SMALL.save(elsewhere / "3.png")
    (path / "c").symlink_to(elsewhere)
    (path / "a" / "back").symlink_to(path)
    (path / "a" / "broken.png").symlink_to(tmp_path / "nowhere")
    assert list(open_source(path).names) == ["a/1.png", "a/broken.png", "b/2.png", "c/3.png"]


def test_a_link_to_itself_is_one_bad_picture(folder: MakeFolder) -> None:
    path = folder({"a.png": SMALL})
    (path / "b.png").symlink_to(path / "b.png")
    if hasattr(os, "mkfifo"):  # nobody shall wait for what comes out of it
        os.mkfifo(path / "pipe")
        (path / "c.png").symlink_to(path / "pipe")
    with open_source(path) as source:
        assert source.names == ["a.png", "b.png"]


def test_loose_pictures_beside_class_folders(folder: MakeFolder) -> None:
    with pytest.raises(BadInput, match=r"both 1 loose picture \(x.png\) and class folders \(a, b\).*move"):
        open_source(folder({"x.png": SMALL, "a/1.png": SMALL, "b/2.png": SMALL}))


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no pictures in .*Check the path"):
        open_source(tmp_path)


def test_folder_of_other_files_says_which(folder: MakeFolder) -> None:
    with pytest.raises(BadInput, match=r"no pictures in .*\.mov 2.*Convert"):
        open_source(folder({"1.mov": b"x", "2.MOV": b"x"}))


without_heif = pytest.mark.skipif(READS_HEIF, reason="HEIC is read here")


@without_heif
def test_text_that_is_called_heic_gets_no_advice(folder: MakeFolder) -> None:
    source = open_source(folder({"1.png": SMALL, "2.HEIC": b"only some text"}))
    assert source.lines == ("1 file of other kinds ignored: .heic by name alone 1",)


@without_heif
def test_heic_is_named_with_what_reads_it(folder: MakeFolder) -> None:
    heic = b"\0\0\0\x18ftypheic"
    source = open_source(folder({"a/1.png": SMALL, "b/1.png": SMALL, "b/2.heic": heic, "b/3.jpg": heic}))
    assert source.lines == (f"1 file of other kinds ignored: .heic 1; {HEIF_CURE}",)
    with pytest.raises(Unreadable, match=re.escape(HEIF_CURE)):
        source.picture(source.names.index("b/3.jpg"))
    with pytest.raises(BadInput, match=rf"no pictures: c \(1 file of other kinds: \.heic 1; {re.escape(HEIF_CURE)}"):
        open_source(folder({"c/1.heic": heic}))


@without_heif
def test_a_zip_and_a_tar_of_nothing_but_heic_are_told_what_reads_it(folder: MakeFolder, tmp_path: Path) -> None:
    pictures = folder({"1.heic": b"\0\0\0\x18ftypheic", "2.HEIC": b"\0\0\0\x18ftypheic"})
    for kind in ("zip", "tar"):
        packed = shutil.make_archive(str(tmp_path / "packed"), kind, pictures)
        with pytest.raises(BadInput, match=rf"no pictures in .*packed.{kind}.*\.heic 2; {re.escape(HEIF_CURE)}"):
            open_source(Path(packed))


@without_heif
def test_too_few_pictures_beside_heic_are_told_what_reads_it(folder: MakeFolder, tmp_path: Path) -> None:
    pictures = folder({"1.png": SMALL, "2.heic": b"\0\0\0\x18ftypheic"})
    for path in (pictures, Path(shutil.make_archive(str(tmp_path / "packed"), "zip", pictures))):
        with pytest.raises(BadInput, match=rf"1 picture that can be read.*\.heic 1; {re.escape(HEIF_CURE)}"):
            look_at(path)


PLUGIN = """
from PIL import Image, ImageFile

class Heif(ImageFile.ImageFile):
    format = "HEIF"
    def _open(self):
        self.fp.read(12)
        self._size, self._mode = (2, 2), "RGB"
        self.tile = [("raw", (0, 0, 2, 2), 12, "RGB")]

def register_heif_opener():
    Image.register_open("HEIF", Heif, lambda start: start[4:12] == b"ftypheic")
"""
READ = """
import sys
from pathlib import Path
from frugan.data.facts import look_at
from frugan.data.formats.detect import open_source
with open_source(Path(sys.argv[1])) as source:
    print(source.names, [source.picture(at).getpixel((1, 1)) for at in range(len(source))])
"""


def test_heic_is_read_by_the_plugin_that_is_installed(folder: MakeFolder, tmp_path: Path) -> None:
    """A plugin made for this stands for pillow-heif, which not every machine has."""
    (tmp_path / "plugin").mkdir()
    (tmp_path / "plugin" / "pillow_heif.py").write_text(PLUGIN)
    heic = b"\0\0\0\x18ftypheic" + bytes(range(12))
    base = folder({"1.heic": heic, "2.JPG": heic})
    path = os.pathsep.join([str(tmp_path / "plugin"), *sys.path])
    command = [sys.executable, "-c", READ, str(base)]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert ended.stdout == "['1.heic', '2.JPG'] [(9, 10, 11), (9, 10, 11)]\n"


def test_control_characters_in_names_do_not_reach_the_terminal(folder: MakeFolder) -> None:
    with pytest.raises(BadInput) as caught:
        open_source(folder({"\x1b[31mred.png": SMALL, "a/1.png": SMALL}))
    assert "\x1b" not in str(caught.value)


def test_unpacked_nvlabs_set_takes_its_labels_from_dataset_json(folder: MakeFolder) -> None:
    labels = json.dumps({"labels": [["00000/img0.png", 2], ["00001/img1.png", 0]]}).encode()
    source = open_source(folder({"00000/img0.png": SMALL, "00001/img1.png": SMALL, "dataset.json": labels}))
    assert source.classes.labels.tolist() == [2, 0]
    assert source.classes.names == ("0", "1", "2")


def test_what_systems_put_there_is_no_data(folder: MakeFolder) -> None:
    names = ["a/1.png", "b/2.png"]
    beside = ["a/@eaDir/1.png/SYNOPHOTO_THUMB_M.jpg", "$RECYCLE.BIN/x.png", "lost+found/y.png", "#recycle/z.png"]
    with open_source(folder(dict.fromkeys([*names, *beside], Image.new("RGB", (4, 4))))) as source:
        assert source.names == names


def test_class_folders_without_pictures_say_what_they_hold(folder: MakeFolder) -> None:
    base = folder({"a/1.png": Image.new("RGB", (4, 4)), "b/1.MOV": b"", "b/2/x.mov": b"", "b/y.txt": b""})
    with pytest.raises(BadInput, match=r"no pictures: b \(3 files of other kinds: \.mov 2, \.txt 1; convert them\)\."):
        open_source(base)


def test_a_class_folder_that_leads_to_another_is_called_a_link(folder: MakeFolder) -> None:
    base = folder({"a/1.png": Image.new("RGB", (4, 4))})
    (base / "b").symlink_to("a")
    with pytest.raises(BadInput, match="b is a link to a, which is there already"):
        open_source(base)
