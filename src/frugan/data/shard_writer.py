"""Pictures as WebDataset shards: tar files of `000000000.png` and `000000000.cls`, and the names of the classes beside.

Source: the WebDataset format: files of one sample stand together and share the name up to the first dot.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frugan.data.classes import Classes
from frugan.data.pack_pictures import png
from frugan.data.shards import NAMES_FILE

SHARD_BYTES = 1 << 28
"""A shard ends at the first picture beyond: small enough to move by itself, large enough that opening it is nothing."""


class Shards:
    """A folder of `shard-000000.tar` and so on.

    Args:
        shard_bytes: size of a shard, about.
    """

    def __init__(self, shard_bytes: int = SHARD_BYTES) -> None:
        self._shard_bytes = shard_bytes

    def encoded(self, pixels: NDArray[np.uint8]) -> bytes:
        """A PNG: nothing is lost, and shards travel."""
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
        """Where the names are."""
        if classes.labelled:
            yield f"the shards hold classes as numbers; {NAMES_FILE} beside them has their names"


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)  # its time is 0, its owner nobody: the same pictures give the same bytes
    about.size, about.mode = len(content), 0o644
    shard.addfile(about, io.BytesIO(content))
