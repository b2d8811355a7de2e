"""Turn pictures of any format into a memory-mapped training set; notice that they changed, and mend damaged blocks."""

import io
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import blake2b, sha256
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import PIL
from numpy.typing import NDArray

from frugan.contract.settings import AllowUpscale
from frugan.data.formats.decoding import WHITE, Background, background, is_grey
from frugan.data.formats.detect import open_source, visible_files
from frugan.data.formats.picture_set import PictureSet, label_bytes, open_prepared
from frugan.data.formats.set_file import (
    FORMAT,
    PICTURES_FILE,
    SET_FILE,
    VERSION,
    DamagedSet,
    Origin,
    SetFile,
    block_digest,
    is_prepared,
    pictures_per_block,
    read_set_file,
    write_set_file,
)
from frugan.data.formats.source import Source, Unreadable, is_picture_name
from frugan.data.pixel_lines import blank_lines, grey_lines
from frugan.data.survey import (
    Fit,
    FittedPictures,
    Fitting,
    PreparationReport,
    Progress,
    Resample,
    kept_lines,
    report_of,
)
from frugan.errors import BadInput, checked
from frugan.files import atomic_folder, refuse_lack_of_room
from frugan.version import __version__
from frugan.wording import count, shown, storable

DATA_SUFFIXES = frozenset({".json", ".npy", ".bin", ".tar"})
READ_ANEW = frozenset({".tif", ".tiff", ".zip", ".tar"})
"""Suffixes of files of which some gave wrong pixels before frugan read TIFF's "0 is white" at 16 bits, and sparse tars:
sets of them are prepared again."""
DATA_NAMES = frozenset({"batches.meta.txt", "fine_label_names.txt"})


def fingerprint(source: Path, fitting: Fitting) -> str:
    """Return a key under which the prepared form of a source can be kept: 32 hexadecimal digits.

    It depends on names, sizes and modification times of the files and on the settings; no file is opened.

    Args:
        source: the path that `prepare` would get.
        fitting: how its pictures are prepared.

    Raises:
        BadInput: the path does not exist.
    """
    settings = f"{VERSION} {fitting.resolution} {fitting.resample} {fitting.allow_upscale}"
    if fitting.background != WHITE:  # sets from before there was a choice are on white, and are kept
        settings += f" {fitting.background}"
    if fitting.fit != "crop":  # the same
        settings += f" {fitting.fit}"
    if fitting.range is not None:
        settings += f" range {fitting.range}"
    if source.is_dir():
        names = sorted(filter(_matters, visible_files(source)))
        paths = [source / name for name in names]
    elif source.is_file():
        names, paths = [source.name], [source]
    elif source.exists():
        raise BadInput(f"{shown(str(source))} is neither a file nor a folder. Give the folder that holds the pictures.")
    else:
        raise BadInput(f"{shown(str(source))} does not exist (looked from {shown(str(Path.cwd()))}). Check the path.")
    if any(Path(name).suffix.lower() in READ_ANEW for name in names):
        settings += " 2"
    digest = blake2b(settings.encode(), digest_size=16)
    for name, path in zip(names, paths, strict=True):
        try:
            about = os.stat(path)
        except OSError as error:  # a broken link: prepare will name it
            digest.update(f"{error.errno} ".encode())
        else:
            digest.update(f"{about.st_size} {about.st_mtime_ns} ".encode())
        digest.update(os.fsencode(name) + b"\0")
    return digest.hexdigest()


def _matters(name: str) -> bool:
    return is_picture_name(name) or Path(name).suffix.lower() in DATA_SUFFIXES or Path(name).name in DATA_NAMES


