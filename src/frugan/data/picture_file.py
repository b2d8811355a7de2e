"""Write `pictures.npy` one picture after another."""

import io
import os
from hashlib import sha256
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from frugan.data.blocks import block_digest, pictures_per_block
from frugan.data.grey import is_grey
from frugan.data.picture_set import label_bytes


class PictureFile:
    """A growing .npy file of uint8 [N, 3, R, R], in a `with` statement.

    Plain writes, not a memory map: a full disk is then an OSError and not a killed process.

    Args:
        path: the file to make.
        resolution: side R in pixels.

    Attributes:
        grey: how many of the pictures so far are grey.
        blocks: digests of the blocks so far; complete after `finish`.
    """

    def __init__(self, path: Path, resolution: int) -> None:
        self._resolution = resolution
        self._count = 0
        self.grey = 0
        self._digest = sha256()
        self._block: list[NDArray[np.uint8]] = []
        self.blocks: list[str] = []
        self._file = path.open("xb")
        self._file.write(self._header())

    def append(self, picture: NDArray[np.uint8]) -> None:
        """Write one picture [3, R, R]."""
        self._file.write(picture.data)
        self._digest.update(picture.data)
        self._count += 1
        self.grey += is_grey(picture)
        self._block.append(picture)
        if len(self._block) == pictures_per_block(self._resolution):
            self._end_block()

    def finish(self, labels: NDArray[np.int64]) -> str:
        """Put the number of pictures into the header, flush, and return the digest of pictures and labels [N]."""
        self._digest.update(label_bytes(labels))
        if self._block:
            self._end_block()
        self._file.seek(0)
        self._file.write(self._header())
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._digest.hexdigest()

    def _end_block(self) -> None:
        self.blocks.append(block_digest(np.stack(self._block)))
        self._block.clear()

    def _header(self) -> bytes:
        """Return the .npy header; numpy pads it, so that its length does not depend on the number of pictures."""
        header = io.BytesIO()
        shape = (self._count, 3, self._resolution, self._resolution)
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
        return header.getvalue()

    def __enter__(self) -> "PictureFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
