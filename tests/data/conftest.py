"""Pictures to test with."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frugan.data.formats.picture_set import PictureSet, picture_digest

MakePicture = Callable[..., Image.Image]
MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]
MakeSet = Callable[..., PictureSet]


@pytest.fixture
def golden() -> Path:
    """Files made by the original BigGAN's own preparation."""
    return Path(__file__).parents[1] / "golden" / "biggan"


@pytest.fixture
def picture() -> MakePicture:
    """Make an RGB picture of noise, the same for the same seed."""

    def make(seed: int = 0, width: int = 16, height: int = 16) -> Image.Image:
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        return Image.fromarray(pixels)

    return make


@pytest.fixture
def folder(tmp_path: Path) -> MakeFolder:
    """Make a folder of files; pictures are saved as their name says."""

    def make(files: dict[str, Image.Image | bytes]) -> Path:
        base = tmp_path / "source"
        for name, content in files.items():
            path = base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                content.save(path)
        return base

    return make


@pytest.fixture
def picture_set() -> MakeSet:
    """Make a set in memory whose picture i has the value i everywhere but in its left column, which is 255 - i."""

    def make(number: int, resolution: int = 4) -> PictureSet:
        pictures = np.empty((number, 3, resolution, resolution), np.uint8)
        pictures[:] = np.arange(number, dtype=np.uint8).reshape(-1, 1, 1, 1)
        pictures[..., 0] = 255 - pictures[..., 0]
        labels = np.arange(number, dtype=np.int64) % 3
        return PictureSet(pictures, labels, ("a", "b", "c"), True, picture_digest(pictures, labels))

    return make


@pytest.fixture
def encoded() -> Callable[..., bytes]:
    """Encode a picture into the bytes of a file."""

    def make(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
        file = io.BytesIO()
        image.save(file, format, **options)
        return file.getvalue()

    return make
