"""Parts of a set of pictures: a subset to train on, and test pictures that are held out of training."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frugan.contract.settings import DataSettings
from frugan.data.batches import random_order
from frugan.data.formats.picture_set import PictureSet, label_bytes
from frugan.errors import BadInput
from frugan.files import atomic_file
from frugan.progress import Progress
from frugan.wording import count

DIGESTED_AT_ONCE = 256
"""Pictures that are read at once for their digests."""


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


@dataclass(frozen=True)
class Drawing:
    """How test pictures are drawn by what they show, so that a picture's place depends on itself alone."""

    stream: str  # name of the random numbers
    digests: NDArray[np.uint64]  # of each picture [N], as `pixel_digests` gives them
    below: float | None = None  # those of a run that goes on; None: as the part says

    def numbers(self) -> NDArray[np.float64]:
        """A number from 0 to below 1 of each picture [N]; equal pictures have equal ones."""
        key = blake2b(self.stream.encode(), digest_size=32).digest()
        words = b"".join(
            blake2b(digest.tobytes(), key=key, digest_size=8).digest() for digest in self.digests.astype("<u8")
        )
        return (np.frombuffer(words, "<u8") >> np.uint64(11)) / 2.0**53

    def threshold(self, part: float, numbers: NDArray[np.float64]) -> float:
        """The number below which a picture is a test picture.

        A share is its own threshold, whatever other pictures there are; for a number of pictures it lies where so many
        are below, or fewer where equal ones would be parted.
        """
        if self.below is not None:
            return self.below
        return part if isinstance(part, float) else float(np.sort(numbers)[part])


def held_out(pictures: PictureSet, part: float, drawing: Drawing, where: str, *, classes: bool = True) -> PictureSet:
    """Return the pictures to train on, with some held out of them; equal pictures are on the same side.

    Args:
        part: a share of the pictures below 1, which holds for each of them, or a number of them.
        drawing: which.
        where: name and place of the pictures, for messages.
        classes: whether every class is to be trained on: a class that would be held out whole keeps a picture.

    Raises:
        BadInput: there would be none, or none to train on.
    """
    field = _refuse_all(len(pictures), part, where)
    numbers = drawing.numbers()
    below = drawing.threshold(part, numbers)
    test = numbers < below
    if classes:
        for label in np.setdiff1d(pictures.labels, pictures.labels[~test]):
            kept = numbers[pictures.labels == label].max()
            test &= numbers != kept
    if not test.any():
        raise BadInput(
            f"{field}, and none is drawn so; hold out more, or a number of them, such as {max(1, len(pictures) // 10)}"
        )
    if test.all():
        raise BadInput(f"{field}, and all are drawn so, which leaves none to train on; hold out fewer")
    at = np.flatnonzero(test)
    digest = sha256(b"test pictures" + drawing.digests[at].astype("<u8").tobytes() + label_bytes(pictures.labels[at]))
    tested = replace(pictures.only(at), digest=digest.hexdigest())  # the same while others come and go
    return replace(pictures.only(np.flatnonzero(~test)), held_out=tested, held_out_below=below)


def held_out_by_place(
    pictures: PictureSet, part: float, stream: str, where: str, *, classes: bool = True
) -> PictureSet:
    """Return what `held_out` does, drawn by places in the set: for runs that were begun so.

    Args:
        stream: name of the random numbers.

    Raises:
        BadInput: there would be none, or none of a class to train on.
    """
    field = _refuse_all(len(pictures), part, where)
    number = round(part * len(pictures)) if isinstance(part, float) else part
    test = drawn(pictures.labels, number, stream, evenly=False)
    rest = np.setdiff1d(np.arange(len(pictures)), test)
    there, left = (_counts(pictures, at) for at in (np.arange(len(pictures)), rest))
    if classes and (gone := np.flatnonzero((there > 0) & (left == 0))).size:
        name, lost = pictures.class_names[gone[0]], count(int(there[gone[0]]), "picture")
        raise BadInput(f"{field}; held out, {lost} of class {name!r} leave none to train on; hold out fewer")
    return replace(pictures.only(rest), held_out=pictures.only(test))


