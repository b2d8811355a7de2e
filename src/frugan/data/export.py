"""Pictures, cropped and resized to squares, into files that other programs read: zips, HDF5, WebDataset's shards."""

import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frugan.data.formats.archives import LISTING
from frugan.data.formats.detect import open_source
from frugan.data.formats.shards import NAMES_FILE
from frugan.data.formats.source import Classes
from frugan.data.survey import FittedPictures, Fitting, Progress
from frugan.errors import BadInput, optional_module
from frugan.files import refuse_lack_of_room
from frugan.wording import count, first_names, shown

# Pictures as NVlabs' programs read them: a zip of PNGs and a `dataset.json`.
#
# Source: the data sets of StyleGAN2-ADA and StyleGAN3: squares of one size, neither packed nor compressed, so that they
# are read at once.

PER_FOLDER = 1000
MADE = (1980, 1, 1, 0, 0, 0)
"""Time of every file in the zip: the same pictures give the same bytes."""


class NvlabsZip:
    """A zip with classes as numbers. NVlabs' programs want a side that is a power of two."""

    share = 1.0

    def encoded(self, pixels: NDArray[np.uint8]) -> bytes:
        """Encode a picture as a PNG without compression."""
        return png(pixels, compress_level=0)

    def write(self, out: Path, pictures: Iterator[tuple[bytes, int]], classes: Classes, resolution: int) -> None:
        """Write all pictures, then their labels."""
        labels: list[tuple[str, int]] = []
        with zipfile.ZipFile(out, "x", zipfile.ZIP_STORED) as archive:
            for number, (picture, label) in enumerate(pictures):
                name = f"{number // PER_FOLDER:05d}/img{number:08d}.png"
                archive.writestr(zipfile.ZipInfo(name, MADE), picture)
                labels.append((name, label))
            listing = json.dumps({"labels": labels if classes.labelled else None})
            archive.writestr(zipfile.ZipInfo(LISTING, MADE), listing)

    def lines(self, classes: Classes, resolution: int) -> Iterator[str]:
        """Warn of what the format cannot hold, and of what programs that read it refuse."""
        yield from _lost_names(classes, LISTING)
        if resolution & (resolution - 1):
            yield f"{resolution} is no power of two: NVlabs' programs refuse such pictures"


IMAGENET_CLASSES = 1000
CHUNK = 500
"""Pictures in a chunk, as in BigGAN-PyTorch's own files."""


class Hdf5:
    """One file, not compressed: it is read at random places."""

    share = 1.0

    def encoded(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return pixels

    def write(
        self, out: Path, pictures: Iterator[tuple[NDArray[np.uint8], int]], classes: Classes, resolution: int
    ) -> None:
        """Write chunk by chunk.

        Raises:
            BadInput: h5py is missing.
        """
        h5py = optional_module("h5py", "an HDF5 file needs h5py", "data")
        shape = (3, resolution, resolution)
        with h5py.File(out, "x") as file:
            imgs = file.create_dataset("imgs", (0, *shape), np.uint8, maxshape=(None, *shape), chunks=(CHUNK, *shape))
            labels = file.create_dataset("labels", (0,), np.int64, maxshape=(None,), chunks=(CHUNK,))
            waiting: list[tuple[NDArray[np.uint8], int]] = []

            def flush() -> None:
                count = len(imgs) + len(waiting)
                for dataset, values in ((imgs, [one for one, _ in waiting]), (labels, [label for _, label in waiting])):
                    dataset.resize(count, axis=0)
                    dataset[count - len(waiting) :] = np.stack(values)
                waiting.clear()

            for picture in pictures:
                waiting.append(picture)
                if len(waiting) == CHUNK:
                    flush()
            if waiting:
                flush()

    def lines(self, classes: Classes, resolution: int) -> Iterator[str]:
        """Warn of what the format cannot hold, and of what its program takes for granted."""
        yield from _lost_names(classes, "the file")
        size = resolution
        yield f"BigGAN-PyTorch reads it as ILSVRC{size}.hdf5 in its data folder, with --dataset I{size}_hdf5"
        if (number := len(classes.names)) != IMAGENET_CLASSES:
            yield (
                f"it takes that for {IMAGENET_CLASSES:,} classes: write {number:,} beside it in the table of classes "
                "in its utils.py"
            )


def _lost_names(classes: Classes, holder: str) -> Iterator[str]:
    """Warn if classes have names, which the format cannot keep."""
    if classes.labelled and classes.names != tuple(map(str, range(len(classes.names)))):
        named = first_names([f"{number} {name}" for number, name in enumerate(classes.names)])
        yield f"{holder} holds classes as numbers; their names have no place in it: {named}"


# Pictures as WebDataset shards: tar files of `000000000.png` and `000000000.cls`, and the names of the classes beside.
#
# Source: the WebDataset format: files of one sample stand together and share the name up to the first dot.

SHARD_BYTES = 1 << 28
"""A shard ends at the first picture beyond: small enough to move by itself, large enough that opening it is nothing."""


class Shards:
    """A folder of `shard-000000.tar` and so on.

    Args:
        shard_bytes: size of a shard, about.
    """

    share = 0.001  # drawings take hardly more

    def __init__(self, shard_bytes: int = SHARD_BYTES) -> None:
        self._shard_bytes = shard_bytes

    def encoded(self, pixels: NDArray[np.uint8]) -> bytes:
        """Encode a picture as a PNG: lossless, and small enough to transfer."""
        return png(pixels, compress_level=6)

    def write(self, out: Path, pictures: Iterator[tuple[bytes, int]], classes: Classes, resolution: int) -> None:
        """Write shard after shard, then the names of the classes."""
        out.mkdir()
        numbered = enumerate(pictures)
        following = next(numbered, None)
        shards = 0
        while following is not None:
            with tarfile.open(out / f"shard-{shards:06d}.tar", "x", format=tarfile.USTAR_FORMAT) as shard:
                while following is not None and shard.offset < self._shard_bytes:
                    number, (picture, label) = following
                    _add(shard, f"{number:09d}.png", picture)
                    if classes.labelled:
                        _add(shard, f"{number:09d}.cls", str(label).encode())
                    following = next(numbered, None)
            shards += 1
        if classes.labelled:
            (out / NAMES_FILE).write_text(json.dumps(list(classes.names), ensure_ascii=False) + "\n", "utf-8")

    def lines(self, classes: Classes, resolution: int) -> Iterator[str]:
        """Say where the class names are."""
        if classes.labelled:
            yield f"the shards hold classes as numbers; {NAMES_FILE} beside them has their names"


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)  # its time is 0, its owner nobody: the same pictures give the same bytes
    about.size, about.mode = len(content), 0o644
    shard.addfile(about, io.BytesIO(content))


