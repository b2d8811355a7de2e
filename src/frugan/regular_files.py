"""Reads files that may come from elsewhere: regular ones only, and no more of them than such files have."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from frugan.errors import BadInput

TEXT_BYTES = 64 << 20
"""More than any JSON or TOML file that frugan keeps about a run."""


def read_regular(path: Path, most_bytes: int = TEXT_BYTES) -> bytes:
    """Return a file's content.

    A pipe would be waited for without end, and a link to a device such as /dev/zero never ends.

    Raises:
        BadInput: it is no regular file, or larger.
        OSError: it cannot be read.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{path}: expected a file, not {_kind(found.st_mode)}; put the file itself there")
    if found.st_size > most_bytes:
        raise BadInput(
            f"{path}: {found.st_size:,} bytes; expected at most {most_bytes:,}: it is damaged or another file"
        )
    with path.open("rb") as file:
        return file.read(found.st_size)  # so much room is made at once


def json_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is none."""
    try:
        values = json.loads(read_regular(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError, BadInput):
        return {}
    return values if isinstance(values, dict) else {}


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
