"""What `train` prepares from a folder by itself, it also repairs by itself."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frugan.contract.data import SourceOptions
from frugan.contract.settings import DataSettings
from frugan.data.formats.picture_set import PictureSet, open_prepared, picture_digest
from frugan.data.picture_needs import open_pictures
from frugan.errors import BadInput
from frugan.files import Folders
from training.pictures import write_pictures

ALL = np.arange(12)


def opened(source: Path, said: list[str]) -> PictureSet:
    said.clear()
    settings = DataSettings(flip=False, allow_upscale=False)
    opening = SourceOptions(settings, Folders.from_environment().prepared, said.append, None, {})
    return open_pictures(source, 32, opening)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FRUGAN_PREPARED", str(tmp_path / "prepared"))
    return write_pictures(tmp_path / "pictures")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"allow_upscale": "leave-out"}, "1 picture left out, smaller than 32 x 32: hell/small.png"),
        ({"allow_upscale": True}, "1 picture enlarged, as allow_upscale permits: expect them to be soft"),
    ],
)
def test_what_it_leaves_out_and_enlarges_is_said_each_time(
    source: Path, said: list[str], settings: dict[str, object], expected: str
) -> None:
    Image.new("RGB", (20, 20)).save(source / "hell" / "small.png")
    (source / "hell" / "bad.png").write_bytes(b"no picture")
    prepared = Folders.from_environment().prepared
    options = SourceOptions(DataSettings.model_validate(settings), prepared, said.append, None, {})
    for _ in range(2):
        said.clear()
        open_pictures(source, 32, options)
        assert f"data: {expected}" in said
        assert any(line.startswith("data: 1 picture left out, cannot be read: hell/bad.png (") for line in said)
    (folder,) = (path for path in prepared.iterdir() if path.is_dir())
    said.clear()
    open_pictures(folder, 32, options)  # by its own path
    assert f"data: {expected}" in said


@pytest.fixture
def kept(source: Path, tmp_path: Path) -> Path:
    """The set that is kept."""
    opened(source, [])
    (folder,) = (path for path in (tmp_path / "prepared").iterdir() if path.is_dir())
    return folder


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def unlink(name: str) -> Callable[[Path], None]:
    return lambda kept: (kept / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda kept: (kept / name).write_bytes(content)


def empty(kept: Path) -> None:
    shutil.rmtree(kept)
    kept.mkdir()


def be_a_file(kept: Path) -> None:
    shutil.rmtree(kept)
    kept.write_bytes(b"x")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no set.json": (unlink("set.json"), "its set.json is missing"),
    "no pictures": (unlink("pictures.npy"), "its pictures.npy is missing"),
    "empty set.json": (write("set.json", b""), "is not a frugan picture set"),
    "garbage": (write("set.json", bytes(range(256))), "is not a frugan picture set"),
    "a flipped bit in set.json": (lambda kept: flip(kept / "set.json", -60), "set.json"),
    "short pictures": (write("pictures.npy", b"\x93NUMPY"), "pictures.npy is damaged"),
    "long pictures": (lambda kept: (kept / "pictures.npy").open("ab").write(b"0"), "is longer than its 12 pictures"),
    "nothing": (empty, "is not a prepared set"),
    "a file": (be_a_file, "is not a prepared set"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_made_again_and_said_in_one_line(
    source: Path, kept: Path, damage: str, said: list[str]
) -> None:
    change, reason = DAMAGE[damage]
    before = open_prepared(kept).digest
    change(kept)
    again = opened(source, said)
    lines = [line for line in said if "made again" in line]
    assert len(lines) == 1
    assert reason in lines[0]
    assert again.digest == picture_digest(again[ALL], again.labels) == before


def test_a_whole_set_is_kept(source: Path, kept: Path, said: list[str]) -> None:
    written = (kept / "set.json").stat().st_mtime_ns
    opened(source, said)
    assert any(", prepared before from the same files (" in line for line in said)
    assert (kept / "set.json").stat().st_mtime_ns == written


def test_a_flipped_bit_is_mended_when_it_is_read(source: Path, kept: Path, said: list[str]) -> None:
    whole = (kept / "pictures.npy").read_bytes()
    flip(kept / "pictures.npy", -1)
    mended = opened(source, said)
    assert not any("made again" in line for line in said)
    pictures = mended[np.array([11])]
    assert picture_digest(mended.pictures, mended.labels) == mended.digest
    assert pictures[0].tobytes() == whole[-3072:]
    assert (kept / "pictures.npy").read_bytes() == whole
    assert sum("made again" in line for line in said) == 1


def test_a_flipped_bit_without_its_source_is_refused_and_prepared_anew(source: Path, kept: Path) -> None:
    flip(kept / "pictures.npy", -1)
    prepared = opened(source, [])
    first = next(iter(sorted((source / "hell").iterdir())))
    content = first.read_bytes()
    first.unlink()
    with pytest.raises(BadInput, match=r"no longer gives the same pictures; run the same command again"):
        prepared[ALL]
    first.write_bytes(content)
    prepared = opened(source, [])
    assert picture_digest(prepared[ALL], prepared.labels) == prepared.digest
