"""Features of many pictures in a file, so that 50,000 take no more memory than 1,000."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class RowStore:
    """Rows appended one after the other, mapped from a file.

    Args:
        path: the .npy file, made anew.
        rows, dimensions: its shape, known beforehand.
    """

    def __init__(self, path: Path, rows: int, dimensions: int) -> None:
        self.path = path
        self._rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, dimensions))
        self._filled = 0

    def append(self, features: Tensor) -> None:
        """Add rows [N, D]; those beyond the last one are left out."""
        room = min(len(features), len(self._rows) - self._filled)
        self._rows[self._filled : self._filled + room] = features[:room].float().cpu().numpy()
        self._filled += room

    def rows(self) -> NDArray[np.float32]:
        """What is filled [N, D], mapped."""
        self._rows.flush()
        return self._rows[: self._filled]


@contextmanager
def temporary_rows(rows: int, dimensions: int) -> Iterator[RowStore]:
    """A store whose file goes with the block."""
    with TemporaryDirectory(prefix="frugan-features-") as folder:
        store = RowStore(Path(folder) / "rows.npy", rows, dimensions)
        try:
            yield store
        finally:
            del store._rows  # Windows removes no file that is mapped
