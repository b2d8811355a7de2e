"""Every kind of pixel becomes upright 8-bit RGB, and damage is named."""

import io
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from frugan.data.formats.decoding import LARGEST, MOST_PIXELS, TRANSPARENT, UPRIGHT, Reading, read_picture, read_size
from frugan.data.formats.source import FORMATS, Unreadable

Encode = Callable[..., bytes]
MakePicture = Callable[..., Image.Image]


def pixels(data: bytes) -> np.ndarray:
    picture = read_picture(io.BytesIO(data))
    assert picture.mode == "RGB"
    return np.asarray(picture)


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_formats_keep_their_pixels(picture: MakePicture, encoded: Encode, format: str) -> None:
    options = {"lossless": True} if format == "WEBP" else {}
    np.testing.assert_array_equal(pixels(encoded(picture(), format, **options)), np.asarray(picture()))


@pytest.mark.parametrize("format", ["JPEG", "GIF"])
def test_lossy_formats_are_read(encoded: Encode, format: str) -> None:
    decoded = pixels(encoded(Image.new("RGB", (16, 12), (200, 40, 90)), format))
    assert decoded.shape == (12, 16, 3)
    assert np.abs(decoded.astype(int) - (200, 40, 90)).max() <= 3


def test_camera_jpeg_with_several_pictures_gives_its_first(encoded: Encode) -> None:
    red, blue = Image.new("RGB", (16, 16), (250, 0, 0)), Image.new("RGB", (16, 16), (0, 0, 250))
    decoded = pixels(encoded(red, "MPO", save_all=True, append_images=[blue]))
    assert decoded[..., 0].min() > 240


def test_animation_gives_its_first_frame(encoded: Encode) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    assert (pixels(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])) == (255, 0, 0)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF"])
def test_exif_rotation_is_applied(picture: MakePicture, encoded: Encode, orientation: int, format: str) -> None:
    upright = picture(width=24, height=16)
    turn = UPRIGHT.get(orientation)
    back = {
        Image.Transpose.ROTATE_90: Image.Transpose.ROTATE_270,
        Image.Transpose.ROTATE_270: Image.Transpose.ROTATE_90,
    }
    stored = upright if turn is None else upright.transpose(back.get(turn, turn))
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = pixels(encoded(stored, format, exif=exif))
    assert decoded.shape == (16, 24, 3)
    if format != "JPEG":
        np.testing.assert_array_equal(decoded, np.asarray(upright))


def test_damaged_exif_beside_good_pixels_is_ignored(picture: MakePicture, encoded: Encode) -> None:
    data = encoded(picture(), "PNG", exif=b"Exif\0\0this is not EXIF")
    np.testing.assert_array_equal(pixels(data), np.asarray(picture()))


def test_16_bit_grey_is_rounded_to_8_bits(encoded: Encode) -> None:
    deep = np.array([[0, 128, 129, 257, 32768, 65535]], np.uint16)
    for format in ("PNG", "TIFF"):
        decoded = pixels(encoded(Image.fromarray(deep), format))
        np.testing.assert_array_equal(decoded[..., 0], np.round(deep / 257))
        np.testing.assert_array_equal(decoded[..., 0], decoded[..., 2])


def test_16_bit_grey_with_the_other_byte_order(tmp_path: Path) -> None:
    Image.frombytes("I;16B", (2, 1), np.array([257, 65535], ">u2").tobytes()).save(tmp_path / "a.tif")
    np.testing.assert_array_equal(np.asarray(read_picture(tmp_path / "a.tif"))[0, :, 0], [1, 255])


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_grey_and_palette(picture: MakePicture, encoded: Encode, mode: str) -> None:
    converted = picture().convert(mode)
    np.testing.assert_array_equal(pixels(encoded(converted)), np.asarray(converted.convert("RGB")))


