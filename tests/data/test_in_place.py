"""HDF5 files whose pictures have the right size are read where they lie, and every change of them is noticed."""

import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from frugan.contract.data import SourceOptions
from frugan.contract.settings import DataSettings
from frugan.data.formats.detect import open_source
from frugan.data.formats.picture_set import PictureSet, open_prepared, picture_digest
from frugan.data.formats.set_file import BLOCK_BYTES
from frugan.data.in_place import PlacedPictures
from frugan.data.picture_needs import open_pictures
from frugan.data.prepare import prepare
from frugan.errors import BadInput

PICTURES = np.random.default_rng(0).integers(0, 256, (23, 3, 8, 8)).astype(np.uint8)
LABELS = np.arange(23) % 3


def write(path: Path, pictures: np.ndarray[Any, Any] = PICTURES, **storage: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("imgs", data=pictures, **storage)
        file["labels"] = LABELS[: len(pictures)]
    return path


def opened(path: Path, prepared: Path, said: list[str], resolution: int = 8) -> PictureSet:
    return open_pictures(path, resolution, SourceOptions(DataSettings(), prepared, said.append, None, {}))


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("storage", [{}, {"chunks": (1, 3, 8, 8)}, {"chunks": (10, 3, 8, 8)}])
def test_pixels_stay_where_they_are(tmp_path: Path, said: list[str], storage: dict[str, Any]) -> None:
    path, prepared = write(tmp_path / "x.hdf5", **storage), tmp_path / "prepared"
    pictures = opened(path, prepared, said)
    assert isinstance(pictures.pictures, PlacedPictures)
    some = np.array([22, 0, 9, 10, 0])
    np.testing.assert_array_equal(pictures[some], PICTURES[some])
    np.testing.assert_array_equal(pictures[2:5], PICTURES[2:5])
    np.testing.assert_array_equal(pictures[7], PICTURES[7])
    assert pictures[:0].shape == (0, 3, 8, 8)
    assert pictures.labels.tolist() == LABELS.tolist()
    assert pictures.digest == picture_digest(PICTURES, LABELS)  # of a prepared set too: a run may go on with either
    assert any(f"23 pictures of 8 pixels are read where they are, in {path}, which has to stay" in s for s in said)
    assert not list(prepared.rglob("*.npy"))
    assert bytes_in(prepared) < 5000


def test_one_that_was_being_written_has_no_places(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("imgs", PICTURES.shape, np.uint8, chunks=(10, 3, 8, 8))[:9] = PICTURES[:9]
        file["labels"] = LABELS
    with open_source(path) as source:
        assert source.places() is None


def test_it_is_read_as_a_whole_once(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, prepared = write(tmp_path / "x.hdf5"), tmp_path / "prepared"
    first = opened(path, prepared, said)
    monkeypatch.setattr("frugan.data.in_place.write_digests", None)
    assert opened(path, prepared, said).digest == first.digest


@pytest.mark.parametrize("storage", [{"compression": "gzip"}, {"chunks": (23, 3, 4, 8)}])
def test_what_is_packed_or_in_parts_is_copied(tmp_path: Path, said: list[str], storage: dict[str, Any]) -> None:
    pictures = opened(write(tmp_path / "x.hdf5", **storage), tmp_path / "prepared", said)
    assert isinstance(pictures.pictures, np.memmap)
    np.testing.assert_array_equal(pictures[:], PICTURES)


def test_what_has_another_size_is_copied(tmp_path: Path, said: list[str]) -> None:
    pictures = opened(write(tmp_path / "x.hdf5"), tmp_path / "prepared", said, resolution=4)
    assert isinstance(pictures.pictures, np.memmap)


def test_a_copy_that_is_there_already_serves(tmp_path: Path, said: list[str]) -> None:
    path, prepared = write(tmp_path / "x.hdf5"), tmp_path / "prepared"
    opened(path, prepared, said)
    (digests,) = prepared.glob("*-in-place")
    copy = prepared / digests.name.removesuffix("-in-place")
    prepare(path, copy, resolution=8)
    assert isinstance(opened(path, prepared, said).pictures, np.memmap)
    assert open_prepared(copy).digest == picture_digest(PICTURES, LABELS)


def change(path: Path, number: int) -> None:
    """Change a picture without a trace in size and time."""
    before = path.stat()
    with h5py.File(path, "a") as file:
        file["imgs"][number] = 255 - PICTURES[0]
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_damage_is_noticed_as_it_is_read(tmp_path: Path, said: list[str]) -> None:
    path, prepared = write(tmp_path / "x.hdf5"), tmp_path / "prepared"
    opened(path, prepared, said)
    change(path, 5)
    pictures = opened(path, prepared, said)
    with pytest.raises(BadInput, match="pictures 0 to 22 are not what they were when it was read first"):
        _ = pictures[np.array([1])]
    assert PICTURES.nbytes < BLOCK_BYTES  # all of them are one block


def test_a_file_that_was_made_anew_is_another_set(tmp_path: Path, said: list[str]) -> None:
    path, prepared = write(tmp_path / "x.hdf5"), tmp_path / "prepared"
    first = opened(path, prepared, said)
    write(path, 255 - PICTURES)
    again = opened(path, prepared, said)
    assert again.digest != first.digest
    np.testing.assert_array_equal(again[:], 255 - PICTURES)


def test_a_file_that_is_cut_short_while_in_use(tmp_path: Path, said: list[str]) -> None:
    path = write(tmp_path / "x.hdf5")
    pictures = opened(path, tmp_path / "prepared", said)
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(BadInput, match="cut short"):
        _ = pictures[np.array([1])]


@pytest.mark.parametrize("content", [b"", b"{}", None])
def test_damaged_digests_are_made_again(tmp_path: Path, said: list[str], content: bytes | None) -> None:
    path, prepared = write(tmp_path / "x.hdf5"), tmp_path / "prepared"
    opened(path, prepared, said)
    (kept,) = prepared.glob("*-in-place")
    if content is None:
        shutil.rmtree(kept)
        kept.write_bytes(b"a file")
    else:
        (kept / "set.json").write_bytes(content)
    np.testing.assert_array_equal(opened(path, prepared, said)[:], PICTURES)
    assert any("made again" in line for line in said)


def test_the_originals_file(golden: Path, tmp_path: Path, said: list[str]) -> None:
    path = golden / "ILSVRC32_chunk20.hdf5"
    pictures = opened(path, tmp_path, said, resolution=32)
    assert isinstance(pictures.pictures, PlacedPictures)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(pictures[:], file["imgs"][:])