def _refuse_all(pictures: int, part: float, where: str) -> str:
    """Refuse a part that is no picture or all of them, and return what messages begin with.

    Raises:
        BadInput: it is.
    """
    number = round(part * pictures) if isinstance(part, float) else part
    field = f"data.holdout={part}: {where} has {count(pictures, 'picture')}"
    if number < 1:
        raise BadInput(f"{field}, and that share of them is less than one; hold out more, or leave it out")
    if number >= pictures:
        raise BadInput(f"{field}, and {number:,} held out leave none to train on; hold out fewer, such as 0.1 of them")
    return field


def pixel_digests(pictures: PictureSet, kept: Path, progress: Progress | None) -> NDArray[np.uint64]:
    """Return a digest of each picture's pixels [N], as they are stored; of one that cannot be read, 0.

    Every picture is read for that, so the digests are kept in a file, by the digest of the set.

    Args:
        kept: folder for what can be computed again.
        progress: gets (pictures done, N).
    """
    file = kept / f"{pictures.digest[:24]}.digests.npy"
    with suppress(OSError, ValueError, EOFError):
        known = np.load(file, allow_pickle=False)
        if known.dtype == np.uint64 and known.shape == (len(pictures),):
            return np.asarray(known)
    digests = np.zeros(len(pictures), np.uint64)
    for start in range(0, len(pictures), DIGESTED_AT_ONCE):
        for index, picture in _read(pictures, np.arange(start, min(start + DIGESTED_AT_ONCE, len(pictures)))):
            word = blake2b(np.ascontiguousarray(picture).data, digest_size=8).digest()
            digests[index] = int.from_bytes(word, "little") or 1
        if progress is not None:
            progress(min(start + DIGESTED_AT_ONCE, len(pictures)), len(pictures))
    if digests.all():
        with suppress(OSError):  # they are read again next time
            kept.mkdir(parents=True, exist_ok=True)
            with atomic_file(file) as unfinished, unfinished.open("wb") as written:
                np.save(written, digests)
    return digests


def _read(pictures: PictureSet, indices: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Read pictures [n] as they are stored; those that cannot be read are left out, as training leaves them out."""
    try:
        pictures.check(indices)
        yield from zip(indices.tolist(), pictures.in_colour(indices), strict=True)
    except BadInput:
        if len(indices) > 1:
            for index in indices:
                yield from _read(pictures, np.array([index]))


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
    _refuse_fewer(len(pictures), number, 0 if pictures.held_out is None else len(pictures.held_out), where)
    known = int(np.count_nonzero(_counts(pictures, np.arange(len(pictures)))))
    if classes and number < known:
        raise BadInput(
            f"data.subset={number}: {where} has {count(known, 'class')}, and each needs a picture; choose at least "
            f"{known}"
        )
    return pictures.only(drawn(pictures.labels, number, stream, evenly=True))


def refuse_too_few(pictures: int, settings: DataSettings, where: str) -> None:
    """Refuse settings that ask for more pictures than there are, before any is read.

    Args:
        pictures: in the source, of which some may turn out damaged.
        where: name and place of the pictures, for messages.

    Raises:
        BadInput: there are fewer.
    """
    held = settings.holdout if isinstance(settings.holdout, int) else 0
    if held:
        _refuse_all(pictures, held, where)
    if settings.subset is not None:
        _refuse_fewer(pictures - held, settings.subset, held, where)


def _refuse_fewer(pictures: int, subset: int, held: int, where: str) -> None:
    if subset > pictures:
        besides = f" besides the {held:,} held out" if held else ""
        raise BadInput(
            f"data.subset={subset}: {where} has {count(pictures, 'picture')}{besides}; choose at most {pictures}, or "
            "leave it out to train on all"
        )


def whole(settings: DataSettings) -> DataSettings:
    """Return the settings without parts, for pictures that a recipe makes none of."""
    return settings.model_copy(update={"subset": None, "holdout": None})


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
