"""A set of aligned faces."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frugan.data.faces.face import Face


@dataclass(frozen=True, eq=False)
class Faceset:
    """A set of faces."""

    faces: tuple[Face, ...]
    digest: str
    path: Path
    passed_over: tuple[str, ...] = ()

    def encoded(self, index: int) -> bytes:
        """Return the file of one face."""
        raise NotImplementedError

    def picture(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of one face."""
        raise NotImplementedError


def open_faceset(path: Path) -> Faceset:
    """Open."""
    raise NotImplementedError
