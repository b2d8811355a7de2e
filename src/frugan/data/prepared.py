"""A prepared set as the source of another, at a lower resolution for instance."""

from pathlib import Path

import numpy as np
from PIL import Image

from frugan.data.classes import Classes
from frugan.data.picture_set import open_prepared
from frugan.data.source import Source


def open_prepared_source(path: Path) -> Source:
    """List the pictures of a prepared set.

    Raises:
        BadInput: as `open_prepared`.
    """
    found = open_prepared(path)
    side = found.resolution
    names = [f"pictures[{index}]" for index in range(len(found))]
    lines = (f"classes as in the prepared set, which has {side} x {side} pixels",)

    def size(index: int) -> tuple[int, int]:
        return side, side

    def picture(index: int) -> Image.Image:
        return Image.fromarray(np.ascontiguousarray(found[index].transpose(1, 2, 0)))

    classes = Classes(found.labels, found.class_names, found.labelled, lines)
    return Source("prepared set", path, names, classes, size, picture)
