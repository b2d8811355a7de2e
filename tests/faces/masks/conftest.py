"""XSeg's of no size, and facesets to mask."""

import shutil
from pathlib import Path

import pytest

from frugan.faces.saehd.leras_names import to_file, weight_keys
from frugan.faces.xseg.networks import XSeg
from frugan.safe_pickle.writer import dump_pickle
from parity.xseg.golden import FOLDER, drawn


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recordings' XSeg as a file of weights by itself."""
    path = tmp_path_factory.mktemp("original") / "XSeg_256.npy"
    network = XSeg(256, 2)
    arrays = {
        name: drawn(201, f"XSeg/{name}", to_file(dict(network.named_parameters())[key]).shape)
        for key, (name, _) in weight_keys(network).items()
    }
    path.write_bytes(dump_pickle(arrays))
    return path


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """Nine labelled faces, of which one has no label."""
    return Path(shutil.copytree(FOLDER / "faceset", tmp_path / "faces"))
