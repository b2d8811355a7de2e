"""Sets of pictures for a run: prepared where they are not."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from frugan.contract.data import SourceOptions
from frugan.data.colour_names import background
from frugan.data.encoded_pictures import open_encoded
from frugan.data.fingerprint import fingerprint
from frugan.data.fitting import Fitting
from frugan.data.mend import mend_block
from frugan.data.picture_set import PictureSet, open_prepared
from frugan.data.prepare import prepare
from frugan.data.set_file import PICTURES_FILE, DamagedSet, is_prepared, read_set_file
from frugan.errors import BadInput

MOST_DECODERS = 8
"""Threads that decode pictures that stay encoded: more would wait for the disk."""


def open_pictures(path: Path, resolution: int, options: SourceOptions) -> PictureSet:
    """Open a prepared set, or prepare any other source into the folder for prepared data, once.

    Raises:
        BadInput: missing, empty, unreadable, too small, or more than 1 % cannot be decoded.
    """
    if is_prepared(path) and (ready := open_prepared(path)).resolution == resolution:
        options.say(f"data: {path}: {len(ready):,} prepared pictures, mapped from disk")
        return ready
    data = options.settings
    on = background(data.background)
    fitting = Fitting(resolution, data.resample, data.allow_upscale, on)
    key = fingerprint(path, fitting)
    if data.stored == "encoded":
        workers = min(MOST_DECODERS, max(2, (os.cpu_count() or 2) - 1))
        return open_encoded(path, fitting, key, workers=workers, say=options.say, progress=options.progress)
    out = options.prepared / f"{path.resolve().name}-{resolution}-{key[:12]}"

    def mend(block: int) -> None:
        mend_block(out, block, path)
        options.say(f"data: {out / PICTURES_FILE} was damaged on the disk; that part of it is made again from {path}")

    lines: tuple[str, ...] = ("prepared before from the same files",)
    kept = _kept(out, key, mend, options.say) if out.exists() else None
    if kept is None:
        report = prepare(
            path,
            out,
            resolution=resolution,
            resample=data.resample,
            allow_upscale=data.allow_upscale,
            background=on,
            progress=options.progress,
        )
        kept, lines = open_prepared(out, mend=mend), report.lines
    for line in lines:
        options.say(f"data: {line}")
    options.say(
        f"data: {len(kept):,} pictures of {resolution} pixels in {out} (to keep them elsewhere, set FRUGAN_PREPARED)"
    )
    return kept


def _kept(out: Path, key: str, mend: Callable[[int], None], say: Callable[[str], None]) -> PictureSet | None:
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
