"""Many pictures into files: an npz as evaluators read it, a folder of PNGs, or an animation; never all in memory."""

import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

from frugan.errors import BadInput
from frugan.files import atomic_file, atomic_folder, refuse_lack_of_room

Block = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Pictures [n, C, R, R], C = 1 or 3, and their classes [n]."""
FRAMES_PER_SECOND = 24
FILM_ENDINGS = (".gif", ".webp", ".mp4")
SMALLEST_MOVING = 256
"""Animations of smaller pictures are enlarged by a whole factor."""


def write_npz(blocks: Iterable[Block], count: int, path: Path) -> None:
    """Write pictures and classes as BigGAN's sampling script does: x uint8 [N, C, R, R], y int64 [N].

    Values are rounded, where that script cut them off. Written block by block.

    Args:
        count: pictures in all blocks together; at least 1.

    Raises:
        BadInput: the disk has no room for them.
    """
    labels: list[NDArray[np.int64]] = []
    rest = iter(blocks)
    first = next(rest)
    bytes_of_each = first[0][0].nbytes + first[1].itemsize
    refuse_lack_of_room(path, count * bytes_of_each, f"{count:,} pictures", "draw fewer, or choose another --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_file(path) as beside,
        zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        with archive.open("x.npy", "w", force_zip64=True) as member:
            header = {"descr": "|u1", "fortran_order": False, "shape": (count, *first[0].shape[1:])}
            np.lib.format.write_array_header_1_0(member, header)
            for pictures, classes in chain([first], rest):
                member.write(np.ascontiguousarray(pictures).tobytes())
                labels.append(classes)
        with archive.open("y.npy", "w") as member:
            np.lib.format.write_array(member, np.concatenate(labels).astype(np.int64))


LEAST_PNG = 0.1
"""Share of the bytes of its pixels that a drawn picture takes as a PNG, at least."""


def write_pngs(blocks: Iterable[Block], count: int, folder: Path, about: Mapping[str, str]) -> None:
    """Write each picture as a PNG, in a folder for each class where there are several.

    Args:
        count: pictures in all blocks together; at least 1.
        about: text chunks of every file.

    Raises:
        BadInput: there is something in the folder, or the disk has no room for them.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise BadInput(f"{folder}: holds something already, which would mix with these samples; choose another --out")
    written = 0
    chunks = _chunks(about)
    rest = iter(blocks)
    first = next(rest)
    needed = LEAST_PNG * count * first[0][0].nbytes
    refuse_lack_of_room(folder, needed, f"{count:,} pictures", "draw fewer, or choose another --out")
    with atomic_folder(folder) as beside:
        for pictures, classes in chain([first], rest):
            for picture, label in zip(pictures, classes, strict=True):
                inside = beside / f"{int(label):04d}"
                inside.mkdir(exist_ok=True)
                _image(picture.transpose(1, 2, 0)).save(inside / f"{written:06d}.png", pnginfo=chunks)
                written += 1


def write_png(picture: NDArray[np.uint8], path: Path, about: Mapping[str, str]) -> None:
    """Write one picture [C, R, R]; see `write_pngs`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as beside:
        beside.write_bytes(png_of(picture, about))


def png_of(picture: NDArray[np.uint8], about: Mapping[str, str]) -> bytes:
    """One picture [C, R, R] as a PNG file."""
    file = io.BytesIO()
    _image(picture.transpose(1, 2, 0)).save(file, "PNG", pnginfo=_chunks(about))
    return file.getvalue()


def write_animation(frames: Iterable[NDArray[np.uint8]], path: Path, about: Mapping[str, str]) -> None:
    """Write frames [H, W, 1 or 3] as GIF, WebP or MP4, by the name's ending.

    Frames are taken one by one. An MP4 holds one in memory; until the others are written, a GIF takes a byte for each
    pixel of all frames, and a WebP about five.

    Args:
        frames: one at least.
        about: texts, in the comment of a GIF and the EXIF description of a WebP; an MP4 has no room for them.

    Raises:
        BadInput: another ending, or OpenCV is missing for MP4.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    larger = _enlarged(frames)
    if path.suffix in (".gif", ".webp"):
        pictures = map(_image, larger)
        told = "\n".join(f"{keyword}: {text}" for keyword, text in about.items())
        options: dict[str, Any] = {"save_all": True, "loop": 0, "duration": round(1000 / FRAMES_PER_SECOND)}
        options |= {"comment": told.encode()} if path.suffix == ".gif" else {"exif": _described(told), "quality": 90}
        kind = path.suffix[1:].upper()
        with atomic_file(path) as beside:
            next(pictures).save(beside, kind, append_images=pictures, **options)
        return
    if path.suffix != ".mp4":
        raise BadInput(f"{path}: expected a name that ends in .gif, .webp or .mp4")
    try:
        import cv2  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise BadInput(f"{path}: MP4 needs OpenCV: pip install 'frugan[face]'; or choose .webp or .gif") from error
    first = next(larger)
    height, width = (side - side % 2 for side in first.shape[:2])  # the codec wants even sides
    code = cv2.VideoWriter.fourcc(*"mp4v")
    with atomic_file(path) as beside:
        film = cv2.VideoWriter(str(beside), code, FRAMES_PER_SECOND, (width, height))
        if not film.isOpened():
            raise BadInput(f"{path}: this OpenCV writes no MP4; choose .webp or .gif")
        try:
            for frame in chain([first], larger):
                blue_first = np.broadcast_to(frame, (*frame.shape[:2], 3))[:height, :width, ::-1]
                film.write(np.ascontiguousarray(blue_first))
        finally:
            film.release()


def _enlarged(frames: Iterable[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
    for frame in frames:
        factor = -(-SMALLEST_MOVING // min(frame.shape[:2]))
        yield frame.repeat(factor, 0).repeat(factor, 1)


def _described(text: str) -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.ImageDescription] = text
    return exif


def _chunks(about: Mapping[str, str]) -> PngInfo:
    chunks = PngInfo()
    for keyword, text in about.items():
        chunks.add_itxt(keyword, text)
    return chunks


def _image(pixels: NDArray[np.uint8]) -> Image.Image:
    """[H, W, 1 or 3] -> a picture of mode L or RGB."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
