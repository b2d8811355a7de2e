"""Files and folders: reading untrusted ones, writing atomically, and default places."""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout

from frugan.errors import BadInput
from frugan.wording import MIB, show_size, shown

RUN_RECIPE = "recipe.json"
"""Name of the recipe in a run's folder."""
TEXT_BYTES = 64 * MIB
"""Largest size of a JSON or TOML file; those that frugan keeps about a run are smaller."""


def read_untrusted(path: Path, most_bytes: int = TEXT_BYTES) -> bytes:
    """Read a regular file of at most `most_bytes`.

    A pipe might never give anything, and a link to a device such as /dev/zero never ends.

    Raises:
        BadInput: it is no regular file, or too large.
        OSError: it cannot be read.
    """
    mode = os.stat(path).st_mode  # before it is opened, as a pipe would wait for its other end
    if not stat.S_ISREG(mode):
        raise BadInput(f"{path}: expected a file, not {_kind(mode)}; put the file itself there")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size  # of what was opened: another may have taken its place since
        if size > most_bytes:
            raise BadInput(f"{path}: {size:,} bytes; expected at most {most_bytes:,}: it is damaged or another file")
        return file.read(size)


def read_json(path: Path, otherwise: Callable[[str], Exception] | None = None) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: the file.
        otherwise: makes the exception to raise if there is no readable object, from the reason; None: the object is
            then empty.
    """
    try:
        values = json.loads(read_untrusted(path).decode("utf-8"))
        if not isinstance(values, dict):
            raise BadInput("no JSON object")
    except (OSError, ValueError, RecursionError) as error:  # BadInput is a ValueError too
        if otherwise is None:
            return {}
        raise otherwise((isinstance(error, OSError) and error.strerror) or str(error)) from error
    return values


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to; the file replaces `path` when the block ends well, else it is deleted.

    Several processes may write the same file; the last one's stays. A file that must survive a power cut has to be
    flushed in the block.

    Raises:
        BadInput: `path` is a folder.
    """
    refuse_folder(path)
    beside = path.with_name(f".{path.stem}.unfinished-{os.getpid()}{path.suffix}")  # writers go by the suffix
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_flushed(path: Path, content: bytes) -> None:
    """Write a file that survives a power cut once this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def refuse_folder(path: Path) -> None:
    """Raise BadInput if a file is to be written where a folder is."""
    if not path.name or path.is_dir():
        raise BadInput(f"{path}: is a folder; name a file to write")


def refuse_lack_of_room(path: Path, needed_bytes: float, use: str, cure: str) -> None:
    """Refuse before the work what the disk cannot hold.

    Args:
        path: file or folder to write, in folders that need not be there.
        needed_bytes: at least.
        use: what they are for, such as "500 pictures".
        cure: what else can be done than to free some room, such as "choose another --out".

    Raises:
        BadInput: so much is not free.
    """
    there = next((folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir()), None)
    free = needed_bytes if there is None else shutil.disk_usage(there).free
    if free < needed_bytes:
        raise BadInput(
            f"{shown(str(path))} needs at least {show_size(needed_bytes, 1)} for {use}; the disk has "
            f"{show_size(free, 1)} free. Free some room, or {cure}"
        )


def refuse_existing(path: Path, *, replace: bool, argument: str = "replace") -> None:
    """Raise BadInput if `path` exists and shall not be replaced; `argument` is what says so in Python."""
    if path.exists() and not replace:
        raise BadInput(f"{path}: is there already; choose another path, or add --replace ({argument}=True in Python)")


def refuse_full(folder: Path, use: str) -> None:
    """Raise BadInput unless `folder` is new or empty; `use` says what it is for."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: is there already; choose a new or empty folder for {use}")


@contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """Give a new folder beside `final`, which is renamed to it when the block ends well, and deleted otherwise.

    Leftovers of killed processes for the same `final` are deleted first; a lock tells them from work that goes on.

    Args:
        final: path of the finished folder; it must not exist, or be an empty folder.

    Raises:
        BadInput: another process is writing the same folder.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    start = f".{final.name}.unfinished-"
    lock_path = final.parent / f".{final.name}.lock"
    lock = FileLock(lock_path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise BadInput(
            f"another process is writing {shown(str(final))}; wait for it, or choose another place."
        ) from error
    try:
        for left in final.parent.iterdir():
            if left.name.startswith(start):
                shutil.rmtree(left)
        folder = final.parent / f"{start}{uuid4().hex[:8]}"
        folder.mkdir()
        try:
            yield folder
            if final.is_dir():
                final.rmdir()  # empty, or this raises
            folder.rename(final)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        with suppress(OSError):  # Windows deletes it by itself
            lock_path.unlink()
        lock.release()


@dataclass(frozen=True)
class Folders:
    """Folders that commands write to when no path is given."""

    prepared: Path  # memory-mapped training sets
    runs: Path  # run folders of `frugan train` without `--out`
    moments: Path  # reference moments of data sets
    cache: Path  # anything that can be computed again

    @classmethod
    def from_environment(cls) -> "Folders":
        """Read FRUGAN_BASE, by default `.frugan` in the home folder, and the variables for single folders.

        These are FRUGAN_PREPARED, FRUGAN_RUNS, FRUGAN_MOMENTS and FRUGAN_CACHE.
        """
        base = Path(os.environ.get("FRUGAN_BASE") or Path.home() / ".frugan").expanduser()

        def folder(name: str) -> Path:
            return Path(os.environ.get(f"FRUGAN_{name.upper()}") or base / name).expanduser()

        return cls(folder("prepared"), folder("runs"), folder("moments"), folder("cache"))
