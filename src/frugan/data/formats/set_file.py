"""The `set.json` of a prepared set: everything but the pixels, with digests of these by blocks."""

import re
import shlex
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from frugan.data.formats.decoding import WHITE
from frugan.errors import BadInput
from frugan.files import write_flushed
from frugan.wording import GIB, MIB, shown

BLOCK_BYTES = MIB
"""About so much is read to check one picture. Less would make more digests than there are names in `set.json`, more
would slow the first batches of a large set on a slow disk."""


def pictures_per_block(resolution: int) -> int:
    """Return how many pictures of side `resolution` a block holds; the last one may hold fewer."""
    return max(1, BLOCK_BYTES // (3 * resolution**2))


def block_digest(pictures: NDArray[np.uint8]) -> str:
    """Return the digest of a block of pictures [n, 3, R, R]: 16 hexadecimal digits, enough against accidents."""
    return sha256(np.ascontiguousarray(pictures).data).hexdigest()[:16]


class Blocks:
    """Checks the blocks of a mapped set, each once in this process. Usable from several threads.

    Args:
        pictures: the map, uint8 [N, 3, R, R].
        digests: of its blocks, in order.
        damaged: is called with the number of a block that does not agree: mends the file, or raises.
    """

    def __init__(self, pictures: NDArray[np.uint8], digests: Sequence[str], damaged: Callable[[int], None]) -> None:
        self._pictures = pictures
        self._digests = digests
        self._damaged = damaged
        self._size = pictures_per_block(pictures.shape[-1])
        self._agreed = np.zeros(len(digests), np.bool_)
        self._refused: dict[int, BadInput] = {}

    def check(self, indices: NDArray[np.int64]) -> None:
        """Check every block that holds one of these pictures, int64 [n], and has not been checked.

        Raises:
            BadInput: as `damaged` does.
        """
        blocks = np.unique(indices // self._size)
        for block in blocks[~self._agreed[blocks]].tolist():
            if block in self._refused:  # what could not be mended once is not tried again
                raise self._refused[block]
            if not self._agrees(block):
                try:
                    self._damaged(block)
                except BadInput as error:
                    self._refused[block] = error
                    raise
            self._agreed[block] = True

    def _agrees(self, block: int) -> bool:
        return block_digest(self._pictures[block * self._size : (block + 1) * self._size]) == self._digests[block]


SET_FILE = "set.json"
PICTURES_FILE = "pictures.npy"
FORMAT: Final = "frugan picture set"
VERSION = 1  # also enters the fingerprint: raise it whenever the same source would give other pixels
MOST_SET_BYTES = 4 * GIB  # 1.28 million ImageNet names take 50 MB
CHECKSUM = re.compile(rb'^\{\n "checksum": "([0-9a-f]{64})",')
"""How `set.json` begins: the digest of all that comes after it."""


class DamagedSet(BadInput):
    """A prepared set whose files are damaged.

    Args:
        folder: of the set.
        reason: what is wrong with it.
        again: words of the command that makes it again, where they are known.
    """

    def __init__(self, folder: Path, reason: str, again: str = "SOURCE OUT --resolution N") -> None:
        self.reason = reason
        super().__init__(
            f"{reason}. Delete the folder {shown(str(folder))} and prepare the set again: frugan prepare {again}"
        )


class Origin(BaseModel):
    """Where a prepared set comes from."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    source: str  # path of the source
    kind: str  # its format, in words
    fingerprint: str  # of the source and the settings, as `fingerprint` gives it
    files: list[str]  # name of each picture in the source, [N]
    bad: list[tuple[str, str]]  # name and reason of each picture left out because it cannot be read
    # name of each picture left out because it is too small; None: written by a version that did not note them
    left_out: list[str] | None = None
    upscaled: int  # how many pictures were enlarged
    # how many were transparent in places; None: written by a version that did not count them
    transparent: int | None = None
    resample: str
    allow_upscale: bool | Literal["leave-out"]
    background: str = WHITE  # what transparent pictures were laid on
    fit: str = "crop"  # what became of pictures that are not square
    range: float | None = None  # value that is white in deep grey pictures, where it was named
    versions: dict[str, str]  # of the programs that prepared it


class SetFile(BaseModel):
    """The content of `set.json`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    format: Literal["frugan picture set"]
    version: int
    resolution: int
    pictures: int
    labelled: bool
    class_names: list[str]
    labels: list[int]
    digest: str  # of pixels and labels, as `picture_digest` gives it
    grey: int | None = None  # how many pictures are grey; None: written by a version that did not count them
    # of the pixels, block by block (`blocks`); empty in sets that were prepared before there were any
    block_digests: list[str] = []
    origin: Origin


def is_prepared(path: Path) -> bool:
    """Tell whether `path` is a folder that `prepare` has written, by the names in it."""
    return (path / SET_FILE).is_file() and (path / PICTURES_FILE).is_file()


def refuse_half_prepared(path: Path) -> None:
    """Name what a prepared set has lost.

    Raises:
        DamagedSet: one of its two files is there without the other.
    """
    for there, lost in ((SET_FILE, PICTURES_FILE), (PICTURES_FILE, SET_FILE)):
        if (path / there).is_file() and not (path / lost).is_file():
            raise DamagedSet(path, f"{shown(str(path))} holds the {there} of a prepared set, but its {lost} is missing")


def prepared_again(folder: Path, about: SetFile) -> str:
    """Return the words after `frugan prepare` that make a set again."""
    origin = about.origin
    words = [origin.source, str(folder), "--resolution", str(about.resolution)]
    words += ["--resample", origin.resample] if origin.resample != "bilinear" else []
    words += ["--fit", origin.fit] if origin.fit != "crop" else []
    words += ["--background", origin.background] if origin.background != WHITE else []
    words += ["--range", f"{origin.range:.17g}"] if origin.range is not None else []
    words += {True: ["--allow-upscale"], "leave-out": ["--leave-out-small"]}.get(origin.allow_upscale, [])
    return shown(shlex.join(words))


def write_set_file(folder: Path, about: SetFile) -> None:
    """Write `set.json` into `folder` and flush it to disk."""
    rest = about.model_dump_json(indent=1).encode().removeprefix(b"{")
    write_flushed(folder / SET_FILE, b'{\n "checksum": "%s",' % sha256(rest).hexdigest().encode() + rest)


def read_set_file(folder: Path) -> SetFile:
    """Return the validated `set.json` of a prepared set.

    Raises:
        DamagedSet: missing, not JSON, changed since it was written, or contradicting itself.
        BadInput: of another version.
    """
    path = folder / SET_FILE
    where = shown(str(path))
    try:
        if path.stat().st_size > MOST_SET_BYTES:
            raise DamagedSet(folder, f"{where} is larger than {MOST_SET_BYTES >> 30} GiB")
        text = path.read_bytes()
        about = SetFile.model_validate_json(text)
    except OSError as error:
        raise DamagedSet(folder, f"{where} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DamagedSet(folder, f"{where} is not a {FORMAT} ({place}: {first['msg']})") from error
    _refuse_contradictions(about, folder, where)
    begins = CHECKSUM.match(text)
    if begins and sha256(text[begins.end() :]).hexdigest().encode() != begins[1]:
        raise DamagedSet(folder, f"{where} has changed since the set was prepared (its checksum differs)")
    return about


def _refuse_contradictions(about: SetFile, folder: Path, where: str) -> None:
    if about.resolution < 1:
        raise DamagedSet(folder, f"{where}: a resolution of {about.resolution}")
    if about.version != VERSION:
        raise BadInput(f"{where} has version {about.version}; this frugan reads {VERSION}. Prepare the set again.")
    if len(about.labels) != about.pictures:
        raise DamagedSet(folder, f"{where}: {len(about.labels):,} labels for {about.pictures:,} pictures")
    outside = [label for label in about.labels if not 0 <= label < len(about.class_names)]
    if outside:
        raise DamagedSet(folder, f"{where}: label {outside[0]} is outside of its {len(about.class_names):,} classes")
    blocks = -(-about.pictures // pictures_per_block(about.resolution))
    if about.block_digests and len(about.block_digests) != blocks:
        raise DamagedSet(folder, f"{where}: digests of {len(about.block_digests):,} blocks; expected {blocks:,}")
