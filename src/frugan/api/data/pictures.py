"""Sets of pictures for a run: prepared where they are not, and checked against the recipe."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from frugan.api.progress import Progress, Say
from frugan.data.background import background
from frugan.data.fingerprint import fingerprint
from frugan.data.fitting import Fitting
from frugan.data.mend import mend_block
from frugan.data.picture_set import PictureSet, open_prepared
from frugan.data.prepare import prepare
from frugan.data.set_file import PICTURES_FILE, DamagedSet, is_prepared, read_set_file
from frugan.errors import BadInput
from frugan.folders import Folders
from frugan.phase import DataNeeds, Needs
from frugan.recipe import DataSettings


def check_needs(name: str, path: Path, pictures: PictureSet, needs: DataNeeds) -> None:
    """Refuse a set that the recipe cannot be trained on.

    Raises:
        BadInput: its resolution or number of classes is another.
    """
    if pictures.resolution != needs.resolution:
        raise BadInput(
            f"{name} {path}: pictures of {pictures.resolution} pixels, the recipe wants {needs.resolution}; prepare "
            f"them with --resolution {needs.resolution}"
        )
    if needs.classes is None:
        return
    found = len(pictures.class_names)
    if needs.classes > 1 and not pictures.labelled:
        raise BadInput(
            f"{name} {path}: one class (a flat folder, no labels), the recipe wants {needs.classes}; put the pictures "
            "of each class in a folder of its own, or train without classes: networks.classes=1"
        )
    if found != needs.classes:
        raise BadInput(
            f"{name} {path}: {found:,} classes, the recipe wants {needs.classes:,}; train with "
            f"networks.classes={found}, or name the folder that holds the class folders"
        )


def as_needed(name: str, pictures: PictureSet, needs: DataNeeds, say: Say) -> PictureSet:
    """The set with pictures of as many channels as the recipe wants; turned grey as they are read, if it wants one.

    Raises:
        BadInput: it wants colour of a set that is read in grey.
    """
    if needs.channels == 1:
        if not pictures.all_grey and pictures.channels == 3:
            say("data: pictures in colour are turned grey (ITU-R 601 luma), because networks.channels is 1")
        return pictures.in_grey()
    if pictures.channels == 1:
        raise BadInput(f"{name}: this set is read in grey, the recipe wants colour: open the set without `in_grey`")
    return pictures


def grey_offer(sources: Mapping[str, object], needs: Mapping[str, Needs]) -> Iterator[str]:
    """A line for each source whose pictures are all grey though the recipe's networks draw in colour."""
    for name, source in sources.items():
        need = needs[name]
        if isinstance(source, PictureSet) and isinstance(need, DataNeeds) and need.channels == 3 and source.all_grey:
            yield (
                f"data: all {len(source):,} pictures are grey: networks.channels=1 draws grey pictures, where three "
                "channels may tint them (add it to the command for a new run)"
            )


def open_pictures(path: Path, resolution: int, data: DataSettings, say: Say, progress: Progress | None) -> PictureSet:
    """Open a prepared set, or prepare any other source into the folder for prepared data, once.

    Raises:
        BadInput: missing, empty, unreadable, too small, or more than 1 % cannot be decoded.
    """
    if is_prepared(path) and (ready := open_prepared(path)).resolution == resolution:
        say(f"data: {path}: {len(ready):,} prepared pictures, mapped from disk")
        return ready
    on = background(data.background)
    key = fingerprint(path, Fitting(resolution, data.resample, data.allow_upscale, on))
    out = Folders.from_environment().prepared / f"{path.resolve().name}-{resolution}-{key[:12]}"

    def mend(block: int) -> None:
        mend_block(out, block, path)
        say(f"data: {out / PICTURES_FILE} was damaged on the disk; that part of it is made again from {path}")

    lines: tuple[str, ...] = ("prepared before from the same files",)
    kept = _kept(out, key, mend, say) if out.exists() else None
    if kept is None:
        report = prepare(
            path,
            out,
            resolution=resolution,
            resample=data.resample,
            allow_upscale=data.allow_upscale,
            background=on,
            progress=progress,
        )
        kept, lines = open_prepared(out, mend=mend), report.lines
    for line in lines:
        say(f"data: {line}")
    say(f"data: {len(kept):,} pictures of {resolution} pixels in {out} (FRUGAN_PREPARED names another place)")
    return kept


def _kept(out: Path, key: str, mend: Callable[[int], None], say: Say) -> PictureSet | None:
    """The set that we prepared ourselves before; one that is not what it was is removed, to be prepared again."""
    try:
        found = open_prepared(out, mend=mend)
        if read_set_file(out).origin.fingerprint == key:
            return found
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
