"""A prepared set of pictures, mapped into memory."""

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from frugan.data.grey import is_grey, luma
from frugan.data.set_file import PICTURES_FILE, is_prepared, read_set_file
from frugan.data.wording import shown
from frugan.errors import BadInput

CHUNK = 1024  # pictures read at once for a digest
LOOKED_AT = 64  # pictures compared at once, to find one in colour


@dataclass(frozen=True, eq=False)
class PictureSet:
    """N square pictures of side R with their classes; `set[indices]` reads some of them, in colour or grey.

    Attributes:
        pictures: as they are stored, uint8 [N, 3, R, R], 0 to 255, always RGB; a read-only memory map where the set
            comes from a folder.
        labels: class of each picture, int64 [N]; zeros where unlabelled.
        class_names: name of each class.
        labelled: whether the classes mean anything.
        digest: of pixels and labels (`picture_digest`): equal digests mean equal training data.
        grey: how many of the stored pictures are grey; None: not counted yet.
        channels: of what is read: 3, or 1 from a set that `in_grey` made.
    """

    pictures: NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    labelled: bool
    digest: str
    grey: int | None = None
    channels: Literal[1, 3] = 3

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, indices: int | slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return pictures, uint8 [..., channels, R, R]."""
        stored = self.pictures[indices]
        return stored if self.channels == 3 else luma(stored)

    @cached_property
    def all_grey(self) -> bool:
        """Return whether every picture is grey: by the count, or by reading them up to the first in colour."""
        if self.grey is not None:
            return self.grey == len(self)
        return all(is_grey(self.pictures[start : start + LOOKED_AT]) for start in range(0, len(self), LOOKED_AT))

    def in_grey(self) -> "PictureSet":
        """Return this set with pictures [..., 1, R, R], turned grey as they are read.

        Its digest is another where that changes what the pictures show.
        """
        if self.channels == 1:
            return self
        digest = self.digest if self.all_grey else sha256(f"grey {self.digest}".encode()).hexdigest()
        return replace(self, channels=1, digest=digest)

    @property
    def resolution(self) -> int:
        """Return the side R of the pictures in pixels."""
        return int(self.pictures.shape[-1])


def label_bytes(labels: NDArray[np.int64]) -> bytes:
    """Return labels [N] as they enter the digest: little-endian 64-bit numbers."""
    return labels.astype("<i8").tobytes()


def picture_digest(pictures: NDArray[np.uint8], labels: NDArray[np.int64]) -> str:
    """Return the sha256 of pictures [N, 3, R, R] in order, then labels [N]; reads the pictures piece by piece."""
    digest = sha256()
    for start in range(0, len(pictures), CHUNK):
        digest.update(np.ascontiguousarray(pictures[start : start + CHUNK]).data)
    digest.update(label_bytes(labels))
    return digest.hexdigest()


def open_prepared(path: Path, *, verify: bool = False) -> PictureSet:
    """Open a folder written by `prepare`; the pictures stay on disk and are mapped.

    Args:
        path: the folder.
        verify: read all pictures and compare their digest (about 1 GB per second).

    Raises:
        BadInput: not such a folder, files cut short or contradicting each other, or a digest that does not match.
    """
    if not is_prepared(path):
        raise BadInput(f"{shown(str(path))} is not a prepared set. Make one with `frugan prepare SOURCE OUT`.")
    about = read_set_file(path)
    where = shown(str(path / PICTURES_FILE))
    try:
        pictures = np.load(path / PICTURES_FILE, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{where} is damaged ({error}). Prepare the set again.") from error
    expected = (about.pictures, 3, about.resolution, about.resolution)
    if not isinstance(pictures, np.memmap) or pictures.dtype != np.uint8 or pictures.shape != expected:
        raise BadInput(
            f"{where} holds {pictures.dtype} {list(pictures.shape)}; set.json promises uint8 {list(expected)}. "
            "Prepare the set again."
        )
    if about.pictures == 0:
        raise BadInput(f"{where} holds no pictures. Prepare the set again.")
    labels = np.array(about.labels, np.int64)
    if verify and picture_digest(pictures, labels) != about.digest:
        raise BadInput(f"{shown(str(path))} has changed since it was prepared (digest differs). Prepare it again.")
    return PictureSet(pictures, labels, tuple(about.class_names), about.labelled, about.digest, about.grey)
