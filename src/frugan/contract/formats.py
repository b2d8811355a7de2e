"""Files of other programs, as `frugan convert` reads and writes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Conversion:
    """What is to be converted, and how; a format reads those fields that it says it takes.

    Attributes:
        source, out: what to read, and where to write; what is there, a format checks.
        overrides: `key.sub=value` words for the recipe.
        name: of the model, where a folder holds several.
        data: paths by source name, or one, to compare with the model.
        replace: what is there may be replaced.
        half: in half precision.
        raw: networks as they were trained, where there are averages of them too.
        verify: the converted networks are run before anything is written, and compared where there are outputs to
            compare with.
        say: is given a line for everything that does not simply go over.
    """

    source: Path
    out: Path
    say: Callable[[str], None]
    overrides: Sequence[str] = ()
    name: str | None = None
    data: str | Mapping[str, str | Path] | None = None
    replace: bool = False
    half: bool = False
    raw: bool = False
    verify: bool = False


@dataclass(frozen=True)
class Converted:
    """What came of it.

    Attributes:
        facts: for a program, as JSON.
        lines: for people.
    """

    facts: Mapping[str, Any]
    lines: Sequence[str]


class FileFormat(Protocol):
    """A format that models come from, or go to, or both.

    Attributes:
        program: what it belongs to, in a few words for people.
        reads, writes: fields of `Conversion` that `read` and `write` take besides `source`, `out` and `say`; None: it
            cannot be read, or written.
    """

    program: str
    reads: frozenset[str] | None
    writes: frozenset[str] | None

    def read(self, asked: Conversion) -> Converted:
        """Make a run, or weights, of a model in this format.

        Raises:
            BadInput: files are missing, damaged or do not fit each other; nothing is written then.
        """

    def write(self, asked: Conversion) -> Converted:
        """Write a run, or weights, in this format.

        Raises:
            BadInput: nothing to write, or something is there already.
        """
