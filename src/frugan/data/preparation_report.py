"""What a preparation did, in numbers and in words."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frugan.data.background import GREY, WHITE, Background
from frugan.data.classes import Classes
from frugan.data.fitting import Fitting
from frugan.data.set_file import SetFile
from frugan.data.source import Source
from frugan.data.survey import Survey, bad_names
from frugan.data.wording import count, first_names, shown

FEW_PICTURES = 20
"""Of a class: fewer are pointed out."""


@dataclass(frozen=True)
class PreparationReport:
    """What a preparation did.

    Attributes:
        path: the prepared set.
        kind: format of the source, in words.
        pictures: how many the set holds.
        class_names: name of each class.
        labelled: whether the classes mean anything.
        bad: name and reason of each picture that was left out.
        upscaled: how many pictures were enlarged.
        transparent: how many were transparent in places; None: they were not counted, by an earlier version.
        digest: of pixels and labels, as in PictureSet.
        grey: how many pictures are grey; None: they were not counted, by an earlier version.
        lines: everything that was decided automatically, one line each, for the user to read.
    """

    path: Path
    kind: str
    pictures: int
    class_names: tuple[str, ...]
    labelled: bool
    bad: tuple[tuple[str, str], ...]
    upscaled: int
    transparent: int | None
    digest: str
    grey: int | None
    lines: tuple[str, ...]


def report_of(path: Path, about: SetFile, lines: tuple[str, ...]) -> PreparationReport:
    """Return the report on a prepared set from its `set.json`."""
    return PreparationReport(
        path,
        about.origin.kind,
        about.pictures,
        tuple(about.class_names),
        about.labelled,
        tuple(about.origin.bad),
        about.origin.upscaled,
        about.origin.transparent,
        about.digest,
        about.grey,
        lines,
    )


def source_lines(source: Source) -> tuple[str, ...]:
    """Return what was taken for pictures and classes."""
    classes = source.classes
    return (f"{shown(str(source.path))}: {source.kind}", *classes.lines, *few_lines(classes), *source.lines)


def few_lines(classes: Classes) -> tuple[str, ...]:
    """Return which classes have so few pictures that a network learns them by heart, if any have."""
    if not classes.labelled:
        return ()
    found = np.bincount(classes.labels, minlength=len(classes.names))
    few = [number for number in np.argsort(found, kind="stable") if 0 < found[number] < FEW_PICTURES]
    if not few:
        return ()
    named = first_names([f"{classes.names[number]} ({found[number]})" for number in few])
    has = "has" if len(few) == 1 else "have"
    return (
        f"{count(len(few), 'class')} {has} fewer than {FEW_PICTURES} pictures: {named}; so few are learned by heart: "
        "add some, or leave the class out",
    )


def fitting_lines(source: Source, fitting: Fitting, found: Survey, bad: Mapping[int, str]) -> tuple[str, ...]:
    """Return what was done to the pictures: cropped, resized, enlarged, left out."""
    side = fitting.resolution
    upscaled = found.smaller_than(side, but=bad).size
    resized = int((found.sizes.min(axis=1) != side).sum()) - len(found.bad)
    other = "lanczos" if fitting.resample == "bilinear" else "bilinear"
    lines = []
    if found.oblong:
        lines.append(f"{count(found.oblong, 'picture')} of {len(source):,} cropped to the square in the middle")
    if resized:
        lines.append(
            f"{count(resized, 'picture')} resized to {side} x {side} ({fitting.resample}; or resample={other})"
        )
    if upscaled:
        lines.append(f"{count(upscaled, 'picture')} enlarged, as allow_upscale permits: expect them to be soft")
    if bad:
        lines.append(f"{count(len(bad), 'picture')} left out, cannot be read: {bad_names(source, bad)}")
    return tuple(lines)


def grey_lines(pictures: int, grey: int) -> tuple[str, ...]:
    """Return what was found of grey pictures among `pictures`, if any were."""
    if not grey:
        return ()
    if grey == pictures:
        return ("all pictures are grey",)
    return (f"{count(grey, 'picture')} of {pictures:,} {'is' if grey == 1 else 'are'} grey, the others in colour",)


def blank_lines(
    source: Source, blank: Sequence[int], transparent: Container[int], background: Background
) -> tuple[str, ...]:
    """Return which pictures show nothing, and in which classes, if any do.

    Args:
        blank: indices of pictures that are one colour throughout.
        transparent: indices of those that were transparent in places.
        background: what these were laid on.
    """
    if not blank:
        return ()
    classes = source.classes
    of_all = np.bincount(classes.labels, minlength=len(classes.names))
    found = np.bincount(classes.labels[list(blank)], minlength=len(classes.names))
    most = [number for number in np.argsort(-found, kind="stable") if found[number]]
    named = first_names([f"{classes.names[number]} ({found[number]:,} of {of_all[number]:,})" for number in most])
    which = f", in class {named}" if classes.labelled else f", such as {shown(source.names[blank[0]])}"
    is_ = "is" if len(blank) == 1 else "are"
    line = f"warning: {count(len(blank), 'picture')} {is_} one colour throughout{which}: nothing to learn from"
    vanished = sum(index in transparent for index in blank)
    if not vanished:
        return (f"{line}; leave them out",)
    of_them = "all of them" if vanished == len(blank) else f"{vanished:,} of them"
    other = "white" if background == GREY else "grey"
    return (f"{line}; {of_them} vanished on the background: try data.background={other} (--background of prepare)",)


def transparency_lines(transparent: int, background: Background) -> tuple[str, ...]:
    """Return what became of transparent places, if there were any."""
    if not transparent:
        return ()
    colour = "white" if background == WHITE else background
    is_, it = ("is", "it was") if transparent == 1 else ("are", "they were")
    return (
        f"{count(transparent, 'picture')} {is_} transparent in places: {it} laid on {colour} "
        "(another colour: data.background=black; --background of prepare)",
    )
