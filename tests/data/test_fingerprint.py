"""A changed source has another fingerprint; the same one, the same."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from frugan.data.formats.decoding import background
from frugan.data.prepare import fingerprint
from frugan.data.survey import Fitting
from frugan.errors import BadInput

MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]
SMALL = Image.new("RGB", (4, 4))


def test_every_change_of_files_or_settings_counts(folder: MakeFolder) -> None:
    path = folder({"a/1.png": SMALL, "b/2.png": SMALL})
    keys = [fingerprint(path, Fitting(8)), fingerprint(path, Fitting(16)), fingerprint(path, Fitting(8, "lanczos"))]
    keys.append(fingerprint(path, Fitting(8, allow_upscale=True)))
    keys.append(fingerprint(path, Fitting(8, allow_upscale="leave-out")))
    keys.append(fingerprint(path, Fitting(8, background=background("black"))))
    keys.append(fingerprint(path, Fitting(8, fit="pad")))
    os.utime(path / "a" / "1.png", ns=(1, 1))
    keys.append(fingerprint(path, Fitting(8)))
    (path / "a" / "1.png").rename(path / "b" / "1.png")
    keys.append(fingerprint(path, Fitting(8)))
    (path / "dataset.json").write_text('{"labels": null}')
    keys.append(fingerprint(path, Fitting(8)))
    SMALL.save(path / "b" / "3.png")
    keys.append(fingerprint(path, Fitting(8)))
    assert len(set(keys)) == len(keys)


def test_other_files_and_the_place_do_not_count(folder: MakeFolder, tmp_path: Path) -> None:
    path = folder({"a/1.png": SMALL, "b/2.png": SMALL})
    key = fingerprint(path, Fitting(8))
    (path / "training.log").write_text("step 1")
    (path / ".DS_Store").write_bytes(b"x")
    assert fingerprint(path, Fitting(8)) == key
    shutil.copytree(path, tmp_path / "copy")  # copies times too
    assert fingerprint(tmp_path / "copy", Fitting(8)) == key


def test_single_file(golden: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    shutil.copy(golden / "ILSVRC32_chunk20.hdf5", path)
    key = fingerprint(path, Fitting(8))
    assert fingerprint(path, Fitting(8)) == key
    os.utime(path, ns=(1, 1))
    assert fingerprint(path, Fitting(8)) != key


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        fingerprint(tmp_path / "gone", Fitting(8))
