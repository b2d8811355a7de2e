"""Pictures as BigGAN-PyTorch reads them: one HDF5 file with `imgs` uint8 [N, 3, R, R] and `labels` int64 [N]."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frugan.data.classes import Classes
from frugan.data.wording import first_names
from frugan.errors import BadInput

CHUNK = 500
"""Pictures in a chunk, as in BigGAN-PyTorch's own files."""


class Hdf5:
    """One file, not compressed: it is read at random places."""

    def encoded(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """As it is."""
        return pixels

    def write(
        self, out: Path, pictures: Iterator[tuple[NDArray[np.uint8], int]], classes: Classes, resolution: int
    ) -> None:
        """Write chunk by chunk.

        Raises:
            BadInput: h5py is missing.
        """
        try:
            import h5py  # noqa: PLC0415  (optional extra)
        except ImportError as error:
            raise BadInput("an HDF5 file needs h5py: pip install 'frugan[data]'") from error
        shape = (3, resolution, resolution)
        with h5py.File(out, "x") as file:
            imgs = file.create_dataset("imgs", (0, *shape), np.uint8, maxshape=(None, *shape), chunks=(CHUNK, *shape))
            labels = file.create_dataset("labels", (0,), np.int64, maxshape=(None,), chunks=(CHUNK,))
            waiting: list[tuple[NDArray[np.uint8], int]] = []

            def flush() -> None:
                count = len(imgs) + len(waiting)
                for dataset, values in ((imgs, [one for one, _ in waiting]), (labels, [label for _, label in waiting])):
                    dataset.resize(count, axis=0)
                    dataset[count - len(waiting) :] = np.stack(values)
                waiting.clear()

            for each in pictures:
                waiting.append(each)
                if len(waiting) == CHUNK:
                    flush()
            if waiting:
                flush()

    def lines(self, classes: Classes, resolution: int) -> Iterator[str]:
        """What the form leaves out."""
        if classes.labelled and classes.names != tuple(map(str, range(len(classes.names)))):
            named = first_names([f"{number} {name}" for number, name in enumerate(classes.names)])
            yield f"the file holds classes as numbers; their names have no place in it: {named}"
