"""What is refused before any format is tried."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from frugan.data.formats import open_source
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
