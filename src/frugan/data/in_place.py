"""Pictures that have the right size already, read where they lie in a file: only what checks them is kept beside."""

from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from frugan.contract.data import SourceOptions
from frugan.data.formats.detect import is_hdf5, open_source
from frugan.data.formats.picture_set import PictureSet, refuse_cut_short
from frugan.data.formats.set_file import Blocks, pictures_per_block, read_set_file
from frugan.data.formats.source import Source
from frugan.data.prepare import kept_before, write_digests
from frugan.data.survey import Fitting, kept_lines
from frugan.errors import BadInput
from frugan.wording import shown, storable


class PlacedPictures:
    """N pictures in a mapped file as an array uint8 [N, 3, R, R], of which only what is asked for is read.

    Args:
        path: the file.
        places: byte at which each picture begins, int64 [N].
        resolution: side R in pixels.

    Raises:
        BadInput: the file ends before a picture does.
    """

    def __init__(self, path: Path, places: NDArray[np.int64], resolution: int) -> None:
        self._file = np.memmap(path, np.uint8, "r")
        self._places = places
        self.shape = (len(places), 3, resolution, resolution)
        if places.min() < 0 or places.max() + 3 * resolution**2 > len(self._file):
            raise BadInput(f"{shown(str(path))} ends before its pictures do; copy or make it again")

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, indices: int | slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read pictures.

        Raises:
            BadInput: the file has been cut short.
        """
        refuse_cut_short(self._file)
        places = np.asarray(self._places[indices])
        read = np.empty((places.size, *self.shape[1:]), np.uint8)
        for picture, place in zip(read, places.reshape(-1).tolist(), strict=True):
            picture[:] = self._file[place : place + picture.size].reshape(picture.shape)
        return read if places.ndim else read[0]


def open_in_place(path: Path, fitting: Fitting, kept: Path, key: str, options: SourceOptions) -> PictureSet | None:
    """Open a file that holds pictures of the right size as they are; None: it is none.

    They are read once as a whole for the digests that notice it when one of them changes. These make the digest of the
    set that of a prepared one, so that a run may go on with either.

    Args:
        path: anything that `prepare` takes.
        fitting: how its pictures would be prepared.
        kept: folder for the digests.
        key: `fingerprint` of path and fitting.

    Raises:
        BadInput: more than 1 % of the pictures cannot be read, or the digests cannot be written.
    """
    if not is_hdf5(path):
        return None
    with open_source(path, fitting.reading) as source:
        side = fitting.resolution
        if source.size(0) != (side, side) or (places := source.places()) is None:
            return None
        opened = kept_before(kept, key, lambda: _opened(kept, source, places), options.say)
        if opened is not None:
            lines: tuple[str, ...] = kept_lines(read_set_file(kept))
        else:
            lines = write_digests(source, kept, fitting, key, progress=options.progress)
            opened = _opened(kept, source, places)
    for line in lines:
        options.say(f"data: {line}")
    options.say(
        f"data: {len(opened):,} pictures of {side} pixels are read where they are, in {path}, which has to stay; their "
        f"checksums are in {kept} (for a copy: frugan prepare)"
    )
    return opened


def _opened(kept: Path, source: Source, places: NDArray[np.int64]) -> PictureSet:
    """The set whose digests are kept in a folder.

    Raises:
        DamagedSet: they are damaged.
        BadInput: they are of another version, or the file ends before its pictures do.
    """
    about, numbers = read_set_file(kept), {storable(name): number for number, name in enumerate(source.names)}
    if unknown := [name for name in about.origin.files if name not in numbers]:
        raise BadInput(f"{shown(str(source.path))} has no {shown(unknown[0])} any more")
    members = np.array([numbers[name] for name in about.origin.files], np.int64)  # without those that cannot be read
    pictures = cast("NDArray[np.uint8]", PlacedPictures(source.path, places[members], about.resolution))

    def refuse(block: int) -> None:
        size = pictures_per_block(about.resolution)
        raise BadInput(
            f"{shown(str(source.path))}: pictures {block * size:,} to {min((block + 1) * size, len(pictures)) - 1:,} "
            f"are not what they were when it was read first; copy the file again, or, if it shall be as it is now, "
            f"delete {shown(str(kept))} and begin a new run"
        )

    blocks = Blocks(pictures, about.block_digests, refuse)
    labels, names = np.array(about.labels, np.int64), tuple(about.class_names)
    return PictureSet(pictures, labels, names, about.labelled, about.digest, about.grey, blocks=blocks)