class PictureCount:
    """Counts and digests of pictures uint8 [3, R, R] that come one after the other, in a `with` statement.

    Args:
        resolution: side R in pixels.

    Attributes:
        grey: how many of the pictures so far are grey.
        blocks: digests of the blocks so far; complete after `finish`.
    """

    def __init__(self, resolution: int) -> None:
        self._resolution = resolution
        self._count = 0
        self.grey = 0
        self._digest = sha256()
        self._block: list[NDArray[np.uint8]] = []
        self.blocks: list[str] = []

    def append(self, picture: NDArray[np.uint8]) -> None:
        """Add one picture [3, R, R]."""
        self._digest.update(picture.data)
        self._count += 1
        self.grey += is_grey(picture)
        self._block.append(picture)
        if len(self._block) == pictures_per_block(self._resolution):
            self._end_block()

    def finish(self, labels: NDArray[np.int64]) -> str:
        """Return the digest of pictures and labels [N]."""
        self._digest.update(label_bytes(labels))
        if self._block:
            self._end_block()
        return self._digest.hexdigest()

    def _end_block(self) -> None:
        self.blocks.append(block_digest(np.stack(self._block)))
        self._block.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is open."""


class PictureFile(PictureCount):
    """A growing .npy file of uint8 [N, 3, R, R].

    Plain writes, not a memory map: a full disk is then an OSError and not a killed process.

    Args:
        path: the file to make.
        resolution: side R in pixels.
    """

    def __init__(self, path: Path, resolution: int) -> None:
        super().__init__(resolution)
        self._file = path.open("xb")
        self._file.write(self._header())

    def append(self, picture: NDArray[np.uint8]) -> None:
        """Write one picture [3, R, R]."""
        self._file.write(picture.data)
        super().append(picture)

    def finish(self, labels: NDArray[np.int64]) -> str:
        """Put the number of pictures into the header, flush, and return the digest of pictures and labels [N]."""
        digest = super().finish(labels)
        self._file.seek(0)
        self._file.write(self._header())
        self._file.flush()
        os.fsync(self._file.fileno())
        return digest

    def _header(self) -> bytes:
        """Return the .npy header; numpy pads it, so that its length does not depend on the number of pictures."""
        header = io.BytesIO()
        shape = (self._count, 3, self._resolution, self._resolution)
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
        return header.getvalue()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def mend_block(folder: Path, block: int, source: Path) -> None:
    """Write one block of a prepared set again, in its place, so that maps of the file see it.

    Args:
        folder: of a set that `prepare` may make again.
        block: its number, as in `Blocks`.
        source: what the set was prepared from.

    Raises:
        BadInput: the source no longer gives the same pictures; the set is marked then, to be prepared anew.
        OSError: the file cannot be written.
    """
    about = read_set_file(folder)
    size = pictures_per_block(about.resolution)
    names = about.origin.files[block * size : (block + 1) * size]
    resample: Resample = "lanczos" if about.origin.resample == "lanczos" else "bilinear"
    fit: Fit = "pad" if about.origin.fit == "pad" else "crop"
    on, white = background(about.origin.background), about.origin.range
    fitting = Fitting(about.resolution, resample, about.origin.allow_upscale, on, fit, white)
    try:
        with open_source(source, fitting.reading) as opened:
            places = {storable(name): index for index, name in enumerate(opened.names)}
            pictures = np.stack([fitting(opened.picture(places[name])) for name in names])  # [n, 3, R, R]
        same = block_digest(pictures) == about.block_digests[block]
    except (BadInput, Unreadable, KeyError):
        same = False
    if not same:
        (folder / SET_FILE).unlink(missing_ok=True)
        raise BadInput(
            f"{shown(str(folder / PICTURES_FILE))} is damaged, and {shown(str(source))} no longer gives the same "
            "pictures; run the same command again, which prepares them again"
        )
    offset = np.load(folder / PICTURES_FILE, mmap_mode="r", allow_pickle=False).offset
    with (folder / PICTURES_FILE).open("r+b") as file:
        file.seek(offset + block * size * pictures[0].nbytes)
        file.write(pictures.data)


BYTES_PER_ENTRY = 256  # in set.json: a label and a name; estimates the room on disk


@checked
def prepare(
    source: str | Path,
    out: str | Path,
    *,
    resolution: int,
    resample: Resample = "bilinear",
    allow_upscale: AllowUpscale = False,
    background: Background = WHITE,
    fit: Fit = "crop",
    range: float | None = None,
    workers: int = 2,
    progress: Progress | None = None,
    survey_progress: Progress | None = None,
) -> PreparationReport:
    """Write the pictures of `source`, brought to squares of one size, as a set that `open_prepared` maps.

    The result does not depend on `workers`. `out` appears when it is complete; an interrupted preparation leaves
    nothing, and what a killed one left is deleted by the next. If `out` already holds this very set it is kept.

    Args:
        source: a folder of pictures or class folders, a zip, an HDF5 file, a CIFAR folder, or a prepared set.
        out: folder to make.
        resolution: side of the prepared pictures in pixels.
        resample: "bilinear" (BigGAN-PyTorch's) | "lanczos" (sharper).
        allow_upscale: whether pictures smaller than `resolution` are enlarged, left out ("leave-out"), or refused where
            they are more than a tenth (False).
        background: what transparent pictures are laid on.
        fit: "crop" to the square in the middle, or "pad" with the background.
        range: value that is white in grey pictures of more than 8 bits; None: the largest that the file can hold.
        workers: threads that decode.
        progress: gets (pictures done, pictures in all) while pixels are written.
        survey_progress: the same while headers are read, before that.

    Raises:
        BadInput: the source is missing, empty, unknown or wrong; pictures are too small; more than 1 % cannot be read;
            `out` holds something else; the disk is full.
    """
    source, out = Path(source), Path(out)
    fitting = Fitting(resolution, resample, allow_upscale, background, fit, range)
    if workers < 1:
        raise BadInput(f"workers {workers}: expected at least 1 thread")
    key = fingerprint(source, fitting)
    out = out.resolve() if out.is_symlink() else out
    if out.exists():
        kept = _already_there(out, key)
        if kept is not None:
            return kept
        if out.resolve() == Path.cwd() or os.path.ismount(out):
            raise BadInput(
                f"OUT {shown(str(out))}: the set becomes a new folder, which takes the place of this one, and this one "
                "has to stay; choose a folder inside it"
            )
    if out.resolve().is_relative_to(source.resolve()):
        raise BadInput(
            f"OUT {shown(str(out))} lies inside the source {shown(str(source))}; choose a folder outside of it."
        )
    with open_source(source, fitting.reading) as opened:
        fitted = FittedPictures(
            opened, fitting, lambda picture: picture, workers=workers, survey_progress=survey_progress
        )
        try:
            return _write(fitted, out, key, progress)
        except _MadeMeanwhile:
            kept = _already_there(out, key)
            assert kept is not None  # it holds something
            return kept


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Raise BadInput where a set cannot be written; what cannot be read is `Unreadable`."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInput(
            f"{shown(str(error.filename))}: is a file, and a folder is wanted there; choose another place (OUT; "
            "FRUGAN_PREPARED for what train prepares)"
        ) from error
    except OSError as error:
        raise BadInput(
            f"cannot write {shown(str(out))}: {error.strerror or error}. Nothing was left there. Free some "
            "room, or choose another place (OUT; FRUGAN_PREPARED for what train prepares)."
        ) from error


class _MadeMeanwhile(Exception):
    """Another process made the set while this one still looked at the pictures."""


def _already_there(out: Path, key: str) -> PreparationReport | None:
    """Report the set that `out` holds if it is the wanted one; None for an empty folder."""
    where = shown(str(out))
    if out.is_dir() and not any(out.iterdir()):
        return None
    if not (out.is_dir() and is_prepared(out)):
        raise BadInput(f"{where} exists and is not a prepared set; it is not overwritten. Choose another OUT.")
    kept, about = open_prepared(out), read_set_file(out)
    if about.origin.fingerprint != key:
        raise BadInput(
            f"{where} holds another set (from {shown(about.origin.source)}, {kept.resolution} pixels, or of files that "
            "have changed since); it is not overwritten. Delete it, or choose another OUT."
        )
    line = "this set was already prepared from the same files: kept as it is"
    return report_of(out, about, (line, *kept_lines(about)))


def kept_before(out: Path, key: str, opened: Callable[[], PictureSet], say: Callable[[str], None]) -> PictureSet | None:
    """Open the set that we prepared ourselves before; one that is not what it was is removed, to be made again.

    Args:
        out: its folder, which need not exist.
        key: `fingerprint` of what it was made of.
        opened: opens the folder.
    """
    if not out.exists():
        return None
    try:
        kept = opened()
        if read_set_file(out).origin.fingerprint == key:
            return kept
        reason = f"{out} holds another set"
    except DamagedSet as error:
        reason = error.reason
    except BadInput as error:
        reason = str(error)
    say(f"data: the pictures that were prepared before are made again: {reason}")
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink()
    return None


def write_digests(
    source: Source,
    out: Path,
    fitting: Fitting,
    key: str,
    *,
    workers: int = 2,
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Write a set without its pixels: only what its pictures, which have the right size, are checked by where they lie.

    Args:
        source: stays open.
        out: folder to make; it must not exist.
        key: `fingerprint` of source and fitting.
        workers: threads that read.
        progress: gets (pictures done, N).

    Returns:
        What was found, in lines for people.

    Raises:
        BadInput: more than 1 % cannot be read, or `out` cannot be written.
    """
    fitted = FittedPictures(source, fitting, lambda picture: picture, workers=workers, survey_progress=None)
    try:
        return _write(fitted, out, key, progress, pixels=False).lines
    except _MadeMeanwhile:
        return kept_lines(read_set_file(out))


def _write(
    fitted: FittedPictures[NDArray[np.uint8]], out: Path, key: str, progress: Progress | None, *, pixels: bool = True
) -> PreparationReport:
    """Write a set; without its pixels, only the digests that they are checked by where they lie."""
    source, fitting = fitted.source, fitted.fitting
    if pixels:
        refuse_lack_of_room(
            out,
            len(source) * (3 * fitting.resolution**2 + BYTES_PER_ENTRY),
            f"{count(len(source), 'picture')} of {fitting.resolution} pixels",
            "choose another place (OUT; FRUGAN_PREPARED for what train prepares), or a smaller resolution.",
        )
    with _writing(out), atomic_folder(out) as folder:
        if out.is_dir() and any(out.iterdir()):
            raise _MadeMeanwhile
        blank: list[int] = []
        with (
            PictureFile(folder / PICTURES_FILE, fitting.resolution)
            if pixels
            else PictureCount(fitting.resolution) as file,
            closing(fitted.read(progress)) as pictures,
        ):
            for picture, _ in pictures:  # [3, R, R]
                file.append(picture)
                if (picture == picture[:, :1, :1]).all():
                    blank.append(fitted.good[-1])
            digest = file.finish(source.classes.labels[fitted.good])
        about = SetFile(
            format=FORMAT,
            version=VERSION,
            resolution=fitting.resolution,
            pictures=len(fitted.good),
            labelled=source.classes.labelled,
            class_names=[storable(name) for name in source.classes.names],
            labels=source.classes.labels[fitted.good].tolist(),
            digest=digest,
            grey=file.grey,
            block_digests=file.blocks,
            origin=_origin(fitted, key),
        )
        write_set_file(folder, about)
    lines = (*fitted.lines(), *blank_lines(source, blank, set(fitted.transparent), fitting.background))
    return report_of(out, about, (*lines, *grey_lines(len(fitted.good), file.grey)))


def _origin(fitted: FittedPictures[NDArray[np.uint8]], key: str) -> Origin:
    source, fitting = fitted.source, fitted.fitting
    return Origin(
        source=storable(str(source.path.resolve())),
        kind=source.kind,
        fingerprint=key,
        files=[storable(source.names[index]) for index in fitted.good],
        bad=[(storable(source.names[index]), storable(reason)) for index, reason in sorted(fitted.bad.items())],
        left_out=[storable(source.names[index]) for index in fitted.left_out],
        upscaled=fitted.upscaled,
        transparent=len(fitted.transparent),
        resample=fitting.resample,
        allow_upscale=fitting.allow_upscale,
        background=fitting.background,
        fit=fitting.fit,
        range=fitting.range,
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    """Return the versions of what decides the pixels."""
    return {
        "frugan": __version__,
        "pillow": PIL.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
