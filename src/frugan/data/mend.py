"""A damaged block of a prepared set, made again from the pictures that it came from."""

from pathlib import Path

import numpy as np

from frugan.data.blocks import block_digest, pictures_per_block
from frugan.data.colour_names import background
from frugan.data.fitting import Fitting, Resample
from frugan.data.formats import open_source
from frugan.data.set_file import PICTURES_FILE, SET_FILE, read_set_file
from frugan.data.source import Unreadable
from frugan.data.wording import shown, storable
from frugan.errors import BadInput


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
    fitting = Fitting(about.resolution, resample, about.origin.allow_upscale, background(about.origin.background))
    try:
        with open_source(source, fitting.background) as opened:
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
