"""Files that stand under their names only when they are whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a place beside `path` to write to: in place of what was at `path` when the block ends well, else deleted.

    Several processes may write the same file: the last one's counts. What must outlive a power cut, the writer flushes.
    """
    beside = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
