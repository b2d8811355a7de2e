"""Pictures decoded to upright 8-bit RGB, whatever a file holds, and their colours: by name, which are grey, made grey.

EXIF rotation is applied. Transparency is laid over a colour, white if nothing is said. 16-bit grey is rounded to 8
bits; 16-bit colour keeps its high byte (Pillow's rule). The first frame of an animation counts. Colour profiles are
ignored, as the originals do.
"""

import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NewType

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageColor, UnidentifiedImageError

from frugan.data.formats.source import Unreadable
from frugan.errors import BadInput
from frugan.wording import shown

Background = NewType("Background", str)
"""A colour as "#rrggbb"."""
WHITE, GREY, BLACK = Background("#ffffff"), Background("#808080"), Background("#000000")


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

# Only these decoders run on files from elsewhere (Pillow's EPS decoder, for one, starts a program).
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF")
MOST_PIXELS = 178_956_970  # where Pillow too refuses: half a GiB as RGB

# What Pillow's decoders raise on damaged files: the first line in 120,000 overwritten ones, the second in reserve, so
# that one odd picture does not end the preparation of a million.
DAMAGED = (
    *(OSError, SyntaxError, ValueError, TypeError, Image.DecompressionBombError),
    *(EOFError, LookupError, ArithmeticError, RuntimeError, struct.error, zlib.error),
)

TRANSPARENT = "frugan: transparent"
"""In a picture's `info`: some of it was transparent, and was laid on the background."""

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
    try:
        with Image.open(file, formats=FORMATS) as opened:
            _check_size(*opened.size)
            return opened.size
    except DAMAGED as error:
        raise Unreadable(_reason(error)) from error


def read_picture(file: Path | BinaryIO, background: Background = WHITE) -> Image.Image:
    """Return the upright 8-bit RGB picture of a file, what is transparent on `background` and marked `TRANSPARENT`.

    Raises:
        Unreadable: not a picture, damaged, too large, or of a kind without a known range (32-bit, floating point).
    """
    try:
        with Image.open(file, formats=FORMATS) as opened:
            _check_size(*opened.size)
            opened.load()
            turn = UPRIGHT.get(_orientation(opened))
            picture = _to_rgb(opened, background)
    except DAMAGED as error:
        raise Unreadable(_reason(error)) from error
    return picture if turn is None else picture.transpose(turn)


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise Unreadable(f"{width} x {height} pixels: more than {MOST_PIXELS:,} are taken for a decompression bomb")


def _orientation(opened: Image.Image) -> int:
    try:
        return int(opened.getexif().get(ExifTags.Base.Orientation, 1))
    except DAMAGED:  # damaged EXIF beside good pixels: keep the picture as it lies
        return 1


def _to_rgb(opened: Image.Image, background: Background) -> Image.Image:
    # Pillow before 11 opened 16-bit grey PNG as "I"
    if opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format == "PNG"):
        deep = np.asarray(opened).astype(np.uint32).clip(0, 65535)  # [H, W]
        return Image.fromarray(((deep * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if opened.mode in {"I", "F"}:
        raise Unreadable(
            f"pixels of Pillow's mode {opened.mode} (32 bits) have no known range; save it with 8 or 16 bits"
        )
    if opened.has_transparency_data:
        clear = opened.convert("RGBA")
        laid = Image.alpha_composite(Image.new("RGBA", clear.size, background), clear).convert("RGB")
        if np.asarray(clear.getchannel("A")).min() < 255:  # many files are opaque throughout, alpha channel or not
            laid.info[TRANSPARENT] = True
        return laid
    return opened.convert("RGB")


def _reason(error: BaseException) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not a picture"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # without the path, which the caller names
    return str(error) or type(error).__name__
