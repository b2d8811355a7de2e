"""The `set.json` of a prepared set: everything but the pixels."""

import os
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from frugan.data.wording import shown
from frugan.errors import BadInput

SET_FILE = "set.json"
PICTURES_FILE = "pictures.npy"
FORMAT: Final = "frugan picture set"
VERSION = 1  # also enters the fingerprint: raise it whenever the same source would give other pixels
MOST_SET_BYTES = 4 << 30  # 1.28 million ImageNet names take 50 MB


class Origin(BaseModel):
    """Where a prepared set comes from.

    Attributes:
        source: path of the source.
        kind: its format, in words.
        fingerprint: of the source and the settings, as `fingerprint` gives it.
        files: name of each picture in the source, [N].
        bad: name and reason of each picture left out.
        upscaled: how many pictures were enlarged.
        versions: of the programs that prepared it.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    source: str
    kind: str
    fingerprint: str
    files: list[str]
    bad: list[tuple[str, str]]
    upscaled: int
    resample: str
    allow_upscale: bool
    versions: dict[str, str]


class SetFile(BaseModel):
    """The content of `set.json`.

    Attributes:
        digest: of pixels and labels, as `picture_digest` gives it.
        grey: how many pictures are grey; None: written by a version that did not count them.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    format: Literal["frugan picture set"]
    version: int
    resolution: int
    pictures: int
    labelled: bool
    class_names: list[str]
    labels: list[int]
    digest: str
    grey: int | None = None
    origin: Origin


def is_prepared(path: Path) -> bool:
    """Tell whether `path` is a folder that `prepare` has written, by the names in it."""
    return (path / SET_FILE).is_file() and (path / PICTURES_FILE).is_file()


def write_set_file(folder: Path, about: SetFile) -> None:
    """Write `set.json` into `folder` and flush it to disk."""
    with (folder / SET_FILE).open("x", encoding="utf-8") as file:
        file.write(about.model_dump_json(indent=1))
        file.flush()
        os.fsync(file.fileno())


def read_set_file(folder: Path) -> SetFile:
    """Return the validated `set.json` of a prepared set.

    Raises:
        BadInput: missing, not JSON, of another program or version, or contradicting itself.
    """
    path = folder / SET_FILE
    where = shown(str(path))
    try:
        if path.stat().st_size > MOST_SET_BYTES:
            raise BadInput(f"{where} is larger than {MOST_SET_BYTES >> 30} GiB; expected a list of names and labels.")
        found = SetFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{where} cannot be read ({error.strerror}). Prepare the set again.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BadInput(f"{where} is not a {FORMAT} ({place}: {first['msg']}). Prepare the set again.") from error
    if found.version != VERSION:
        raise BadInput(f"{where} has version {found.version}; this frugan reads {VERSION}. Prepare the set again.")
    if len(found.labels) != found.pictures:
        raise BadInput(f"{where}: {len(found.labels):,} labels for {found.pictures:,} pictures. Prepare the set again.")
    outside = [label for label in found.labels if not 0 <= label < len(found.class_names)]
    if outside:
        raise BadInput(
            f"{where}: label {outside[0]} is outside of its {len(found.class_names):,} classes. Prepare the set again."
        )
    return found
