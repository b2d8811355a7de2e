"""Pictures as NVlabs' programs read them: a zip of PNGs and a `dataset.json`.

Source: the data sets of StyleGAN2-ADA and StyleGAN3: squares of one size, neither packed nor compressed, so that they
are read at once.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frugan.data.classes import Classes
from frugan.data.nvlabs_zip import LISTING
from frugan.data.pack_pictures import png
from frugan.data.wording import first_names

PER_FOLDER = 1000
MADE = (1980, 1, 1, 0, 0, 0)
"""Time of every file in the zip: the same pictures give the same bytes."""


class NvlabsZip:
    """A zip with classes as numbers. NVlabs' programs want a side that is a power of two."""

    def encoded(self, pixels: NDArray[np.uint8]) -> bytes:
        """A PNG without compression."""
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
        """What the form leaves out, and what its programs refuse."""
        names = classes.names
        if classes.labelled and names != tuple(map(str, range(len(names)))):
            named = first_names([f"{number} {name}" for number, name in enumerate(names)])
            yield f"{LISTING} holds classes as numbers; their names have no place in it: {named}"
        if resolution & (resolution - 1):
            yield f"{resolution} is no power of two: NVlabs' programs refuse such pictures"
