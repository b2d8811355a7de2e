"""Pictures decoded to upright 8-bit RGB, whatever a file holds, and their colours: by name, which are grey, made grey.

EXIF rotation is applied. Transparency is laid over a colour, white if nothing is said. Deep grey (more than 8 bits) is
rounded to 8, from a range that the file or the user names; 16-bit colour keeps its high byte (Pillow's rule). The first
frame of an animation counts. Colour profiles are ignored, as the originals do.
"""

import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NewType, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageColor, ImageFile, TiffImagePlugin, UnidentifiedImageError

from frugan.data.formats.source import AVIF_CURE, FORMATS, HEIF_CURE, READS_HEIF, Unreadable
from frugan.errors import BadInput
from frugan.wording import MIB, shown

Background = NewType("Background", str)
"""A colour as "#rrggbb"."""
WHITE, GREY, BLACK = Background("#ffffff"), Background("#808080"), Background("#000000")


@dataclass(frozen=True)
class Reading:
    """Choices that a picture file leaves to whoever reads it."""

    background: Background = WHITE  # what transparent pictures are laid on
    # deep grey value that becomes white; None: what the file's depth allows, and 32 bits are refused
    range: float | None = None


AS_THEY_ARE = Reading()


def background(text: str) -> Background:
    """Read the name of a colour, or "#rrggbb".

    Raises:
        BadInput: no such colour.
    """
    try:
        red, green, blue = ImageColor.getrgb(text)[:3]
    except ValueError as error:
        raise BadInput(
            f"background {shown(text)!r}: no such colour; expected a name such as black, or #rrggbb such as #808080"
        ) from error
    return Background(f"#{red:02x}{green:02x}{blue:02x}")


def is_grey(pictures: NDArray[np.uint8]) -> bool:
    """Tell whether red, green and blue are the same everywhere in uint8 [..., 3, R, R]."""
    red = pictures[..., :1, :, :]
    return bool((pictures[..., 1:, :, :] == red).all())