def test_cmyk(encoded: Encode) -> None:
    decoded = pixels(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"))
    assert np.abs(decoded.astype(int) - (255, 0, 0)).max() <= 3


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_laid_over_white(encoded: Encode, mode: str) -> None:
    clear = Image.new("RGBA", (3, 1))
    clear.putdata([(0, 0, 0, 0), (100, 100, 100, 255), (0, 0, 0, 128)])
    np.testing.assert_array_equal(pixels(encoded(clear.convert(mode)))[0, :, 0], [255, 100, 127])


def test_palette_with_a_transparent_colour(encoded: Encode) -> None:
    indexed = Image.new("P", (2, 1))
    indexed.putpalette([0, 0, 0, 10, 20, 30])
    indexed.putdata([0, 1])
    for format in ("PNG", "GIF"):
        np.testing.assert_array_equal(pixels(encoded(indexed, format, transparency=0))[0], [(255,) * 3, (10, 20, 30)])


def test_rgb_with_a_transparent_colour(encoded: Encode) -> None:
    data = encoded(Image.new("RGB", (2, 2), (9, 8, 7)), transparency=(9, 8, 7))
    assert (pixels(data) == 255).all()


def test_pixels_without_a_known_range_are_refused(encoded: Encode) -> None:
    with pytest.raises(Unreadable, match=r"32 bits.*8 or 16 bits"):
        pixels(encoded(Image.new("F", (4, 4)), "TIFF"))


@pytest.mark.parametrize("data", [b"", b"not a picture at all", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"])
def test_other_files_are_named_so(data: bytes) -> None:
    for read in (read_picture, read_size):
        with pytest.raises(Unreadable, match="not a picture"):
            read(io.BytesIO(data))


def test_missing_file_gives_its_reason(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="No such file"):
        read_picture(tmp_path / "gone.png")


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "BMP", "TIFF"])
def test_truncated_pictures_are_refused(picture: MakePicture, encoded: Encode, format: str) -> None:
    data = encoded(picture(width=64, height=64), format)
    with pytest.raises(Unreadable):
        read_picture(io.BytesIO(data[: len(data) // 2]))


def test_decompression_bomb_is_refused_from_its_header(encoded: Encode) -> None:
    data = bytearray(encoded(Image.new("1", (8, 8)), "BMP"))
    side = int(MOST_PIXELS**0.5) + 1
    data[18:26] = side.to_bytes(4, "little") * 2
    for read in (read_picture, read_size):
        with pytest.raises(Unreadable, match="decompression bomb"):
            read(io.BytesIO(bytes(data)))


def test_overwritten_bytes_raise_nothing_else(picture: MakePicture, encoded: Encode) -> None:
    draw = np.random.default_rng(1)
    whole = [encoded(picture(width=20, height=14), format) for format in ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")]
    read = refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's on large sizes and odd EXIF
        for turn in range(600):
            data = bytearray(whole[turn % len(whole)])
            for place in draw.integers(30, len(data), 3):  # behind most headers' sizes
                data[place] = draw.integers(256)
            try:
                read_picture(io.BytesIO(bytes(data)))
                read += 1
            except Unreadable:
                refused += 1
    assert read > 50
    assert refused > 50


def test_size_comes_from_the_header_alone(picture: MakePicture, encoded: Encode) -> None:
    assert read_size(io.BytesIO(encoded(picture(width=300, height=200))[:64])) == (300, 200)


def tiff(deep: np.ndarray, **tags: int) -> bytes:
    file = io.BytesIO()
    names = {"interpretation": 262}
    Image.fromarray(deep).save(file, "TIFF", tiffinfo={names[name]: value for name, value in tags.items()})
    return file.getvalue()


def test_deep_grey_of_which_0_is_white_is_no_negative() -> None:
    deep = np.array([[0, 257, 65535]], np.uint16)
    assert pixels(tiff(deep, interpretation=0))[0, :, 0].tolist() == [255, 254, 0]
    assert pixels(tiff(deep, interpretation=1))[0, :, 0].tolist() == [0, 1, 255]


def test_12_bits_that_a_file_declares_are_its_range() -> None:
    deep = bytearray(tiff(np.array([[0, 0]], np.uint16)))
    at = deep.index(bytes.fromhex("0201 0300 0100 0000 1000"))  # BitsPerSample 16
    deep[at + 8] = 12
    place = struct.unpack("<I", deep[(at := deep.index(bytes.fromhex("1101"))) + 8 : at + 12])[0]
    deep[place : place + 3] = bytes.fromhex("FFF 800".replace(" ", ""))  # 4095 and 2048, packed
    assert pixels(bytes(deep))[0, :, 0].tolist() == [255, 128]


def test_a_range_that_no_file_declares_is_named(encoded: Encode) -> None:
    deep = Image.fromarray(np.array([[0, 2048, 4095, 9999]], np.uint16))
    read = read_picture(io.BytesIO(encoded(deep)), Reading(range=4095))
    assert np.asarray(read)[0, :, 0].tolist() == [0, 128, 255, 255]
    assert LARGEST not in read.info
    assert read_picture(io.BytesIO(encoded(deep))).info[LARGEST] == 9999
    numbers = Image.fromarray(np.array([[0, 0.5, 1, np.nan]], np.float32))
    assert np.asarray(read_picture(io.BytesIO(encoded(numbers.crop((0, 0, 3, 1)), "TIFF")), Reading(range=1)))[
        0, :, 0
    ].tolist() == [0, 128, 255]
    with pytest.raises(Unreadable, match="no numbers"):
        read_picture(io.BytesIO(encoded(numbers, "TIFF")), Reading(range=1))


def test_the_transparent_value_of_deep_grey(encoded: Encode) -> None:
    read = read_picture(io.BytesIO(encoded(Image.fromarray(np.array([[0, 300, 65535]], np.uint16)), transparency=0)))
    assert np.asarray(read)[0, :, 0].tolist() == [255, 1, 255]
    assert read.info[TRANSPARENT]


def test_long_texts_and_profiles_cost_no_picture(picture: MakePicture, encoded: Encode) -> None:
    about = PngImagePlugin.PngInfo()
    about.add_text("workflow", "x" * 3_000_000, zip=True)
    turned = picture(width=16, height=8)
    exif = Image.Exif()
    exif[0x0112] = 6
    for options in ({"icc_profile": bytes(2_000_000)}, {"pnginfo": about}):
        data = encoded(turned, exif=exif, **options)
        assert read_size(io.BytesIO(data)) == (16, 8)
        np.testing.assert_array_equal(pixels(data), np.asarray(turned.transpose(Image.Transpose.ROTATE_270)))


@pytest.mark.parametrize("format", sorted({"AVIF", "JPEG2000"} & set(FORMATS.values())))
def test_newer_formats_are_read_where_pillow_can(format: str, encoded: Encode) -> None:
    decoded = pixels(encoded(Image.new("RGB", (16, 12), (200, 40, 90)), format))
    assert np.abs(decoded.astype(int) - (200, 40, 90)).max() <= 4


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty file"),
        (bytes(100), "nothing but zeros"),
        (b"\0\0\0\x18ftypheic", "HEIC"),
        (b" <!DOCTYPE html><html>404</html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (b"<?xml version='1.0'?><svg/>", "SVG"),
    ],
)
def test_what_is_called_a_picture_is_named_by_its_first_bytes(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(data)
    for file in (tmp_path / "a.jpg", io.BytesIO(data)):
        with pytest.raises(Unreadable, match=words):
            read_picture(file)
