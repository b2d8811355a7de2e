"""`--init-classes`: what a new run's tables of classes start from, where the weights know other classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from frugan.data.wording import first_names
from frugan.errors import BadInput

How = Literal["copy", "mean", "fresh"]
CHOICES = "--init-classes mean (all begin with the mean), fresh (as drawn at random) or copy=FILE (a map of classes)"
MOST_MAP_BYTES = 4 << 20


@dataclass(frozen=True)
class ClassStart:
    """What tables of classes start from.

    Attributes:
        how: copy: each class from one of the weights' classes; mean: all from the mean of these; fresh: from first
            weights.
        map: of copy: the file with a line `CLASS = CLASS OF THE WEIGHTS` for each class.
    """

    how: How
    map: Path | None = None


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
    """Classes of a run, or of weights.

    Attributes:
        count: how many.
        names: in their order; empty: nobody knows.
    """

    count: int
    names: Sequence[str] = ()

    def number(self, word: str) -> int | None:
        """Of a name, or of a number that is no name; None: there is no such class."""
        if word in self.names:
            return self.names.index(word)
        return int(word) if word.isascii() and word.isdigit() and len(word) < 9 and int(word) < self.count else None

    @property
    def in_words(self) -> str:
        """For messages."""
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
    found: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        new, equals, old = (part.strip() for part in text.rpartition("="))
        if not equals or not new or not old:
            raise BadInput(f"{where}: line {number}: {text[:80]!r}: expected CLASS = CLASS OF THE WEIGHTS")
        here, there = ours.number(new), theirs.number(old)
        if here is None:
            raise BadInput(f"{where}: line {number}: {new[:80]!r} is no class of this run; expected {ours.in_words}")
        if there is None:
            raise BadInput(
                f"{where}: line {number}: {old[:80]!r} is no class of the weights; expected {theirs.in_words}"
            )
        if here in found:
            raise BadInput(f"{where}: line {number}: class {new!r} is there twice")
        found[here] = there
    missing = [ours.names[i] if ours.names else str(i) for i in range(ours.count) if i not in found]
    if missing:
        raise BadInput(f"{where}: says nothing of {first_names(missing)}; expected a line for every class of this run")
    return [found[i] for i in range(ours.count)]


def refuse_other_classes(where: str, ours: int, theirs: int) -> None:
    """Refuse tables of another size that nobody has said anything of.

    Raises:
        BadInput: always.
    """
    raise BadInput(
        f"{where}: these weights know {theirs:,} classes, and this run has {ours:,}; say what their tables start from: "
        f"{CHOICES}"
    )


@torch.no_grad()
def with_class_tables(
    tensors: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    dimensions: Mapping[str, int],
    how: How,
    chosen: Sequence[int],
) -> dict[str, Tensor]:
    """The weights' tensors, with tables of as many classes as there are here.

    Args:
        tensors: "network.parameter" of the weights.
        own: of the run: first weights.
        dimensions: of each table the dimension that runs over classes.
        how: what they start from.
        chosen: of copy: the weights' class for each class of the run.
    """
    found = dict(tensors)
    for key, dimension in dimensions.items():
        if key not in tensors or key not in own:
            continue
        count = own[key].shape[dimension]
        if how == "fresh":
            found[key] = own[key].detach().clone()
        elif how == "mean":
            mean = tensors[key].mean(dimension, keepdim=True)
            found[key] = mean.repeat_interleave(count, dimension)
        else:
            found[key] = tensors[key].index_select(dimension, torch.tensor(list(chosen)))
    return found