def luma(pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn uint8 [..., 3, R, R] grey: [..., 1, R, R].

    Luma as in ITU-R BT.601, rounded as by Pillow's conversion to "L": a grey picture keeps its values.
    """
    wide = pictures.astype(np.uint32)
    red, green, blue = (wide[..., channel, :, :] for channel in range(3))
    grey = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16  # 65536 times 0.299, 0.587, 0.114
    return np.expand_dims(grey.astype(np.uint8), -3)


# One picture file, decoded.

MOST_PIXELS = 178_956_970  # where Pillow too refuses: half a GiB as RGB

# What Pillow's decoders raise on damaged files: the first line in 120,000 overwritten ones, the second in reserve, so
# that one odd picture does not end the preparation of a million.
DAMAGED = (
    *(OSError, SyntaxError, ValueError, TypeError, Image.DecompressionBombError),
    *(EOFError, LookupError, ArithmeticError, RuntimeError, struct.error, zlib.error),
)

TRANSPARENT = "frugan: transparent"
"""In a picture's `info`: some of it was transparent, and was laid on the background."""

LARGEST = "frugan: largest"
"""In a picture's `info`: its largest value of 65,535, if it has more than 8 bits and nothing says of how many."""

T = TypeVar("T")

UPRIGHT = {  # EXIF orientation to the turn that undoes it
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_size(file: Path | BinaryIO) -> tuple[int, int]:
    """Return (width, height) in pixels from the header alone, before EXIF rotation.

    Raises:
        Unreadable: not a picture, or one with more than `MOST_PIXELS` pixels.
    """
    return _of_opened(file, lambda opened: opened.size)


def read_picture(file: Path | BinaryIO, reading: Reading = AS_THEY_ARE) -> Image.Image:
    """Return the upright 8-bit RGB picture of a file, marked `TRANSPARENT` and with its `LARGEST` value where it is so.

    Raises:
        Unreadable: not a picture, damaged, too large, or of a kind without a known range (32-bit, floating point).
    """

    def decoded(opened: Image.Image) -> Image.Image:
        rawmode = str(opened.tile) if isinstance(opened, ImageFile.ImageFile) else ""
        opened.load()
        turn = UPRIGHT.get(_orientation(opened))
        picture = _to_rgb(opened, reading)
        if ";16" in rawmode and not opened.mode.startswith("I"):  # colour
            picture.info[LARGEST] = int(np.asarray(picture).max()) * 257
        return picture if turn is None else picture.transpose(turn)

    return _of_opened(file, decoded)


def _of_opened(file: Path | BinaryIO, use: Callable[[Image.Image], T]) -> T:
    """Return what `use` gives of an opened picture; a PNG whose texts Pillow refuses is opened without them.

    Raises:
        Unreadable: it cannot be opened, or `use` fails.
    """

    def used(opened_file: Path | BinaryIO) -> T:
        with Image.open(opened_file, formats=list(FORMATS.values())) as opened:
            _check_size(*opened.size)
            return use(opened)

    try:
        return used(file)
    except DAMAGED as error:
        refused, content = error, _content(file)
    bare = _without_texts(content)
    if len(bare) < len(content):
        try:
            return used(io.BytesIO(bare))
        except DAMAGED:  # something else is wrong with it
            pass
    raise Unreadable(_reason(refused, content)) from refused


START_BYTES = 4096
MOST_REREAD_BYTES = 256 * MIB
PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_TEXTS = (b"iCCP", b"tEXt", b"zTXt", b"iTXt")
"""Chunks that say nothing of pixels, which Pillow refuses from 1 MiB on: profiles, prompts, workflows."""
ORIENTING = (b"XML:com.adobe.xmp\0", b"Raw profile type ")
"""How those begin that may hold an orientation."""


def _content(file: Path | BinaryIO) -> bytes:
    """Return the whole of a PNG, of other files how they begin."""
    try:
        if isinstance(file, Path):
            with file.open("rb") as opened:
                return _content(opened)
        file.seek(0)
        start = file.read(START_BYTES)
        return start + file.read(MOST_REREAD_BYTES) if start.startswith(PNG_START) else start
    except (OSError, ValueError):  # it could not be opened in the first place, which is the reason that counts
        return b""


def _without_texts(content: bytes) -> bytes:
    """Return a PNG without its profile and texts, any other file as it is."""
    kept, at = [content[:8]], 8
    while content.startswith(PNG_START) and at < len(content):
        end = at + 12 + int.from_bytes(content[at : at + 4], "big")
        if content[at + 4 : at + 8] not in PNG_TEXTS or content[at + 8 : end].startswith(ORIENTING):
            kept.append(content[at:end])
        at = end
    return b"".join(kept) if len(kept) > 1 else content


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise Unreadable(f"{width} x {height} pixels: more than {MOST_PIXELS:,} are taken for a decompression bomb")


def _orientation(opened: Image.Image) -> int:
    try:
        return int(opened.getexif().get(ExifTags.Base.Orientation, 1))
    except DAMAGED:  # damaged EXIF beside good pixels: keep the picture as it lies
        return 1


def _to_rgb(opened: Image.Image, reading: Reading) -> Image.Image:
    if opened.mode in {"I", "F"} or opened.mode.startswith("I;16"):
        return _deep_to_rgb(opened, reading)
    if opened.has_transparency_data:
        clear = opened.convert("RGBA")
        return _laid(clear.convert("RGB"), np.asarray(clear.getchannel("A")), reading.background)
    return opened.convert("RGB")


def _deep_to_rgb(opened: Image.Image, reading: Reading) -> Image.Image:
    """Grey of more than 8 bits. Pillow's conversion would clip it, so what it knows of tags and chunks is done here."""
    # Pillow before 11 opened 16-bit grey PNG as "I"
    of_16_bits = opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format == "PNG")
    tags = getattr(opened, "tag_v2", {})
    bits = tags.get(TiffImagePlugin.BITSPERSAMPLE, (16,))[0]
    white = reading.range or (2.0**bits - 1 if of_16_bits else None)
    if white is None:
        raise Unreadable(
            f"pixels of Pillow's mode {opened.mode} (32 bits) have no known range; say which value is white "
            "(data.range; --range of prepare), or save it with 8 or 16 bits"
        )
    deep = np.asarray(opened).astype(np.float64)  # [H, W]
    if not np.isfinite(deep).all():
        raise Unreadable("some of its pixels are no numbers")
    grey = np.floor((deep * 255 / white).clip(0, 255) + 0.5).astype(np.uint8)
    if tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == 0:  # 0 is white, as in scans and X-ray pictures
        grey = 255 - grey
    picture = Image.fromarray(grey).convert("RGB")
    clear = opened.info.get("transparency")
    if isinstance(clear, int):  # the value that a PNG calls transparent
        picture = _laid(picture, np.where(deep == clear, 0, 255).astype(np.uint8), reading.background)
    if of_16_bits and bits == 16 and reading.range is None:
        picture.info[LARGEST] = int(deep.max())
    return picture


def _laid(picture: Image.Image, alpha: NDArray[np.uint8], background: Background) -> Image.Image:
    """Return a picture on a background, as far as `alpha` [H, W] lets that through."""
    clear = picture.convert("RGBA")
    clear.putalpha(Image.fromarray(alpha))
    laid = Image.alpha_composite(Image.new("RGBA", clear.size, background), clear).convert("RGB")
    if alpha.min() < 255:  # many files are opaque throughout, alpha channel or not
        laid.info[TRANSPARENT] = True
    return laid


_HEIC = (
    "HEIC, damaged or of a kind that is not read" if READS_HEIF else f"HEIC: {HEIF_CURE}; or convert it to JPEG or PNG"
)
# What files are that are called pictures, by their first bytes: the place, the bytes, and what to say.
OTHER_FILES = (
    (4, b"ftyphe", _HEIC),
    (4, b"ftypmif1", _HEIC),
    (4, b"ftypavi", f"AVIF, damaged or not read by this Pillow: {AVIF_CURE}; or convert it to JPEG or PNG"),
    (4, b"ftyp", "a film, not a picture"),
    (4, b"jP  ", "JPEG 2000, which this Pillow does not read: convert it to JPEG or PNG"),
    (4, b"JXL ", "JPEG XL, which is not read: convert it to JPEG or PNG"),
    (0, b"\xff\x0a", "JPEG XL, which is not read: convert it to JPEG or PNG"),
    (0, b"8BPS", "a Photoshop file: save it as PNG"),
    (0, b"%PDF", "a PDF, not a picture"),
    (0, b"PK\x03\x04", "a zip, not a picture"),
    (0, b"version https://git-lfs", "a pointer of Git LFS: `git lfs pull` fetches the picture"),
)


def _reason(error: BaseException, content: bytes) -> str:
    if isinstance(error, UnidentifiedImageError):
        return _kind_of(content)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # without the path, which the caller names
    return str(error) or type(error).__name__


def _kind_of(content: bytes) -> str:
    if not content:
        return "not a picture, but an empty file"
    if not content.strip(b"\0"):
        return "not a picture, but nothing but zeros: a copy or a disk went wrong"
    for at, start, words in OTHER_FILES:
        if content.startswith(start, at):
            return words
    text = content[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "not a picture, but a web page: download it again"
    return "not a picture, but SVG or other XML" if text.startswith((b"<?xml", b"<svg")) else "not a picture"
