"""Parts of a set of pictures: a subset to train on, and test pictures that are held out of training."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from frugan.contract.settings import DataSettings
from frugan.data.batches import random_order
from frugan.data.formats.picture_set import PictureSet
from frugan.errors import BadInput
from frugan.wording import count


def drawn(labels: NDArray[np.int64], number: int, stream: str, *, evenly: bool) -> NDArray[np.int64]:
    """Draw some of N pictures; those of a smaller number are among those of a larger one.

    Args:
        labels: class of each picture [N].
        number: of pictures to draw, at most N.
        stream: name of the random numbers.
        evenly: as many of each class as of the others, as far as it has them; False: in proportion to its pictures.

    Returns:
        Their indices [number], in order.
    """
    order = random_order(stream, len(labels))  # [N]
    by_class = order[np.argsort(labels[order], kind="stable")]  # class after class, each in random order
    counts = np.bincount(labels)
    places = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels[by_class]]  # within the class
    turns = np.empty(len(labels), np.float64)  # pictures of lower ones come first
    turns[by_class] = places if evenly else (places + 0.5) / counts[labels[by_class]]
    return np.sort(order[np.argsort(turns[order], kind="stable")[:number]])


def held_out(pictures: PictureSet, part: float, stream: str, where: str, *, classes: bool = True) -> PictureSet:
    """Return the pictures to train on, with some held out of them in proportion to their classes.

    Args:
        part: a share of the pictures below 1, or a number of them.
        stream: name of the random numbers.
        where: name and place of the pictures, for messages.
        classes: whether every class is to be trained on.

    Raises:
        BadInput: there would be none, or none of a class to train on.
    """
    number = round(part * len(pictures)) if isinstance(part, float) else part
    field = f"data.holdout={part}: {where} has {count(len(pictures), 'picture')}"
    if number < 1:
        raise BadInput(f"{field}, and that share of them is less than one; hold out more, or leave it out")
    if number >= len(pictures):
        raise BadInput(f"{field}, and {number:,} held out leave none to train on; hold out fewer, such as 0.1 of them")
    test = drawn(pictures.labels, number, stream, evenly=False)
    rest = np.setdiff1d(np.arange(len(pictures)), test)
    there, left = (_counts(pictures, at) for at in (np.arange(len(pictures)), rest))
    if classes and (gone := np.flatnonzero((there > 0) & (left == 0))).size:
        name, lost = pictures.class_names[gone[0]], count(int(there[gone[0]]), "picture")
        raise BadInput(f"{field}; held out, {lost} of class {name!r} leave none to train on; hold out fewer")
    return replace(pictures.only(rest), held_out=pictures.only(test))


def subset(pictures: PictureSet, number: int, stream: str, where: str, *, classes: bool = True) -> PictureSet:
    """Return some of the pictures, drawn evenly over the classes; those held out stay.

    Args:
        number: of pictures to return.
        stream: name of the random numbers.
        where: name and place of the pictures, for messages.
        classes: whether every class is to be trained on.

    Raises:
        BadInput: there are fewer, or more classes.
    """
    if number > len(pictures):
        besides = "" if pictures.held_out is None else f" besides the {len(pictures.held_out):,} held out"
        raise BadInput(
            f"data.subset={number}: {where} has {count(len(pictures), 'picture')}{besides}; choose at most "
            f"{len(pictures)}, or leave it out to train on all"
        )
    known = int(np.count_nonzero(_counts(pictures, np.arange(len(pictures)))))
    if classes and number < known:
        raise BadInput(
            f"data.subset={number}: {where} has {count(known, 'class')}, and each needs a picture; choose at least "
            f"{known}"
        )
    return pictures.only(drawn(pictures.labels, number, stream, evenly=True))


def trained_on(pictures: int, settings: DataSettings) -> int:
    """Return how many of so many pictures training sees."""
    held = settings.holdout
    rest = pictures - (round(held * pictures) if isinstance(held, float) else held if isinstance(held, int) else 0)
    return max(1, rest if settings.subset is None else min(rest, settings.subset))


def of_each_class(pictures: PictureSet) -> str:
    """Describe how many pictures classes have, such as ", 50 of each of 10 classes"; empty: there are none."""
    counts = _counts(pictures, np.arange(len(pictures)))
    counts = counts[counts > 0]
    if not pictures.labelled or len(counts) < 2:
        return ""
    least, most = int(counts.min()), int(counts.max())
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f", {each} of each of {len(counts):,} classes"


def _counts(pictures: PictureSet, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pictures of each class [classes] among those at some places."""
    return np.bincount(pictures.labels[at], minlength=len(pictures.class_names))
