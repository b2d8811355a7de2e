"""What is known of pictures before any is prepared."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frugan.data.facts import LOOKED_AT, look_at
from frugan.data.formats.decoding import BLACK, WHITE, background
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.errors import BadInput

WIDTH, HEIGHT = 40, 30


def _noise(seed: int, *, channels: int = 3, width: int = WIDTH) -> Image.Image:
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (HEIGHT, width, channels), np.uint8))


def _folder(folder: Path, pictures: dict[str, Image.Image]) -> Path:
    for name, picture in pictures.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture.save(folder / name)
    return folder


def test_sizes_classes_colours_and_what_is_there_twice(tmp_path: Path) -> None:
    pictures = {f"a/{at}.png": _noise(at) for at in range(20)} | {f"b/{at}.png": _noise(50 + at) for at in range(12)}
    pictures["b/again.png"] = _noise(3)
    pictures["b/clear.png"] = _noise(4, channels=4)
    pictures["b/square.png"] = _noise(5, width=HEIGHT)
    facts = look_at(_folder(tmp_path, pictures))
    assert facts.pictures == 35
    assert facts.class_counts == (20, 15)
    assert (facts.sides(whole=False).min(), facts.sides(whole=True).max()) == (HEIGHT, WIDTH)
    assert facts.oblong == pytest.approx(34 / 35)
    assert (facts.grey, facts.transparent, len(facts.duplicates)) == (False, 1, 1)
    assert str(facts) == (
        "35 of 30 pixels, 2 classes of 15 to 20, in colour, 3% transparent in places, 1 duplicate among 35 looked at, "
        "which stay in the set"
    )
    assert facts.duplicate_lines == (
        "warning: the same picture in two classes: a/3.png = b/again.png; the network is told that it is both: leave "
        "it in one of them",
    )


def test_what_is_there_twice_is_named_and_what_only_looks_alike_when_small_is_not(tmp_path: Path) -> None:
    pictures = {f"{at:02}.png": _noise(at) for at in range(20)} | {f"again {at}.png": _noise(0) for at in range(7)}
    almost = np.asarray(_noise(1, width=WIDTH * 40)).copy()
    pictures["large.png"] = Image.fromarray(almost)
    almost[0, 0, 0] ^= 1
    pictures["almost.png"] = Image.fromarray(almost)
    facts = look_at(_folder(tmp_path, pictures))
    assert len(facts.duplicates) == 7
    named = ", ".join(f"00.png = again {at}.png" for at in range(5))
    assert facts.duplicate_lines == (f"duplicates: {named} and 2 more",)


def test_a_set_without_files_names_its_pictures_by_number() -> None:
    stored = np.random.default_rng(0).integers(0, 256, (30, 3, 8, 8), np.uint8)
    stored[20], stored[7] = stored[4], stored[5]
    labels = np.arange(30) // 15
    facts = look_at(PictureSet(stored, labels, ("a", "b"), True, picture_digest(stored, labels)))
    within, across = facts.duplicate_lines
    assert within == "duplicates: picture 5 = picture 7"
    assert "two classes: picture 4 = picture 20;" in across


def test_one_folder_is_no_class_and_a_picture_that_cannot_be_read_does_not_count(tmp_path: Path) -> None:
    grey = {f"{at}.png": Image.fromarray(np.full((9, 9 + at % 2), at, np.uint8)) for at in range(200)}
    folder = _folder(tmp_path, grey)
    (folder / "broken.png").write_bytes(b"no picture")
    facts = look_at(folder)
    assert facts.pictures == 200
    assert facts.grey
    assert str(facts) == "200 of 9 pixels, no classes, all grey"
    assert [line.partition(":")[0] for line in facts.left_out] == ["1 picture left out, cannot be read"]


def test_the_smallest_and_the_largest_are_named_and_damage_behind_the_header_is_counted(tmp_path: Path) -> None:
    sides = [9, *[20] * 148, 40, 30]
    folder = _folder(
        tmp_path,
        {f"{at:03}.png": Image.fromarray(np.full((side, side), at, np.uint8)) for at, side in enumerate(sides)},
    )
    broken = (folder / "150.png").read_bytes()
    (folder / "150.png").write_bytes(broken[:60])
    (folder / "notes.txt").write_text("none")
    facts = look_at(folder)
    assert str(facts).startswith("150 of 9 to 40 pixels (median 20), ")
    assert facts.smaller_than(32, whole=False) == 149
    ignored, bad = facts.left_out
    assert "ignored: .txt 1" in ignored
    assert "150.png" in bad


def test_what_vanishes_on_its_background(tmp_path: Path) -> None:
    white = np.full((HEIGHT, WIDTH, 4), 255, np.uint8)
    white[:, : WIDTH // 2, 3] = 0
    pictures = {f"{at}.png": Image.fromarray(white - np.uint8(at)) for at in range(20)}
    pictures["blank.png"] = Image.fromarray(np.full((HEIGHT, WIDTH, 3), 255, np.uint8))
    folder = _folder(tmp_path, pictures | {"dark.png": Image.fromarray(white // 2)})
    on_white, seen = look_at(folder, background=WHITE), look_at(folder)
    assert (on_white.transparent, on_white.vanished) == (21, 20)
    assert (seen.background, seen.transparent, seen.vanished, seen.duplicates) == (BLACK, 21, 0, ())
    assert look_at(folder, background=background("red")).vanished == 0


def test_thin_dark_lines_are_seen_on_neither_and_stay_on_white(tmp_path: Path) -> None:
    lines = np.zeros((512, 512, 4), np.uint8)
    lines[:, 200, 3] = 255
    facts = look_at(_folder(tmp_path, {f"{at}.png": Image.fromarray(np.roll(lines, at, 1)) for at in range(20)}))
    assert (facts.background, facts.vanished) == (WHITE, 20)


def test_an_opened_set_is_looked_at_evenly() -> None:
    stored = np.zeros((2 * LOOKED_AT, 3, 8, 8), np.uint8)
    stored[LOOKED_AT:, 0] = 9  # in colour
    labels = np.arange(len(stored)) // LOOKED_AT
    known = PictureSet(stored, labels, ("black", "red"), True, picture_digest(stored, labels))
    facts = look_at(known)
    assert len(facts.looked_at) == LOOKED_AT
    assert (facts.looked_at[:, 0].mean(axis=(1, 2)) == 9).mean() == pytest.approx(0.5, abs=0.01)
    assert (facts.grey, facts.class_counts) == (False, (LOOKED_AT, LOOKED_AT))
    assert (facts.only_side, look_at(known.in_grey()).grey) == (8, True)


def test_pictures_that_are_too_few(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="3 pictures that can be read; expected at least 20"):
        look_at(_folder(tmp_path, {f"{at}.png": _noise(at) for at in range(3)}))


def test_a_range_that_is_hardly_used_is_pointed_out(tmp_path: Path) -> None:
    ramp = np.arange(0, 4096, 64, dtype=np.uint16).reshape(8, 8)  # 12 bits in files of 16
    folder = _folder(tmp_path, {f"{at}.png": Image.fromarray(ramp) for at in range(20)})
    (line,) = look_at(folder).left_out
    assert line.startswith("warning: 20 pictures of 16 bits use 0 to 4,032 of 65,535: almost black; if 4,095 is white")
    assert look_at(folder, range=4095).left_out == ()
