"""Pictures too small to show anything are left out by name, and counts are of the pictures that are used."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from frugan.data.facts import look_at
from frugan.data.formats.picture_set import open_prepared
from frugan.data.prepare import prepare
from frugan.errors import BadInput

MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]
MakePicture = Callable[..., Image.Image]

TINY = "2 pictures left out, smaller than 8 x 8: dot.png, nine.png"
SMALLEST = "the smallest that are used: smaller.png (12 x 12), small.png (20 x 20)"


@pytest.fixture
def mixed(folder: MakeFolder, picture: MakePicture, encoded: Callable[..., bytes]) -> Path:
    """300 pictures of 32 x 32, of which some are small, tiny, wide or broken beyond their headers."""
    files: dict[str, Image.Image | bytes] = {f"{at:03}.png": picture(at, 32, 32) for at in range(300)}
    files |= {"dot.png": picture(1, 1, 1), "nine.png": picture(2, 3, 3)}
    files |= {"small.png": picture(3, 20, 20), "smaller.png": picture(4, 12, 12), "wide.png": picture(5, 64, 32)}
    files["cut.png"] = encoded(picture(6, 90, 40))[:-2000]
    return folder(files)


def test_tiny_pictures_are_left_out_by_name_and_small_ones_named(mixed: Path, tmp_path: Path) -> None:
    report = prepare(mixed, tmp_path / "out", resolution=32, fit="pad")
    assert report.pictures == 303
    assert TINY in report.lines
    assert "2 pictures smaller than 32 x 32, with white all around (allow_upscale enlarges them)" in report.lines
    assert SMALLEST in report.lines
    assert TINY in prepare(mixed, tmp_path / "out", resolution=32, fit="pad").lines
    assert len(open_prepared(tmp_path / "out")) == 303


def test_enlarged_pictures_are_named_the_smallest_first(mixed: Path, tmp_path: Path) -> None:
    report = prepare(mixed, tmp_path / "out", resolution=32, allow_upscale=True)
    assert report.upscaled == 2
    assert SMALLEST in report.lines


def test_a_few_too_small_pictures_are_left_out_by_name(mixed: Path, tmp_path: Path) -> None:
    """Three or four of three hundred do not keep a set from being used, whoever prepares it."""
    report = prepare(mixed, tmp_path / "out", resolution=32)
    assert (report.pictures, report.upscaled) == (301, 0)
    left_out = (
        "4 pictures left out, smaller than 32 x 32: dot.png, nine.png, small.png, smaller.png "
        "(data.allow_upscale=true enlarges those of 8 pixels and more; --allow-upscale of prepare)"
    )
    assert left_out in report.lines
    assert left_out in prepare(mixed, tmp_path / "out", resolution=32).lines
    asked = prepare(mixed, tmp_path / "asked", resolution=32, allow_upscale="leave-out")
    assert "4 pictures left out, smaller than 32 x 32: dot.png, nine.png, small.png, smaller.png" in asked.lines


def test_many_too_small_pictures_are_refused(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    """A tenth is left out, and one more is too many; nor is the last of a class left out."""
    files: dict[str, Image.Image | bytes] = {f"a/{at:02}.png": picture(at, 32, 32) for at in range(27)}
    files |= {f"b/{at:02}.png": picture(at, 32, 20) for at in range(3)}
    source = folder(files)
    with pytest.raises(BadInput, match=r"class 'b' .* smaller than 32 x 32, and none is left.* or enlarge them"):
        prepare(source, tmp_path / "out", resolution=32)
    picture(40, 32, 32).save(source / "b" / "large.png")
    assert prepare(source, tmp_path / "out", resolution=32).pictures == 28
    picture(41, 32, 20).save(source / "b" / "small.png")
    with pytest.raises(BadInput, match=r"4 pictures of 32 .* are smaller than 32 x 32: b/00.png"):
        prepare(source, tmp_path / "other", resolution=32)
    assert not (tmp_path / "other").exists()


def test_counts_are_of_the_pictures_that_are_used(mixed: Path, tmp_path: Path) -> None:
    """A picture whose header alone can be read is neither resized nor padded."""
    lines = prepare(mixed, tmp_path / "out", resolution=32, fit="pad").lines
    padded = [line for line in lines if "padded to squares" in line]
    assert [line[: line.index(" padded")] for line in padded] == ["1 picture of 303"]
    assert "1 picture resized to 32 x 32 (bilinear; or resample=lanczos)" in lines


def test_a_plan_leaves_out_what_training_leaves_out(mixed: Path) -> None:
    facts = look_at(mixed)
    assert TINY in facts.left_out
    assert str(facts).startswith("303 of 12 to 32 pixels (median 32)")
    assert len(facts.names) == facts.pictures


def test_nothing_but_tiny_pictures(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    source = folder({f"a/{at}.png": picture(at, 4, 4) for at in range(3)})
    with pytest.raises(BadInput, match=r"is smaller than 8 x 8: none is left\. Give larger ones"):
        prepare(source, tmp_path / "out", resolution=32, allow_upscale=True)
    picture(9, 40, 40).save(source / "a" / "large.png")
    (source / "b").mkdir()
    picture(8, 5, 40).save(source / "b" / "bar.png")
    with pytest.raises(
        BadInput, match=r"class 'b' .* smaller than 8 x 8, and none is left\. Remove the class, or give"
    ):
        prepare(source, tmp_path / "out", resolution=32, fit="pad")
