"""What every format of pictures looks like from outside: names, classes, and a way to read one picture."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from PIL import Image

from frugan.data.classes import Classes
from frugan.errors import BadInput

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(pipe):", re.IGNORECASE)


class Unreadable(Exception):
    """One picture cannot be decoded; the text says why. It is left out and reported, not fatal by itself."""


@contextmanager
def translated(broken: tuple[type[Exception], ...], into: Callable[[Exception], Exception]) -> Iterator[None]:
    """Raise our own error in place of what a library raises on damaged files.

    Args:
        broken: what it raises. BadInput goes through as it is, although it is a ValueError.
        into: makes the error.
    """
    try:
        yield
    except BadInput:
        raise
    except broken as error:
        raise into(error) from error


@contextmanager
def closed_on_failure(close: Callable[[], object]) -> Iterator[None]:
    """Close a file that is being opened when an exception leaves the block."""
    try:
        yield
    except BaseException:
        close()
        raise


def nothing_to_close() -> None:
    """Stand in for `close` where a source keeps no file open."""


@dataclass(frozen=True, eq=False)
class Source:
    """A listed but unread collection of N pictures. Usable from several threads, and in a `with` statement.

    Attributes:
        kind: the format, in words.
        path: where it is.
        names: name of each picture inside `path`.
        classes: class of each picture.
        size: index to (width, height) in pixels, without decoding. Raises Unreadable.
        picture: index to the upright RGB picture. Raises Unreadable.
        close: closes what is open.
        lines: automatic choices made while listing, one line each.
    """

    kind: str
    path: Path
    names: Sequence[str]
    classes: Classes
    size: Callable[[int], tuple[int, int]]
    picture: Callable[[int], Image.Image]
    close: Callable[[], None] = nothing_to_close
    lines: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def local_path(given: str | Path) -> Path:
    """The path that data are read from.

    Raises:
        BadInput: an address; its text, which may hold a password or a signature, is not repeated.
    """
    address = _ADDRESS.match(given) if isinstance(given, str) else None
    if address is not None:
        raise BadInput(
            f"data by {address[0]}...: data are read from a disk of this machine; fetch them first (of an object "
            "store, `aws s3 sync s3://BUCKET/SHARDS FOLDER` for instance), and give their folder"
        )
    return Path(given)
