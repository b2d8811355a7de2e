"""From pictures to a memory-mapped set."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from frugan.data.formats.decoding import background
from frugan.data.formats.picture_set import open_prepared
from frugan.data.formats.set_file import PICTURES_FILE, prepared_again, read_set_file
from frugan.data.prepare import mend_block, prepare
from frugan.errors import BadInput
from frugan.files import refuse_lack_of_room

MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]
MakePicture = Callable[..., Image.Image]


def test_pixels_labels_and_names(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    files: dict[str, Image.Image | bytes] = {f"{'ab'[i % 2]}/{i}.png": picture(i) for i in range(6)}
    progress: list[tuple[int, int]] = []
    surveyed: list[tuple[int, int]] = []
    report = prepare(
        folder(files),
        tmp_path / "new" / "out",
        resolution=16,
        progress=lambda *step: progress.append(step),
        survey_progress=lambda *step: surveyed.append(step),
    )
    prepared = open_prepared(tmp_path / "new" / "out", verify=True)
    assert isinstance(prepared.pictures, np.memmap)
    assert not prepared.pictures.flags.writeable
    for place, index in enumerate([0, 2, 4, 1, 3, 5]):
        np.testing.assert_array_equal(prepared.pictures[place], np.asarray(picture(index)).transpose(2, 0, 1))
    assert prepared.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert (prepared.class_names, prepared.labelled, prepared.resolution, len(prepared)) == (("a", "b"), True, 16, 6)
    assert progress == surveyed == [(step, 6) for step in range(1, 7)]
    assert (report.pictures, report.digest, report.bad) == (6, prepared.digest, ())
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["out"]
    about = json.loads((report.path / "set.json").read_text())
    assert about["origin"]["files"][1] == "a/2.png"
    assert set(about["origin"]["versions"]) == {"frugan", "pillow", "numpy", "python"}


def test_the_result_does_not_depend_on_workers(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    source = folder({f"{i:03}.png": picture(i, 16 + i % 7, 16 + i % 5) for i in range(100)})
    outs = [tmp_path / f"out{workers}" for workers in (1, 2, 7)]
    for out, workers in zip(outs, (1, 2, 7), strict=True):
        prepare(source, out, resolution=12, workers=workers)
    for file in ("pictures.npy", "set.json"):
        assert len({(out / file).read_bytes() for out in outs}) == 1


def test_mixed_sizes_are_reported(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    source = folder({"1.png": picture(1, 20, 16), "2.png": picture(2, 32, 32), "3.png": picture(3)})
    report = prepare(source, tmp_path / "out", resolution=16)
    text = "\n".join(report.lines)
    assert "1 picture of 3 cropped to the square in the middle" in text
    assert "1 picture resized to 16 x 16 (bilinear; or resample=lanczos)" in text
    assert "unlabelled" in text


def test_transparent_pictures_are_counted(folder: MakeFolder, tmp_path: Path) -> None:
    clear, opaque = (Image.new("RGBA", (16, 16), (10, 20, 30, alpha)) for alpha in (254, 255))
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    clear.save(turned, "PNG", exif=exif)
    source = folder({"1.png": clear, "2.png": opaque, "3.png": opaque.convert("RGB"), "4.png": turned.getvalue()})
    report = prepare(source, tmp_path / "out", resolution=16)
    assert report.transparent == 2
    assert any("2 pictures are transparent in places: they were laid on white (" in line for line in report.lines)
    black = prepare(source, tmp_path / "black", resolution=16, background=background("black"))
    assert any("they were laid on black (another colour: data.background=white" in line for line in black.lines)


def test_pictures_that_show_nothing_are_pointed_out(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    """White on nothing vanishes on white; what was one colour before has no other background to show it."""
    drawn = Image.new("RGBA", (16, 16), (0, 0, 0, 0))
    drawn.paste((255, 255, 255, 255), (4, 4, 12, 12))
    plain = Image.new("RGB", (16, 16), (9, 8, 7))
    source = folder({"a/1.png": drawn, "a/2.png": picture(1), "b/1.png": plain, "b/2.png": picture(2)})

    def warning(laid_on: str) -> str:
        report = prepare(source, tmp_path / laid_on, resolution=16, background=background(laid_on))
        (line,) = [line for line in report.lines if "one colour" in line]
        return line

    both = "2 pictures are one colour throughout, in class a (1 of 2), b (1 of 2): nothing to learn from; 1 of them "
    assert both + "vanished on the background: try data.background=grey" in warning("white")
    assert warning("black").endswith("in class b (1 of 2): nothing to learn from; leave them out")


def test_lanczos(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    source = folder({"1.png": picture(1, 32, 32)})
    prepare(source, tmp_path / "out", resolution=16, resample="lanczos")
    expected = picture(1, 32, 32).resize((16, 16), Image.Resampling.LANCZOS)
    resized = open_prepared(tmp_path / "out").pictures[0]
    np.testing.assert_array_equal(resized, np.asarray(expected).transpose(2, 0, 1))


def test_small_pictures_are_named_before_any_work(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    files: dict[str, Image.Image | bytes] = {f"{i}.png": picture(i, 32, 32) for i in range(5)}
    source = folder(files | {"s1.png": picture(8, 40, 20), "s2.png": picture(9, 24, 24)})
    with pytest.raises(
        BadInput,
        match=r"2 pictures of 7 .* smaller than 32 x 32: s1.png, s2.png .*40 x 20.*'leave-out'.*allow_upscale=True",
    ):
        prepare(source, tmp_path / "out", resolution=32)
    assert not (tmp_path / "out").exists()
    report = prepare(source, tmp_path / "out", resolution=32, allow_upscale=True)
    assert (report.pictures, report.upscaled) == (7, 2)
    assert any("2 pictures enlarged" in line for line in report.lines)


def test_small_pictures_are_left_out_at_a_word(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    files: dict[str, Image.Image | bytes] = {f"a/{i}.png": picture(i, 32, 32) for i in range(5)}
    files |= {"b/1.png": picture(6, 40, 50), "a/s1.png": picture(8, 40, 20), "b/s2.png": picture(9, 24, 24)}
    source, done = folder(files), list[tuple[int, int]]()
    report = prepare(
        source, tmp_path / "out", resolution=32, allow_upscale="leave-out", progress=lambda *at: done.append(at)
    )
    assert (report.pictures, report.upscaled, report.bad, done[-1]) == (6, 0, (), (6, 6))
    said = [line for line in report.lines if "left out" in line]
    assert said == ["2 pictures left out, smaller than 32 x 32: a/s1.png, b/s2.png"]
    assert "1 picture resized to 32 x 32" in "\n".join(report.lines)
    kept, about = open_prepared(tmp_path / "out"), read_set_file(tmp_path / "out")
    assert kept.labels.tolist() == [0, 0, 0, 0, 0, 1]
    np.testing.assert_array_equal(kept.pictures[4], np.asarray(picture(4, 32, 32)).transpose(2, 0, 1))
    assert prepared_again(tmp_path / "out", about).endswith("--resolution 32 --leave-out-small")
    padded = prepare(source, tmp_path / "padded", resolution=32, allow_upscale="leave-out", fit="pad")
    assert padded.pictures == 7  # a/s1.png is long enough


def test_leaving_small_pictures_out_leaves_some_of_each_class(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path
) -> None:
    source = folder({"a/1.png": picture(1, 32, 32), "b/1.png": picture(2, 24, 24)})
    with pytest.raises(BadInput, match=r"class 'b' .* smaller than 32 x 32, and none is left"):
        prepare(source, tmp_path / "out", resolution=32, allow_upscale="leave-out")
    with pytest.raises(BadInput, match=r"every picture in .* is smaller than 64 x 64"):
        prepare(source, tmp_path / "out", resolution=64, allow_upscale="leave-out")
    assert not (tmp_path / "out").exists()


def test_padding_refuses_no_picture_and_says_what_it_did(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path
) -> None:
    source = folder({"wide.png": picture(1, 64, 20), "small.png": picture(2, 10, 12), "square.png": picture(3, 32, 32)})
    with pytest.raises(BadInput, match=r"2 pictures of 3 .*or pad them \(fit='pad'\)"):
        prepare(source, tmp_path / "cropped", resolution=32)
    report = prepare(source, tmp_path / "out", resolution=32, fit="pad", background=background("black"))
    assert (report.pictures, report.upscaled) == (3, 0)
    said = "\n".join(report.lines)
    assert "2 pictures of 3 padded to squares with black (another colour: data.background=white" in said
    assert "1 picture smaller than 32 x 32, with black all around (allow_upscale enlarges them)" in said
    assert "1 picture resized to 32 x 32" in said
    assert "cropped to the square" not in said
    small = open_prepared(tmp_path / "out").pictures[0]  # [3, 32, 32]
    np.testing.assert_array_equal(small[:, 10:22, 11:21], np.asarray(picture(2, 10, 12)).transpose(2, 0, 1))
    assert small.sum() == small[:, 10:22, 11:21].sum()
    about = read_set_file(tmp_path / "out")
    assert prepared_again(tmp_path / "out", about).endswith("--resolution 32 --fit pad --background '#000000'")
    larger = prepare(source, tmp_path / "larger", resolution=32, fit="pad", allow_upscale=True)
    assert larger.upscaled == 1
    assert "1 picture enlarged" in "\n".join(larger.lines)


def test_a_damaged_block_of_padded_pictures_is_mended_padded(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path
) -> None:
    source = folder({"wide.png": picture(1, 40, 20)})
    prepare(source, tmp_path / "out", resolution=32, fit="pad")
    file = tmp_path / "out" / PICTURES_FILE
    whole = file.read_bytes()
    file.write_bytes(whole[:-5] + bytes(5))
    mend_block(tmp_path / "out", 0, source)
    assert file.read_bytes() == whole


def test_few_bad_pictures_are_left_out_and_named(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    files: dict[str, Image.Image | bytes] = {f"{'ab'[i % 2]}/{i:03}.png": picture(i) for i in range(298)}
    source = folder(files | {"a/bad1.jpg": b"no picture", "a/bad2.png": b""})
    whole = source / "b" / "001.png"
    whole.write_bytes(whole.read_bytes()[:300])  # its header is good: found only when it is decoded
    report = prepare(source, tmp_path / "out", resolution=16)
    assert [name for name, _ in report.bad] == ["a/bad1.jpg", "a/bad2.png", "b/001.png"]
    assert any("3 pictures left out, cannot be read: a/bad1.jpg (not a picture)" in line for line in report.lines)
    prepared = open_prepared(tmp_path / "out", verify=True)
    assert len(prepared) == 297
    assert prepared.labels.tolist() == [0] * 149 + [1] * 148
    np.testing.assert_array_equal(prepared.pictures[149], np.asarray(picture(3)).transpose(2, 0, 1))


def test_many_bad_pictures_are_refused(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    source = folder({f"{i}.png": picture(i) for i in range(20)} | {"x.png": b"no", "y.png": b"no"})
    with pytest.raises(BadInput, match=r"at least 2 pictures of 22 in .* cannot be read, more than 1%: x.png \(not a"):
        prepare(source, tmp_path / "out", resolution=16)
    (source / "y.png").unlink()
    assert prepare(source, tmp_path / "out", resolution=16).pictures == 20  # one may be bad in however few
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "x.png").write_bytes(b"no")
    with pytest.raises(BadInput, match="at least 1 picture of 1 in"):
        prepare(tmp_path / "alone", tmp_path / "none", resolution=16)


@pytest.mark.parametrize("cut", [0, 300])
def test_a_class_of_which_nothing_can_be_read_is_refused(
    cut: int, folder: MakeFolder, picture: MakePicture, encoded: Callable[..., bytes], tmp_path: Path
) -> None:
    good = {f"{name}/{i}.png": picture(i) for name in "ab" for i in range(5)}
    source = folder(good | {"c/x.png": encoded(picture(1))[:cut] or b"no"})
    with pytest.raises(BadInput, match=r"class 'c' in .*: none of its pictures can be read: .*x.png"):
        prepare(source, tmp_path / "out", resolution=16)


def test_pictures_cut_short_are_refused_while_decoding(
    folder: MakeFolder, picture: MakePicture, encoded: Callable[..., bytes], tmp_path: Path
) -> None:
    source = folder({f"{i}.png": encoded(picture(i))[:300] for i in range(20)})
    with pytest.raises(BadInput, match=r"2 pictures of 20 .*0.png"):
        prepare(source, tmp_path / "out", resolution=16)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_prepared_set_can_be_prepared_smaller(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    prepare(folder({"a/1.png": picture(1), "b/2.png": picture(2)}), tmp_path / "big", resolution=16)
    report = prepare(tmp_path / "big", tmp_path / "small", resolution=8)
    smaller = open_prepared(tmp_path / "small")
    assert (smaller.resolution, smaller.class_names, report.kind) == (8, ("a", "b"), "prepared set")


def test_the_same_set_is_kept_and_another_is_not_overwritten(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path
) -> None:
    source, out = folder({"1.png": picture(1)}), tmp_path / "out"
    first = prepare(source, out, resolution=16)
    written = (out / "set.json").stat().st_mtime_ns
    again = prepare(source, out, resolution=16)
    assert (again.digest, again.pictures) == (first.digest, first.pictures)
    assert "kept" in again.lines[0]
    assert (out / "set.json").stat().st_mtime_ns == written
    with pytest.raises(BadInput, match=r"holds another set.*not overwritten"):
        prepare(source, out, resolution=8)
    picture(5).save(source / "5.png")
    with pytest.raises(BadInput, match="changed since"):
        prepare(source, out, resolution=16)


def test_other_folders_and_files_are_not_overwritten(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    source = folder({"1.png": picture(1)})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for out in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt"):
        with pytest.raises(BadInput, match="not a prepared set; it is not overwritten"):
            prepare(source, out, resolution=16)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_an_empty_folder_is_taken(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert prepare(folder({"1.png": picture(1)}), tmp_path / "out", resolution=16).pictures == 1


def test_a_link_to_an_empty_folder_is_filled_where_it_leads(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path
) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "large")
    report = prepare(folder({"a.png": picture()}), tmp_path / "out", resolution=8)
    assert report.path == tmp_path / "large"
    assert len(open_prepared(tmp_path / "out")) == 1


def test_a_folder_that_has_to_stay_is_refused_before_any_work(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder({"a.png": picture()})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(BadInput, match=r"this one has to stay; choose"):
        prepare(source, Path(), resolution=8)
    prepare(source, tmp_path / "made", resolution=8)
    monkeypatch.chdir(tmp_path / "made")
    assert prepare(source, Path(), resolution=8).pictures == 1  # what is right already stays


def test_what_another_process_made_meanwhile_is_taken(
    folder: MakeFolder, picture: MakePicture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = folder({"a.png": picture()}), tmp_path / "out"
    asked = "frugan.data.prepare.refuse_lack_of_room"

    def looks(*given: Any) -> None:
        monkeypatch.setattr(asked, refuse_lack_of_room)
        prepare(source, out, resolution=8)

    monkeypatch.setattr(asked, looks)
    assert prepare(source, out, resolution=8).lines == (
        "this set was already prepared from the same files: kept as it is",
    )


def test_out_inside_the_source(folder: MakeFolder, picture: MakePicture) -> None:
    source = folder({"1.png": picture(1)})
    with pytest.raises(BadInput, match="lies inside the source"):
        prepare(source, source / "prepared", resolution=16)


def test_unicode_paths_and_names_that_are_not_text(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    odd = "\udcff\udcfe.png"  # two bytes that are not UTF-8
    source = folder({"猫/ねこ.png": picture(1), f"собака/{odd}": picture(2)})
    prepare(source, tmp_path / "набор 🐈", resolution=16)
    prepared = open_prepared(tmp_path / "набор 🐈", verify=True)
    assert prepared.class_names == ("собака", "猫")
    about = json.loads((tmp_path / "набор 🐈" / "set.json").read_text(encoding="utf-8"))
    assert about["origin"]["files"] == ["собака/??.png", "猫/ねこ.png"]


def test_wrong_settings(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    source = folder({"1.png": picture(1)})
    with pytest.raises(BadInput, match="workers 0"):
        prepare(source, tmp_path / "out", resolution=16, workers=0)
    with pytest.raises(BadInput, match="resolution 0"):
        prepare(source, tmp_path / "out", resolution=0)
    with pytest.raises(BadInput, match="does not exist"):
        prepare(tmp_path / "gone", tmp_path / "out", resolution=16)


def test_classes_of_few_pictures_are_pointed_out(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    one = picture(1)
    counts = {"few": 3, "fewer": 19, "enough": 20}
    source = folder({f"{name}/{i}.png": one for name, number in counts.items() for i in range(number)})
    lines = prepare(source, tmp_path / "out", resolution=16).lines
    assert [line for line in lines if line.startswith("2 classes have fewer than 20 pictures: few (3), fewer (19); so")]
    flat = folder({f"flat/{i}.png": one for i in range(3)})
    assert not [line for line in prepare(flat / "flat", tmp_path / "flat", resolution=16).lines if "fewer" in line]


def test_a_range_that_is_hardly_used_is_warned_of_and_can_be_named(folder: MakeFolder, tmp_path: Path) -> None:
    ramp = np.arange(0, 4096, 64, dtype=np.uint16).reshape(8, 8)  # 12 bits in files of 16
    source = folder({f"{number}.png": Image.fromarray(ramp) for number in range(3)})
    dark = prepare(source, tmp_path / "dark", resolution=8)
    assert any("3 pictures of 16 bits use 0 to 4,032 of 65,535: almost black" in line for line in dark.lines)
    assert any("data.range=4095; --range 4095 of prepare" in line for line in dark.lines)
    light = prepare(source, tmp_path / "light", resolution=8, range=4095)
    assert not any("16 bits" in line for line in light.lines)
    assert open_prepared(tmp_path / "light")[0].max() == 251
    assert prepared_again(tmp_path / "light", read_set_file(tmp_path / "light")).endswith("--range 4095")
    mend_block(tmp_path / "light", 0, source)
    assert open_prepared(tmp_path / "light")[0].max() == 251


def test_few_pictures_without_classes_are_pointed_out(folder: MakeFolder, picture: MakePicture, tmp_path: Path) -> None:
    report = prepare(folder({"a.png": picture()}), tmp_path / "out", resolution=16)
    assert any("only 1 picture: so few are learned by heart" in line for line in report.lines)
