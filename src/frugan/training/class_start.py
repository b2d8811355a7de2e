"""What tables of classes start from (`--init-classes`), and the map of classes that people write for it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frugan.errors import BadInput
from frugan.wording import MIB, first_names

How = Literal["copy", "mean", "fresh"]
CHOICES = "--init-classes mean (all begin with the mean), fresh (as drawn at random) or copy=FILE (a map of classes)"
MOST_MAP_BYTES = 4 * MIB


@dataclass(frozen=True)
class ClassStart:
    """Initialisation of tensors with one entry per class."""

    # copy: each class from one of the weights' classes; mean: all from the mean of these; fresh: from first weights
    how: How
    map: Path | None = None  # of copy: the file with a line `CLASS = CLASS OF THE WEIGHTS` for each class

    def __str__(self) -> str:
        """Return the command-line form, with an absolute path."""
        return self.how if self.map is None else f"{self.how}={self.map.resolve()}"


def parse_class_start(word: str) -> ClassStart:
    """Read `mean`, `fresh` or `copy=FILE`.

    Raises:
        BadInput: something else, or no such file.
    """
    if word == "mean":
        return ClassStart("mean")
    if word == "fresh":
        return ClassStart("fresh")
    how, _, file = word.partition("=")
    if how != "copy" or not file:
        raise BadInput(f"--init-classes {word!r}: expected one of {CHOICES}")
    if not Path(file).is_file():
        raise BadInput(f"--init-classes {word}: no such file (looked from {Path.cwd()})")
    return ClassStart("copy", Path(file))


@dataclass(frozen=True)
class KnownClasses:
    """Classes of a run, or of weights."""

    count: int  # how many
    names: Sequence[str] = ()  # by label; empty: unknown

    def number(self, word: str) -> int | None:
        """Return the label of a class, by name or else by number; None: there is no such class."""
        if word in self.names:
            return self.names.index(word)
        return int(word) if word.isascii() and word.isdigit() and len(word) < 9 and int(word) < self.count else None

    @property
    def in_words(self) -> str:
        """Describe the classes in messages."""
        return first_names(self.names) if self.names else f"numbers from 0 to {self.count - 1:,}"


def read_class_map(path: Path, ours: KnownClasses, theirs: KnownClasses) -> list[int]:
    """Number of the weights' class for each class of the run, in order.

    Each line is `CLASS = CLASS OF THE WEIGHTS`, by name or by number; what follows a # is passed over.

    Raises:
        BadInput: a line is none, a class is unknown, named twice or missing.
    """
    where = f"--init-classes copy={path}"
    if path.stat().st_size > MOST_MAP_BYTES:
        raise BadInput(f"{where}: larger than {MOST_MAP_BYTES:,} bytes")
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except ValueError as error:
        raise BadInput(f"{where}: no text in UTF-8 ({error})") from error
    theirs_of: dict[int, int] = {}
    for number, new, old in _pairs(lines, where):
        here, there = ours.number(new), theirs.number(old)
        if here is None:
            raise BadInput(f"{where}: line {number}: {new[:80]!r} is no class of this run; expected {ours.in_words}")
        if there is None:
            raise BadInput(
                f"{where}: line {number}: {old[:80]!r} is no class of the weights; expected {theirs.in_words}"
            )
        if here in theirs_of:
            raise BadInput(f"{where}: line {number}: class {new!r} is there twice")
        theirs_of[here] = there
    missing = [ours.names[i] if ours.names else str(i) for i in range(ours.count) if i not in theirs_of]
    if missing:
        raise BadInput(f"{where}: says nothing of {first_names(missing)}; expected a line for every class of this run")
    return [theirs_of[i] for i in range(ours.count)]


def _pairs(lines: Sequence[str], where: str) -> Iterator[tuple[int, str, str]]:
    """Number of a line of a map, and the words on both sides of its "="."""
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        new, equals, old = (part.strip() for part in text.rpartition("="))
        if not equals or not new or not old:
            raise BadInput(f"{where}: line {number}: {text[:80]!r}: expected CLASS = CLASS OF THE WEIGHTS")
        yield number, new, old
