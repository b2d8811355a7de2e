"""The original BigGAN's HDF5 files, and its rule of preparation."""

import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from frugan.data.formats.detect import open_source
from frugan.data.formats.picture_set import open_prepared
from frugan.data.prepare import prepare
from frugan.errors import BadInput


@pytest.mark.parametrize("name", ["ILSVRC32_chunk20.hdf5", "ILSVRC32_chunk20_lzf.hdf5"])
def test_the_originals_files_are_read(golden: Path, tmp_path: Path, name: str) -> None:
    report = prepare(golden / name, tmp_path / "out", resolution=32)
    prepared = open_prepared(report.path, verify=True)
    with h5py.File(golden / name) as file:
        np.testing.assert_array_equal(prepared.pictures, file["imgs"][:])
        np.testing.assert_array_equal(prepared.labels, file["labels"][:])
    assert prepared.class_names == ("0", "1")
    assert prepared.labelled


def test_our_preparation_equals_the_originals_but_for_its_truncation(golden: Path, tmp_path: Path) -> None:
    prepare(golden / "hdf5_source_images", tmp_path / "out", resolution=32)
    ours = open_prepared(tmp_path / "out")
    with h5py.File(golden / "ILSVRC32_chunk20.hdf5") as file:
        theirs, labels = file["imgs"][:], file["labels"][:]
    darkened = (ours.pictures >= 1) & (ours.pictures <= 63)  # levels that lost one by float -> byte truncation
    np.testing.assert_array_equal(ours.pictures, theirs + darkened)
    np.testing.assert_array_equal(ours.labels, labels)
    assert ours.class_names == ("catA", "dogB")
    assert darkened.mean() > 0.1


def write(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, content in datasets.items():
            file[name] = content
    return path


IMGS = np.zeros((3, 3, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"labels": np.zeros(3, np.int64)}, "no dataset `imgs`; expected .*, as BigGAN-PyTorch's make_hdf5.*arrays"),
        ({"imgs": IMGS}, "no dataset `labels`"),
        ({"imgs": IMGS, "labels": np.zeros(2, np.int64)}, r"imgs uint8 \[3, 3, 8, 8\] and labels int64 \[2\]"),
        ({"imgs": IMGS.astype(np.float32), "labels": np.zeros(3, np.int64)}, "imgs float32"),
        (
            {"imgs": IMGS.transpose(0, 2, 3, 1), "labels": np.zeros(3, np.int64)},
            "expected datasets `imgs`.*arrays from Python",
        ),
        ({"imgs": IMGS, "labels": np.zeros(3, np.float32)}, "labels float32"),
        ({"imgs": IMGS, "labels": np.array([0, -1, 2])}, "-1 is not a class number"),
        ({"imgs": IMGS, "labels": np.array([0, 10**9, 2])}, "1000000000 is not a class number"),
        ({"imgs": IMGS, "labels": h5py.ExternalLink("/etc/passwd", "labels")}, "no dataset `labels`"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, datasets: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        open_source(write(tmp_path / "x.hdf5", **datasets))


def test_values_kept_in_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(IMGS.size))
    path = write(tmp_path / "x.hdf5", labels=np.zeros(3, np.int64))
    with h5py.File(path, "a") as file:
        file.create_dataset("imgs", IMGS.shape, np.uint8, external=[(str(tmp_path / "secret"), 0, IMGS.size)])
    with pytest.raises(BadInput, match="points at other files"):
        open_source(path)


def test_a_claimed_size_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("imgs", (10**12, 3, 64, 64), np.uint8, chunks=(1, 3, 64, 64))
        file.create_dataset("labels", (10**12,), np.int64, chunks=(1000,))
    with pytest.raises(BadInput, match="1,000,000,000,000 pictures"):
        open_source(path)


def test_cut_file(golden: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.hdf5"
    path.write_bytes((golden / "ILSVRC32_chunk20.hdf5").read_bytes()[:5000])
    with pytest.raises(BadInput, match="cannot be opened as HDF5"):
        open_source(path)


def test_missing_h5py_names_the_extra(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(BadInput, match=r"pip install 'frugan\[data\]'"):
        open_source(golden / "ILSVRC32_chunk20.hdf5")
