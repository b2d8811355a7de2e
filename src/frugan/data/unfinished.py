"""A folder that appears under its name only when it is complete."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout

from frugan.data.wording import shown
from frugan.errors import BadInput


@contextmanager
def unfinished_folder(final: Path) -> Iterator[Path]:
    """Give a new folder beside `final`; rename it when the block ends well, delete it when an exception leaves.

    What a killed process left behind for the same `final` is deleted first; a lock tells it from work that goes on.

    Args:
        final: the name to appear; must not exist, or be an empty folder.

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
