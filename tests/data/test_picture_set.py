"""SourceOptions prepared sets, whole and damaged."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from frugan.data.formats.picture_set import open_prepared, picture_digest
from frugan.data.formats.set_file import DamagedSet, is_prepared
from frugan.data.prepare import prepare
from frugan.errors import BadInput

MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]


@pytest.fixture
def prepared(folder: MakeFolder, picture: Callable[..., Image.Image], tmp_path: Path) -> Path:
    """Prepare a set of five pictures in two classes."""
    source = folder({f"{'ab'[i % 2]}/{i}.png": picture(i) for i in range(5)})
    return prepare(source, tmp_path / "out", resolution=16).path


def change(path: Path, **fields: Any) -> None:
    about = json.loads((path / "set.json").read_text())
    (path / "set.json").write_text(json.dumps({k: v for k, v in (about | fields).items() if k != "checksum"}))


def test_plain_numpy_maps_the_file(prepared: Path) -> None:
    pictures = np.load(prepared / "pictures.npy", mmap_mode="r")
    assert (pictures.shape, pictures.dtype) == ((5, 3, 16, 16), np.uint8)
    assert (prepared / "pictures.npy").stat().st_size == 128 + 5 * 3 * 16 * 16


def test_digest_is_of_pixels_and_labels(prepared: Path) -> None:
    opened = open_prepared(prepared)
    assert opened.digest == picture_digest(opened.pictures, opened.labels)
    assert opened.digest != picture_digest(opened.pictures, opened.labels[::-1])
    assert opened.digest != picture_digest(opened.pictures[::-1], opened.labels)


def test_is_prepared(prepared: Path, tmp_path: Path) -> None:
    assert is_prepared(prepared)
    assert not is_prepared(tmp_path / "source")
    with pytest.raises(BadInput, match="not a prepared set"):
        open_prepared(tmp_path / "source")


@pytest.mark.parametrize("keep", [0, 5, 100, 128, 128 + 5 * 768 - 1])
def test_cut_pictures(prepared: Path, keep: int) -> None:
    path = prepared / "pictures.npy"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadInput, match=r"pictures.npy is damaged.*Delete the folder .* prepare \S+source \S+out "):
        open_prepared(prepared)


def test_pictures_of_another_kind(prepared: Path) -> None:
    np.save(prepared / "pictures.npy", np.zeros((5, 3, 16, 16), np.float32))
    with pytest.raises(BadInput, match=r"holds float32 \[5, 3, 16, 16\]; set.json promises uint8"):
        open_prepared(prepared)


def test_pickled_objects_are_not_run(prepared: Path) -> None:
    np.save(prepared / "pictures.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(BadInput, match=r"pictures.npy is damaged"):
        open_prepared(prepared)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_changed_pixel_is_found_when_its_block_is_read(prepared: Path) -> None:
    flip(prepared / "pictures.npy", -1)
    opened = open_prepared(prepared)
    with pytest.raises(DamagedSet, match=r"pictures 0 to 4 have changed on the disk.* prepare \S+source"):
        opened[np.array([0])]
    with pytest.raises(BadInput, match="digest differs"):
        open_prepared(prepared, verify=True)


def test_any_changed_byte_of_the_set_file_is_noticed(prepared: Path) -> None:
    path = prepared / "set.json"
    whole = path.read_bytes()
    label = re.search(rb'"labels": \[\s*0,\s*(0)', whole)
    assert label
    path.write_bytes(whole[: label.start(1)] + b"1" + whole[label.end(1) :])
    with pytest.raises(DamagedSet, match=r"set.json has changed since the set was prepared"):
        open_prepared(prepared)
    path.write_bytes(whole)
    assert open_prepared(prepared).labels.tolist() == [0, 0, 0, 1, 1]


def test_sets_from_before_there_were_digests_are_read(prepared: Path) -> None:
    change(prepared, block_digests=[])
    assert open_prepared(prepared)[np.array([4, 0])].shape == (2, 3, 16, 16)


@pytest.mark.parametrize(("lost", "kept"), [("set.json", "pictures.npy"), ("pictures.npy", "set.json")])
def test_half_of_a_set(prepared: Path, tmp_path: Path, lost: str, kept: str) -> None:
    (prepared / lost).unlink()
    message = rf"holds the {kept} of a prepared set, but its {lost} is missing"
    with pytest.raises(DamagedSet, match=message):
        open_prepared(prepared)
    with pytest.raises(DamagedSet, match=message):
        prepare(prepared, tmp_path / "other", resolution=8)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "of another program"}', '{"labels": null}'])
def test_foreign_json(prepared: Path, text: str) -> None:
    (prepared / "set.json").write_text(text)
    with pytest.raises(BadInput, match=r"set.json is not a frugan picture set"):
        open_prepared(prepared)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": [0, 0, 1, 1, 2]}, "label 2 is outside of its 2 classes"),
        ({"labels": [0, 0, -1, 1, 1]}, "label -1 is outside"),
        ({"labels": [0, 0, 1]}, "3 labels for 5 pictures"),
        ({"labels": [0, 0, 1, 1, 1.5]}, "labels.4"),
        ({"version": 99}, "version 99; this frugan reads 1"),
        ({"pictures": 4, "labels": [0] * 4}, r"set.json promises uint8 \[4, 3, 16, 16\]"),
        ({"resolution": 0}, "a resolution of 0"),
        ({"block_digests": ["a", "b"]}, "digests of 2 blocks; expected 1"),
        ({"resolution": 32}, r"set.json promises uint8 \[5, 3, 32, 32\]"),
    ],
)
def test_contradictions(prepared: Path, fields: dict[str, Any], message: str) -> None:
    change(prepared, **fields)
    with pytest.raises(BadInput, match=message):
        open_prepared(prepared)
