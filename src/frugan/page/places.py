"""Where the runs of a folder are."""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from frugan.engine.run.run_folder import OWNER

MOST_INSIDE = 2000
"""Entries of a folder that are looked at."""


def places(folder: Path) -> Iterator[tuple[str, Path]]:
    """Names and paths of what may be runs: folders in a folder, and those inside of such as are none themselves.

    Links are passed over: a run that comes from elsewhere may lead to what is private.
    """
    for entry in _folders(folder):
        if (path := Path(entry)).joinpath("events.jsonl").exists() or path.joinpath(OWNER).exists():
            yield entry.name, path
        else:
            for inner in _folders(path):
                yield f"{entry.name}/{inner.name}", Path(inner)


def place(folder: Path, name: str) -> Path | None:
    """The path of a name that `places` may give; None: it is none."""
    parts, path = name.split("/"), folder
    if not 1 <= len(parts) <= 2:
        return None
    for part in parts:
        if part in ("", ".", "..") or part.startswith(".") or "\0" in part or Path(part).name != part:
            return None
        path = path / part
        if path.is_symlink():
            return None
    return path


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as found:
        entries = list(islice(found, MOST_INSIDE))  # a folder of pictures may hold a million
        return [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)]
    return []
