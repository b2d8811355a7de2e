"""HDF5 files as BigGAN-PyTorch reads them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frugan.data.export import CHUNK, Hdf5, pack_pictures
from frugan.data.formats.picture_set import open_prepared
from frugan.data.prepare import prepare
from frugan.data.survey import Fitting

MakePicture = Callable[..., Image.Image]
MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]
h5py = pytest.importorskip("h5py")


def test_what_we_write_comes_back(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    path = folder({f"{name}/{i}.png": picture(i, 10, 8) for name in ("cat", "dog") for i in range(CHUNK // 2 + 2)})
    count, lines = pack_pictures(path, tmp_path / "set.hdf5", Hdf5(), Fitting(8))
    assert count == CHUNK + 4
    assert any("0 cat, 1 dog" in line for line in lines)
    assert any("reads it as ILSVRC8.hdf5 in its data folder, with --dataset I8_hdf5" in line for line in lines)
    assert any("takes that for 1,000 classes: write 2 beside it" in line for line in lines)
    with h5py.File(tmp_path / "set.hdf5") as file:
        assert (file["imgs"].shape, file["imgs"].dtype) == ((count, 3, 8, 8), np.uint8)
        assert (file["labels"].shape, file["labels"].dtype) == ((count,), np.int64)
        assert file["imgs"].chunks == (CHUNK, 3, 8, 8)
    prepare(path, tmp_path / "one", resolution=8)
    prepare(tmp_path / "set.hdf5", tmp_path / "other", resolution=8)
    assert open_prepared(tmp_path / "one").digest == open_prepared(tmp_path / "other").digest
