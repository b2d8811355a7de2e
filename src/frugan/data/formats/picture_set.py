"""A prepared set of pictures, mapped into memory; lost pictures are skipped and counted."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from frugan.data.formats.decoding import is_grey, luma
from frugan.data.formats.set_file import (
    PICTURES_FILE,
    Blocks,
    DamagedSet,
    is_prepared,
    pictures_per_block,
    prepared_again,
    read_set_file,
    refuse_half_prepared,
)
from frugan.errors import BadInput, checked
from frugan.wording import shown

CHUNK = 1024  # pictures read at once for a digest
LOOKED_AT = 64  # pictures compared at once, to find one in colour


def _readable(pictures: "PictureSet", indices: NDArray[np.int64]) -> NDArray[np.uint8]:
    try:
        return pictures.in_colour(indices)
    except BadInput:
        found = []
        for index in indices:
            with suppress(BadInput):
                found.append(pictures.in_colour(index))
        return np.stack(found) if found else pictures.pictures[:0]


@dataclass(frozen=True, eq=False)
class PictureSet:
    """N square pictures of side R with their classes; `set[indices]` reads some of them, in colour or grey."""

    # as they are stored, uint8 [N, 3, R, R], 0 to 255, always RGB; a read-only memory map where the set was prepared,
    # `EncodedPictures` where it was not
    pictures: NDArray[np.uint8]
    labels: NDArray[np.int64]  # class of each picture, int64 [N]; zeros where unlabelled
    class_names: tuple[str, ...]  # name of each class
    labelled: bool  # whether the classes mean anything
    digest: str  # of pixels and labels (`picture_digest`): equal digests mean equal training data
    grey: int | None = None  # how many of its pictures are stored grey; None: not counted yet
    channels: Literal[1, 3] = 3  # of what is read: 3, or 1 from a set that `in_grey` made
    # checks what is read; None: in memory, or prepared before there were digests of blocks
    blocks: Blocks | None = None
    # places of its N pictures among those that are stored, int64 [N]; None: it has all of them, in their order
    members: NDArray[np.int64] | None = None
    held_out: "PictureSet | None" = None  # test pictures of this set, which training never sees; None: there are none
    held_out_below: float | None = None  # drawn numbers below it are of test pictures; None: they are not drawn so

    @classmethod
    @checked
    def from_arrays(
        cls,
        pictures: NDArray[np.uint8],
        labels: NDArray[np.int64] | Sequence[int] | None = None,
        class_names: Sequence[str] = (),
    ) -> "PictureSet":
        """Make a set of arrays, which are read once for the digest and not copied.

        Args:
            pictures: uint8 [N, 3, R, R]; a memory map will do.
            labels: class of each picture, int64 [N]; None: there are no classes.
            class_names: name of each class, of those without pictures too; empty: "0", "1", …, each with pictures.

        Raises:
            BadInput: an array of another shape or type, a label without a name, a name twice, or, without names, a
                number that no picture has.
        """
        shape = pictures.shape
        if pictures.dtype != np.uint8 or len(shape) != 4 or shape[1] != 3 or shape[2] != shape[3] or not len(pictures):
            raise BadInput(f"pictures: {pictures.dtype} {list(shape)}; expected uint8 [N, 3, R, R], at least one")
        numbers = np.zeros(len(pictures), np.int64) if labels is None else np.asarray(labels)
        if numbers.shape != (len(pictures),) or not np.issubdtype(numbers.dtype, np.integer):
            raise BadInput(f"labels: {numbers.dtype} {list(numbers.shape)}; expected whole numbers [{len(pictures)}]")
        names = tuple(class_names) or _numbered(numbers)
        if numbers.min() < 0 or numbers.max() >= len(names):
            raise BadInput(f"labels: from {numbers.min()} to {numbers.max()}; expected 0 to {len(names) - 1}")
        if twice := [name for name, number in Counter(names).items() if number > 1]:
            raise BadInput(
                f"class_names: {shown(twice[0])!r} is there twice; expected a name of its own for each class"
            )
        numbers = numbers.astype(np.int64)
        return cls(pictures, numbers, names, labels is not None, picture_digest(pictures, numbers))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: int | slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return pictures, uint8 [..., channels, R, R], checked where that was not done yet.

        Raises:
            BadInput: they are not what was prepared, and could not be made again.
        """
        self.check(indices if isinstance(indices, np.ndarray) else np.atleast_1d(np.arange(len(self))[indices]))
        stored = self.in_colour(indices)
        return stored if self.channels == 3 else luma(stored)

    def in_colour(self, indices: int | slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return pictures as they are stored, uint8 [..., 3, R, R], unchecked."""
        return self.pictures[indices if self.members is None else self.members[indices]]

    def check(self, indices: NDArray[np.int64]) -> None:
        """Check that pictures, int64 [n], are what was prepared, where that was not done yet.

        Raises:
            BadInput: they are not, and could not be made again.
        """
        refuse_cut_short(self.pictures)
        if self.blocks is not None:
            self.blocks.check(indices if self.members is None else self.members[indices])

    @cached_property
    def all_grey(self) -> bool:
        """Return whether every picture is grey: by the count, or by reading them up to the first in colour."""
        if self.grey is not None:
            return self.grey == len(self)
        parts = (np.arange(start, min(start + LOOKED_AT, len(self))) for start in range(0, len(self), LOOKED_AT))
        return all(is_grey(_readable(self, part)) for part in parts)

    def readable(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return which of these pictures, int64 [n], can be decoded; in an encoded set some may be damaged."""
        self.check(indices)
        stored = _readable(self, indices)
        return stored if self.channels == 3 else luma(stored)

    def in_grey(self) -> "PictureSet":
        """Return this set with pictures [..., 1, R, R], turned grey as they are read.

        Its digest is another where that changes what the pictures show.
        """
        if self.channels == 1:
            return self
        digest = self.digest if self.all_grey else sha256(f"grey {self.digest}".encode()).hexdigest()
        held_out = None if self.held_out is None else self.held_out.in_grey()
        return replace(self, channels=1, digest=digest, held_out=held_out)

    def only(self, indices: NDArray[np.int64]) -> "PictureSet":
        """Return some of the pictures, int64 [n], as a set with all the classes and a digest of its own."""
        members = indices if self.members is None else self.members[indices]
        digest = sha256(f"some of {self.digest}".encode() + label_bytes(indices)).hexdigest()
        grey = None  # to be counted again
        if self.grey in (0, len(self)):
            grey = len(indices) if self.grey else 0
        return replace(self, labels=self.labels[indices], digest=digest, grey=grey, members=members)

    @property
    def empty_classes(self) -> list[str]:
        """Return the names of the classes that no picture has."""
        counts = np.bincount(self.labels, minlength=len(self.class_names))
        return [name for name, number in zip(self.class_names, counts, strict=True) if not number]

    @property
    def resolution(self) -> int:
        """Return the side R of the pictures in pixels."""
        return int(self.pictures.shape[-1])


def _numbered(labels: NDArray[np.integer[Any]]) -> tuple[str, ...]:
    """Return the names "0", "1", … of classes that have none.

    Raises:
        BadInput: a label is negative, or no picture has a number below the largest one: a network would be asked for
            that class and never shown any of it.
    """
    present = np.unique(labels)
    if int(present[-1]) != len(present) - 1:
        gap = next((number for number in range(int(present[-1])) if number not in present), None)
        lacking = "" if gap is None else f", and no picture has the label {gap}"
        raise BadInput(
            f"labels: from {present[0]} to {present[-1]}{lacking}; number the classes from 0 on without gaps, as "
            "numpy.unique(labels, return_inverse=True)[1] does, or name all of them: class_names"
        )
    return tuple(map(str, present))


def refuse_cut_short(pictures: NDArray[np.uint8]) -> None:
    """Refuse a map whose file has been cut: to read what is no more in the file ends the process.

    Raises:
        BadInput: it has been.
    """
    path = getattr(pictures, "filename", None)
    if not isinstance(pictures, np.memmap) or path is None:
        return
    try:
        size = os.stat(path).st_size
    except OSError:  # deleted: the map keeps what was there
        return
    if size < pictures.offset + pictures.nbytes:
        raise BadInput(f"{shown(str(path))} was cut short while it was in use; prepare the set again")


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


def open_prepared(path: Path, *, verify: bool = False, mend: Callable[[int], None] | None = None) -> PictureSet:
    """Open a folder written by `prepare`; the pictures stay on disk and are mapped.

    Args:
        path: the folder.
        verify: read all pictures and compare their digest (about 1 GB per second).
        mend: is called, while pictures are read, with the number of a block that is damaged, and writes it again; None:
            reading it raises DamagedSet.

    Raises:
        DamagedSet: files cut short or contradicting each other, or a digest that does not match.
        BadInput: not such a folder.
    """
    if not is_prepared(path):
        refuse_half_prepared(path)
        raise BadInput(f"{shown(str(path))} is not a prepared set. Make one with `frugan prepare SOURCE OUT`.")
    about = read_set_file(path)
    where, again = shown(str(path / PICTURES_FILE)), prepared_again(path, about)
    try:
        pictures = np.load(path / PICTURES_FILE, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TokenError, TypeError, OverflowError) as error:
        raise DamagedSet(path, f"{where} is damaged ({error})", again) from error
    expected = (about.pictures, 3, about.resolution, about.resolution)
    if not isinstance(pictures, np.memmap) or pictures.dtype != np.uint8 or pictures.shape != expected:
        held = f"{pictures.dtype} {list(pictures.shape)}"
        raise DamagedSet(path, f"{where} holds {held}; set.json promises uint8 {list(expected)}", again)
    if about.pictures == 0:
        raise DamagedSet(path, f"{where} holds no pictures", again)
    if (path / PICTURES_FILE).stat().st_size != pictures.offset + pictures.nbytes:
        raise DamagedSet(path, f"{where} is longer than its {about.pictures:,} pictures", again)
    labels = np.array(about.labels, np.int64)
    if verify and picture_digest(pictures, labels) != about.digest:
        raise DamagedSet(path, f"{shown(str(path))} has changed since it was prepared (digest differs)", again)

    def refuse(block: int) -> None:
        first, after = (n * pictures_per_block(pictures.shape[-1]) for n in (block, block + 1))
        places = f"pictures {first:,} to {min(after, len(pictures)) - 1:,}"
        raise DamagedSet(path, f"{where}: {places} have changed on the disk since they were prepared", again)

    blocks = Blocks(pictures, about.block_digests, mend or refuse) if about.block_digests else None
    names = tuple(about.class_names)
    return PictureSet(pictures, labels, names, about.labelled, about.digest, about.grey, blocks=blocks)


def relabelled(pictures: PictureSet, names: Sequence[str], called: Mapping[str, str]) -> PictureSet:
    """Return the set with labels that are places in `names`.

    Its test pictures are labelled alike. Where labels change, its digest does too: another one for other labels, though
    not the `picture_digest`, for which every picture would have to be read.

    Args:
        pictures: a labelled set.
        names: of the classes, in the order of their labels.
        called: class of the set -> which of `names` it is, for every class of the set.
    """
    numbers = {name: number for number, name in enumerate(names)}
    table = np.array([numbers[called[name]] for name in pictures.class_names], np.int64)  # [classes of the set]
    labels = table[pictures.labels]  # [N]
    digest = pictures.digest
    if not np.array_equal(labels, pictures.labels):
        digest = sha256(digest.encode() + label_bytes(labels)).hexdigest()
    held_out = None if pictures.held_out is None else relabelled(pictures.held_out, names, called)
    return replace(pictures, labels=labels, class_names=tuple(names), digest=digest, held_out=held_out)
