"""What is refused before any format is tried."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frugan.data.formats.detect import open_source
from frugan.data.formats.source import local_path
from frugan.errors import BadInput


def test_missing_path_says_from_where(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"does not exist .looked from .*{Path.cwd().name}.; expected a folder"):
        open_source(tmp_path / "gone")


def test_archives_single_pictures_and_others(tmp_path: Path, picture: Callable[..., Image.Image]) -> None:
    picture().save(tmp_path / "one.png")
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "weights.pt").write_bytes(b"what")
    for name, message in [("one.png", "one picture"), ("cifar-10-binary.tar.gz", "unpack"), ("weights.pt", "none of")]:
        with pytest.raises(BadInput, match=message):
            open_source(tmp_path / name)


@pytest.mark.parametrize("name", ["mine.npy", "mine.npz"])
def test_arrays_of_numpy_are_opened_in_python(name: str, tmp_path: Path) -> None:
    arrays = np.zeros((4, 3, 32, 32), np.uint8)
    if name.endswith("y"):
        np.save(tmp_path / name, arrays)
    else:
        np.savez(tmp_path / name, arrays)
    with pytest.raises(BadInput, match=rf"{name} holds NumPy's arrays; .*frugan\.PictureSet\.from_arrays"):
        open_source(tmp_path / name)


@pytest.mark.parametrize(
    "address",
    [
        "https://me:secret@host/shard-{0000..0099}.tar",
        "http://host/a.tar?signature=secret",
        "s3://secret/a.tar",
        "file:///secret/a.tar",
        "pipe:curl http://host/secret.tar",
        "PIPE:rm -rf secret",
    ],
)
def test_addresses_are_refused_without_being_repeated(address: str) -> None:
    with pytest.raises(BadInput, match=r"fetch them first .*aws s3 sync") as refused:
        local_path(address)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("path", ["pictures/a.tar", r"C:\pictures", "C:/pictures", "a:b", Path("https://host/a.tar")])
def test_paths_are_no_addresses(path: str | Path) -> None:
    assert local_path(path) == Path(path)
