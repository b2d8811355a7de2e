"""Turn pictures of any format into a memory-mapped training set."""

import importlib.metadata
import platform
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import PIL
from numpy.typing import NDArray

from frugan.data.background import WHITE, Background
from frugan.data.fingerprint import fingerprint
from frugan.data.fitted_pictures import FittedPictures
from frugan.data.fitting import Fitting, Resample
from frugan.data.formats import open_source
from frugan.data.picture_file import PictureFile
from frugan.data.picture_set import open_prepared
from frugan.data.preparation_report import PreparationReport, blank_lines, grey_lines, report_of
from frugan.data.set_file import (
    FORMAT,
    PICTURES_FILE,
    VERSION,
    Origin,
    SetFile,
    is_prepared,
    read_set_file,
    write_set_file,
)
from frugan.data.survey import Progress
from frugan.data.unfinished import unfinished_folder
from frugan.data.wording import shown, size, storable
from frugan.errors import BadInput

BYTES_PER_ENTRY = 256  # in set.json: a label and a name; estimates the room on disk


def prepare(
    source: Path,
    out: Path,
    *,
    resolution: int,
    resample: Resample = "bilinear",
    allow_upscale: bool = False,
    background: Background = WHITE,
    workers: int = 2,
    progress: Progress | None = None,
    survey_progress: Progress | None = None,
) -> PreparationReport:
    """Write the pictures of `source`, cropped and resized to squares, as a set that `open_prepared` maps.

    The result does not depend on `workers`. `out` appears when it is complete; an interrupted preparation leaves
    nothing, and what a killed one left is deleted by the next. If `out` already holds this very set it is kept.

    Args:
        source: a folder of pictures or class folders, a zip, an HDF5 file, a CIFAR folder, or a prepared set.
        out: folder to make.
        resolution: side of the prepared pictures in pixels.
        resample: "bilinear" (BigGAN-PyTorch's) | "lanczos" (sharper).
        allow_upscale: enlarge pictures smaller than `resolution` instead of refusing them.
        background: what transparent pictures are laid on.
        workers: threads that decode.
        progress: gets (pictures done, pictures in all) while pixels are written.
        survey_progress: the same while headers are read, before that.

    Raises:
        BadInput: the source is missing, empty, unknown or wrong; pictures are too small; more than 1 % cannot be read;
            `out` holds something else; the disk is full.
    """
    fitting = Fitting(resolution, resample, allow_upscale, background)
    if workers < 1:
        raise BadInput(f"workers {workers}: expected at least 1 thread")
    key = fingerprint(source, fitting)
    if out.is_symlink() or out.exists():
        kept = _already_there(out, key)
        if kept is not None:
            return kept
    if out.resolve().is_relative_to(source.resolve()):
        raise BadInput(
            f"OUT {shown(str(out))} lies inside the source {shown(str(source))}; choose a folder outside of it."
        )
    with open_source(source, background) as opened:
        fitted = FittedPictures(opened, fitting, _as_it_is, workers=workers, survey_progress=survey_progress)
        try:
            return _write(fitted, out, key, progress)
        except OSError as error:  # reading errors are Unreadable: this is the writing side
            raise BadInput(
                f"cannot write {shown(str(out))}: {error.strerror or error}. Nothing was left there. Free some "
                "room, or choose another place (OUT; FRUGAN_PREPARED for what train prepares)."
            ) from error


def _as_it_is(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return picture


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
    return report_of(out, about, ("this set was already prepared from the same files: kept as it is",))


def _write(
    fitted: FittedPictures[NDArray[np.uint8]], out: Path, key: str, progress: Progress | None
) -> PreparationReport:
    source, fitting = fitted.source, fitted.fitting
    _check_room(out, len(source), fitting.resolution)
    with unfinished_folder(out) as folder:
        blank: list[int] = []
        with (
            PictureFile(folder / PICTURES_FILE, fitting.resolution) as file,
            closing(fitted.read(progress)) as pictures,
        ):
            for picture, _ in pictures:  # [3, R, R]
                file.append(picture)
                if (picture == picture[:, :1, :1]).all():
                    blank.append(fitted.good[-1])
            digest = file.finish(source.classes.labels[fitted.good])
        origin = Origin(
            source=storable(str(source.path.resolve())),
            kind=source.kind,
            fingerprint=key,
            files=[storable(source.names[index]) for index in fitted.good],
            bad=[(storable(source.names[index]), storable(reason)) for index, reason in sorted(fitted.bad.items())],
            upscaled=fitted.upscaled,
            transparent=len(fitted.transparent),
            resample=fitting.resample,
            allow_upscale=fitting.allow_upscale,
            background=fitting.background,
            versions=_versions(),
        )
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
            origin=origin,
        )
        write_set_file(folder, about)
    lines = (*fitted.lines(), *blank_lines(source, blank, set(fitted.transparent), fitting.background))
    return report_of(out, about, (*lines, *grey_lines(len(fitted.good), file.grey)))


def _check_room(out: Path, pictures: int, resolution: int) -> None:
    """Refuse before the work what the disk cannot hold."""
    needed = pictures * (3 * resolution**2 + BYTES_PER_ENTRY)
    existing = next(folder for folder in out.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise BadInput(
            f"{shown(str(out))} needs {size(needed)} for {pictures:,} pictures of {resolution} pixels; the disk has "
            f"{size(free)} free. Free some room, choose another place (OUT; FRUGAN_PREPARED for what train prepares), "
            "or a smaller resolution."
        )


def _versions() -> dict[str, str]:
    """Return the versions of what decides the pixels."""
    return {
        "frugan": importlib.metadata.version("frugan"),
        "pillow": PIL.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
