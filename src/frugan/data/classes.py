"""The class of each picture of a collection."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput

MOST_CLASSES = 1_000_000  # ImageNet-21k has 21,841: a larger number is no class


@dataclass(frozen=True, eq=False)
class Classes:
    """Labels of N pictures.

    Attributes:
        labels: class of each picture, int64 [N]; zeros where unlabelled.
        names: name of each class; classes without pictures keep their number.
        labelled: whether the classes mean anything.
        lines: how they were found, one line each.
    """

    labels: NDArray[np.int64]
    names: tuple[str, ...]
    labelled: bool
    lines: tuple[str, ...] = ()


def unlabelled(number: int, line: str, name: str = "pictures") -> Classes:
    """Return the one class of `number` pictures without labels; `line` says why."""
    return Classes(np.zeros(number, np.int64), (name,), False, (line,))


def numbered(labels: NDArray[np.int64], where: str) -> Classes:
    """Return the classes "0", "1", … of labels int64 [N] that come without names.

    Raises:
        BadInput: a label is negative or absurdly large; `where` names the place.
    """
    lowest, highest = (int(labels.min()), int(labels.max())) if labels.size else (0, 0)
    if lowest < 0 or highest >= MOST_CLASSES:
        wrong = lowest if lowest < 0 else highest
        raise BadInput(
            f"{where}: {wrong} is not a class number; expected whole numbers from 0 to {MOST_CLASSES - 1:,}. "
            "Number the classes 0, 1, 2 … or give a folder of class folders."
        )
    names = tuple(str(number) for number in range(highest + 1))
    line = f"{len(names):,} numbered classes from {where}"
    if without := len(names) - len(np.unique(labels)):
        line += f"; {without:,} of them without pictures, which nothing can be learned of"
    return Classes(labels, names, True, (line,))
