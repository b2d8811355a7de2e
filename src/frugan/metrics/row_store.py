"""Features of many pictures in a file, so that 50,000 take no more memory than 1,000."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class RowStore:
    """Rows written one after the other, and then mapped from the file.

    Written, not mapped, while they come: on a full disk a write fails, where a map would end the process.

    Args:
        path: the .npy file, made anew.
        rows, dimensions: its shape, known beforehand.
    """

    def __init__(self, path: Path, rows: int, dimensions: int) -> None:
        self.path = path
        self._missing = rows
        self._file = path.open("wb")
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dimensions)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, features: Tensor) -> None:
        """Add rows [N, D]; those beyond the last one are left out.

        Raises:
            OSError: the disk is full.
        """
        rows = features[: self._missing].float().cpu().numpy()
        self._file.write(np.ascontiguousarray(rows, dtype="<f4").tobytes())
        self._missing -= len(rows)

    def close(self) -> None:
        """End the file.

        Raises:
            ValueError: rows are missing.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._missing:
            raise ValueError(f"{self.path}: {self._missing} rows are missing")

    def rows(self) -> NDArray[np.float32]:
        """All of them [N, D], mapped."""
        self.close()
        found: NDArray[np.float32] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return found


@contextmanager
def temporary_rows(rows: int, dimensions: int) -> Iterator[RowStore]:
    """A store whose file goes with the block."""
    with TemporaryDirectory(prefix="frugan-features-", ignore_cleanup_errors=True) as folder:
        store = RowStore(Path(folder) / "rows.npy", rows, dimensions)
        try:
            yield store
        finally:
            store._file.close()