T = TypeVar("T")


class Packing(Protocol[T]):
    """How pictures are laid down."""

    share: float  # of the bytes of pixels that it takes on the disk, at least

    def encoded(self, pixels: NDArray[np.uint8]) -> T:
        """A picture [3, R, R] as it is stored; called by several threads."""

    def write(self, out: Path, pictures: Iterator[tuple[T, int]], classes: Classes, resolution: int) -> None:
        """Write pictures with their class numbers, in order, into `out`, which is not there yet."""

    def lines(self, classes: Classes, resolution: int) -> Iterator[str]:
        """Yield lines that warn of what the format cannot hold, or say where it went."""


def pack_pictures(
    source: Path,
    out: Path,
    packing: Packing[T],
    fitting: Fitting,
    *,
    workers: int = 2,
    progress: Progress | None = None,
    survey_progress: Progress | None = None,
) -> tuple[int, tuple[str, ...]]:
    """Pack the pictures of a source; `out` appears when it is complete.

    Args:
        source: anything that can be trained on.
        out: file or folder to make.
        packing: the form that it has.
        fitting: how pictures become squares.
        workers: threads that decode and encode.
        progress: gets (pictures done, pictures in all) while pixels are written.
        survey_progress: the same while headers are read, before that.

    Returns:
        How many pictures there are, and lines for people.

    Raises:
        BadInput: `out` exists; or the source is missing, unknown or wrong; more than 1 % cannot be read; the disk is
            full.
    """
    if out.is_symlink() or out.exists():
        raise BadInput(f"{shown(str(out))} exists; it is not overwritten. Delete it, or choose another OUT.")
    with open_source(source, fitting.reading) as opened:
        refuse_lack_of_room(
            out,
            packing.share * 3 * fitting.resolution**2 * len(opened),
            f"{count(len(opened), 'picture')} of {fitting.resolution} pixels",
            "choose another OUT",
        )
        fitted = FittedPictures(opened, fitting, packing.encoded, workers=workers, survey_progress=survey_progress)
        try:
            with _appears(out) as beside, closing(fitted.read(progress)) as pictures:
                packing.write(beside, pictures, opened.classes, fitting.resolution)
        except OSError as error:  # reading errors are Unreadable: this is the writing side
            raise BadInput(
                f"cannot write {shown(str(out))}: {error.strerror or error}. Nothing was left there. Free some room, "
                "or choose another OUT."
            ) from error
        lines = (*fitted.lines(), *packing.lines(opened.classes, fitting.resolution))
    return len(fitted.good), lines


def png(pixels: NDArray[np.uint8], compress_level: int) -> bytes:
    """[3, R, R] as an RGB PNG."""
    encoded = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    picture.save(encoded, "PNG", compress_level=compress_level)
    return encoded.getvalue()


@contextmanager
def _appears(out: Path) -> Iterator[Path]:
    """Give a place beside `out`; rename it when the block ends well, delete it when an exception leaves."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    try:
        yield beside
        for path in sorted(beside.rglob("*")) if beside.is_dir() else [beside]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        beside.rename(out)
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        beside.unlink(missing_ok=True)
