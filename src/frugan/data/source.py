"""What every format of pictures looks like from outside: names, classes, and a way to read one picture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from PIL import Image

from frugan.data.classes import Classes


class Unreadable(Exception):
    """One picture cannot be decoded; the text says why. It is left out and reported, not fatal by itself."""


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
