"""Pictures that stay in their files are the same pictures."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frugan.contract.data import SourceOptions
from frugan.contract.settings import DataSettings
from frugan.data.batches import Batches
from frugan.data.formats.picture_set import PictureSet
from frugan.data.picture_needs import open_pictures
from frugan.data.prepare import prepare
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from frugan.training.observers import VarietyWatch

MakePicture = Callable[..., Image.Image]
MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]


def opened(path: Path, tmp_path: Path, lines: list[str], **settings: object) -> PictureSet:
    options = SourceOptions(DataSettings.model_validate(settings), tmp_path / "prepared", lines.append, None, {})
    return open_pictures(path, 16, options)


def test_the_stream_is_the_same(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    lines: list[str] = []
    path = folder({f"{'ab'[i % 2]}/{i}.png": picture(i, 16 + i % 5, 16 + i % 3) for i in range(20)})
    mapped, encoded = (opened(path, tmp_path, lines, stored=form) for form in ("pixels", "encoded"))
    assert encoded.class_names == mapped.class_names
    assert (len(encoded), encoded.resolution) == (20, 16)
    one, other = (Batches(each, seed=3, name="images", flip=True).take(7, 30) for each in (mapped, encoded))
    assert one["pictures"].equal(other["pictures"])
    assert one["labels"].equal(other["labels"])
    assert any("20 pictures stay encoded" in line for line in lines)
    assert not list((tmp_path / "prepared").glob(f"{path.name}-*"))[1:]  # nothing was prepared for the second
    np.testing.assert_array_equal(encoded[3], mapped[3])
    np.testing.assert_array_equal(encoded[2:5], mapped[2:5])
    assert encoded[np.array([], np.int64)].shape == (0, 3, 16, 16)
    assert encoded.in_grey()[np.array([1, 2])].shape == (2, 1, 16, 16)
    assert not encoded.all_grey


def test_a_picture_that_vanishes_gives_way_with_its_label(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path
) -> None:
    path = folder({f"{'ab'[i >= 6]}/{i:02}.png": picture(i) for i in range(12)})
    pictures = opened(path, tmp_path, [], stored="encoded")
    whole = Batches(pictures, seed=3, name="images").take(0, 12)
    batches = Batches(pictures, seed=3, name="images")
    (path / "a" / "05.png").write_bytes(b"damaged")  # the last of its class: one of the other stands in for it
    for _ in range(2):
        given = batches.take(0, 12)
        (place,) = [i for i in range(12) if not given["pictures"][i].equal(whole["pictures"][i])]
        assert given["pictures"][place].numpy().tolist() == pictures[6].tolist()
        assert (int(whole["labels"][place]), int(given["labels"][place])) == (0, 1)
        assert list(batches.passed_over) == ["picture 5"]
        assert "a/05.png can no longer be read" in batches.passed_over["picture 5"]
    (path / "b" / "06.png").unlink()
    with pytest.raises(BadInput, match="2 pictures of 12 cannot be read or used"):
        batches.take(0, 12)


def test_a_damaged_picture_ends_nothing_that_looks_at_all(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path
) -> None:
    grey = [picture(i).convert("L").convert("RGB") for i in range(24)]
    path = folder({f"{'ab'[i % 2]}/{i:02}.png": one for i, one in enumerate(grey)})
    pictures = opened(path, tmp_path, [], stored="encoded")
    (path / "a" / "04.png").write_bytes(b"damaged")
    assert pictures.all_grey
    assert pictures.readable(np.arange(4)).shape == (3, 3, 16, 16)  # the third is 04
    watch = VarietyWatch(load_recipe("biggan-digits-32"), pictures)
    assert len(watch._real.ranked) == 2


def test_settings_that_a_prepared_set_does_not_follow_are_told(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path
) -> None:
    path = folder({f"{i}.png": picture(i) for i in range(4)})
    prepare(path, tmp_path / "ready", resolution=16, fit="pad")
    said: list[str] = []
    opened(tmp_path / "ready", tmp_path, said, fit="pad")
    assert not [line for line in said if "no effect" in line]
    opened(tmp_path / "ready", tmp_path, said, resample="lanczos", stored="encoded", range=4095.0)
    (line,) = [line for line in said if "no effect" in line]
    assert "fit=pad, not crop; resample=bilinear, not lanczos; stored=pixels, not encoded; range=none, not 4095" in line


def test_what_is_refused(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    path = folder({f"{i}.png": picture(i, 12, 12) for i in range(4)})
    with pytest.raises(BadInput, match="smaller than 16 x 16"):
        opened(path, tmp_path, [], stored="encoded")
    assert len(opened(path, tmp_path, [], stored="encoded", allow_upscale=True)) == 4
    opened(path, tmp_path, [], allow_upscale=True)
    picture(9, 16, 16).save(path / "9.png")
    said: list[str] = []
    kept = opened(path, tmp_path, said, stored="encoded", allow_upscale="leave-out")
    np.testing.assert_array_equal(kept[0], np.asarray(picture(9, 16, 16)).transpose(2, 0, 1))
    assert (len(kept), sum("4 pictures left out, smaller than 16 x 16" in line for line in said)) == (1, 1)
    (path / "9.png").unlink()
    (prepared,) = (tmp_path / "prepared").iterdir()
    options = SourceOptions(DataSettings(stored="encoded"), tmp_path, print, None, {})
    with pytest.raises(BadInput, match="its pixels are there"):
        open_pictures(prepared, 32, options)


def test_a_range_that_is_hardly_used_is_warned_of(folder: MakeFolder, tmp_path: Path) -> None:
    path = folder({f"{i}.png": Image.fromarray(np.full((16, 16), 4000, np.uint16)) for i in range(40)})
    said: list[str] = []
    opened(path, tmp_path, said, stored="encoded")
    assert any("of 16 bits use 0 to 4,000 of 65,535" in line for line in said)
    assert int(opened(path, tmp_path, said, stored="encoded", range=4000.0)[0].min()) == 255
