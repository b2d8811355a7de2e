"""Grids of samples."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from frugan.reporting import grids
from frugan.reporting.grids import BACKGROUND, grid_width, many_files, not_finite, that_fit, write_grid


def read(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture)


def test_pictures_stand_in_their_places(tmp_path: Path) -> None:
    grid = torch.rand(2, 3, 3, 64, 80, generator=torch.Generator().manual_seed(0)) * 2 - 1
    path = tmp_path / "samples" / "a.png"
    write_grid(grid, path)
    pixels = read(path)
    assert pixels.shape == (2 * 66 + 2, 3 * 82 + 2, 3)
    for row in range(2):
        for column in range(3):
            top, left = 2 + 66 * row, 2 + 82 * column
            expected = ((grid[row, column] + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
            assert np.array_equal(pixels[top : top + 64, left : left + 80], expected)
    gaps = np.ones(pixels.shape[:2], bool)
    for row in range(2):
        for column in range(3):
            gaps[2 + 66 * row : 66 + 66 * row, 2 + 82 * column : 82 + 82 * column] = False
    assert (pixels[gaps] == BACKGROUND).all()
    assert [p.name for p in path.parent.iterdir()] == ["a.png"]


def test_values_are_clamped_and_never_stretched(tmp_path: Path) -> None:
    values = torch.tensor([-3.0, -1, -0.1, 0, 0.1, 1, 7])
    grid = values.view(1, 7, 1, 1, 1).expand(-1, -1, -1, 64, 64)
    write_grid(grid.bfloat16().float(), tmp_path / "a.png")
    pixels = read(tmp_path / "a.png")
    assert pixels.ndim == 2  # one channel is written as grey
    assert pixels[10, [10 + 66 * i for i in range(7)]].tolist() == [0, 0, 115, 128, 140, 255, 255]


def test_small_pictures_are_enlarged_pixel_by_pixel(tmp_path: Path) -> None:
    grid = torch.rand(10, 10, 3, 32, 32) * 2 - 1
    write_grid(grid, tmp_path / "a.png")
    pixels = read(tmp_path / "a.png")
    assert pixels.shape == (662, 662, 3)
    block = pixels[2:66, 2:66]
    assert np.array_equal(block, block[::2, ::2].repeat(2, 0).repeat(2, 1))
    write_grid(grid[..., :8, :8], tmp_path / "a.png")  # and a file that is there is replaced
    assert read(tmp_path / "a.png").shape == (662, 662, 3)


def test_refusals_say_what_was_expected(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    for bad in (torch.zeros(2, 3, 64, 64), torch.zeros(1, 1, 2, 64, 64), torch.zeros(0, 1, 3, 64, 64)):
        with pytest.raises(ValueError, match="expected \\[rows, columns, C, H, W\\]"):
            write_grid(bad, path)
    with pytest.raises(ValueError, match="not pixels"):
        write_grid(torch.zeros(1, 1, 3, 64, 64, dtype=torch.uint8), path)
    grid = torch.zeros(2, 2, 3, 64, 64)
    grid[1, 0, 0, 3, 3] = torch.nan
    assert "1 of 4 pictures" in str(not_finite(grid))
    assert not_finite(grid.nan_to_num()) is None
    assert not list(tmp_path.iterdir())


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    write_grid(torch.zeros(1, 1, 1, 64, 64), path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match="disk full"):
        write_grid(torch.ones(1, 1, 1, 64, 64), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_strips_and_titles_stand_above_and_text_stands_inside(tmp_path: Path) -> None:
    grid = torch.zeros(2, 3, 3, 64, 64)
    width = grid_width(3, 64)
    strip = np.full((10, width, 3), 7, np.uint8)
    write_grid(grid, tmp_path / "plain.png")
    write_grid(grid, tmp_path / "full.png", {"Description": "synthetic: ä"}, lambda _: strip, ("A", "B", "C"))
    with Image.open(tmp_path / "plain.png") as plain, Image.open(tmp_path / "full.png") as full:
        assert plain.width == full.width == width
        pixels = np.asarray(full)
        assert np.array_equal(pixels[:10], strip)
        assert np.array_equal(pixels[-plain.height :], np.asarray(plain))
        titles = pixels[10 : -plain.height]
        assert titles.max() > 200
        assert full.text["Description"] == "synthetic: ä"  # type: ignore[attr-defined]


def test_grey_grids_are_grey_files_unless_a_coloured_strip_stands_above(tmp_path: Path) -> None:
    grid, path = torch.zeros(1, 2, 1, 64, 64), tmp_path / "a.png"
    curves = np.zeros((10, grid_width(2, 64), 3), np.uint8)
    curves[3, :, 0] = 255
    for above, shape in ((None, (14 + 68, 134)), (lambda _: curves, (10 + 14 + 68, 134, 3))):
        write_grid(grid, path, above=above, titles=("one", "two"))
        assert read(path).shape == shape


def test_rows_are_named_before_them_and_inside_the_file(tmp_path: Path) -> None:
    grid = torch.zeros(3, 4, 3, 32, 32)
    names = ("katze", "a name that is far too long to stand before a row", "猫")
    strip = np.full((10, grid_width(4, 32), 3), 7, np.uint8)
    write_grid(grid, tmp_path / "plain.png", above=lambda _: strip)
    write_grid(grid, tmp_path / "named.png", above=lambda _: strip, labels=names)
    with Image.open(tmp_path / "plain.png") as plain, Image.open(tmp_path / "named.png") as named:
        assert named.height == plain.height
        margin = named.width - plain.width
        assert 60 < margin < 150
        pixels = np.asarray(named)
        assert np.array_equal(pixels[:, margin:], np.asarray(plain))
        assert (pixels[:10, :margin] == BACKGROUND).all()
        for row in range(3):
            inside = pixels[10 + 2 + 66 * row : 10 + 66 + 66 * row, :margin]
            lines = 3 if row == 1 else 1  # 12 pixels each, as one can read them
            assert 8 <= np.ptp(np.flatnonzero((inside > 150).any((1, 2)))) + 1 <= 20 * lines
        assert named.text["Rows"].splitlines() == list(names)  # type: ignore[attr-defined]


def test_emoji_that_the_font_lacks_are_left_out(tmp_path: Path) -> None:
    """One with a skin's tone, one that is joined of two, a flag and one of nothing else."""

    def drawn(*labels: str) -> np.ndarray:
        write_grid(torch.zeros(3, 1, 3, 64, 64), tmp_path / "sheet.png", labels=labels)
        return read(tmp_path / "sheet.png")

    woman_at_computer, flag = "\U0001f469\u200d\U0001f4bb", "\U0001f1eb\U0001f1f7"
    shown = drawn("animals \U0001f43e", f"a {woman_at_computer} b\U0001f44d\U0001f3fd", f"{flag}\u2764\ufe0f")
    assert np.array_equal(shown, drawn("animals", "a b", "row 3"))


def test_letters_that_the_font_lacks(tmp_path: Path) -> None:
    def drawn(*labels: str) -> np.ndarray:
        write_grid(torch.zeros(3, 1, 3, 64, 64), tmp_path / "sheet.png", labels=labels)
        return read(tmp_path / "sheet.png")

    shown = drawn("ünlü é", "кот 7", "猫")
    assert np.array_equal(shown, drawn("unlu e", "??? 7", "row 3"))
    assert not any(
        np.array_equal(shown, drawn(*other))
        for other in (("unlu i", "??? 7", "row 3"), ("unlu e", "??? 8", "row 3"), ("unlu e", "??? 7", "row 4"))
    )


def test_long_names_go_on_below_and_stay_inside_their_rows(tmp_path: Path) -> None:
    """Two names that begin alike are told apart, and none runs into the next."""
    alike = [f"red-breasted merganser of the northern lakes, {kind}" for kind in ("female", "male")]
    path = tmp_path / "sheet.png"
    write_grid(torch.zeros(3, 1, 3, 32, 32), path, labels=[*alike, "word " * 100])
    pixels = read(path)
    inked = [pixels[2 + 66 * row : 66 + 66 * row, : pixels.shape[1] - 68] > 200 for row in range(3)]
    assert not np.array_equal(inked[0], inked[1])
    assert all(each.any() for each in inked)
    for row in range(4):
        assert (pixels[66 * row : 66 * row + 2] == BACKGROUND).all()  # nothing between rows
    assert (pixels[:, :2] == BACKGROUND).all()


def test_titles_wider_than_their_columns_do_not_run_into_each_other(tmp_path: Path) -> None:
    write_grid(torch.zeros(1, 2, 3, 64, 64), tmp_path / "sheet.png", titles=("a title that is far too long",) * 2)
    line = read(tmp_path / "sheet.png")[:14]
    assert (line[:, 66:69] == BACKGROUND).all()
    assert (line[:, :66] > 200).any()
    assert (line[:, 69:] > 200).any()


def test_a_grid_too_large_for_a_file_is_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "LARGEST_SIDE", 300)
    grid = torch.rand(5, 7, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    strips: list[int] = []

    def strip(width: int) -> np.ndarray:
        strips.append(width)
        return np.full((40, width, 3), 7, np.uint8)

    names = tuple(f"row {row}" for row in range(5))
    written = write_grid(grid, tmp_path / "a.png", above=strip, titles=tuple("abcdefg"), labels=names)
    # 300 less 40 and 14 above: 3 rows of 66; less the names: 3 columns of 66
    assert [path.name for path in written] == [f"a-{n}.png" for n in range(1, 7)]
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name for path in written]
    assert many_files(written) == (
        "in one file this grid would have more than 300 pixels a side: 6 files, a-1.png to a-6.png"
    )
    for number, path in enumerate(written):
        down, across = divmod(number, 3)
        rows, columns = (slice(0, 3), slice(3, 5))[down], (slice(0, 3), slice(3, 6), slice(6, 7))[across]
        with Image.open(path) as opened:
            assert max(opened.size) <= 300
            assert opened.text["Rows"].splitlines() == list(names[rows])  # type: ignore[attr-defined]
            pixels = np.asarray(opened)
        alone = write_grid(
            grid[rows, columns], tmp_path / "x.png", above=strip, titles="abcdefg"[columns], labels=names[rows]
        )
        assert np.array_equal(pixels, read(alone[0]))
    assert many_files(written[:1]) is None
    assert that_fit(64) == that_fit(32) == 4
    assert that_fit(1000) == 1
