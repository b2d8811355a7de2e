"""Lines about what the pixels of pictures show: grey, one colour throughout, transparent places, a dark range."""

from collections.abc import Container, Sequence

import numpy as np

from frugan.data.formats.decoding import BLACK, GREY, WHITE, Background
from frugan.data.formats.source import Source
from frugan.wording import count, first_names, shown


def colour_name(background: Background) -> str:
    return {WHITE: "white", GREY: "grey", BLACK: "black"}.get(background, background)


def other_colour(background: Background) -> str:
    return "white" if background == BLACK else "black"


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
    counts = np.bincount(classes.labels[list(blank)], minlength=len(classes.names))
    most = [number for number in np.argsort(-counts, kind="stable") if counts[number]]
    named = first_names([f"{classes.names[number]} ({counts[number]:,} of {of_all[number]:,})" for number in most])
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
    colour = colour_name(background)
    is_, it = ("is", "it was") if transparent == 1 else ("are", "they were")
    return (
        f"{count(transparent, 'picture')} {is_} transparent in places: {it} laid on {colour} "
        f"(another colour: data.background={other_colour(background)}; --background of prepare)",
    )


def range_lines(largest: Sequence[int]) -> tuple[str, ...]:
    """Warn of pictures that use little of a range which their files do not declare.

    Args:
        largest: the largest value of 65,535 of each picture of 16 bits.
    """
    used = max(largest, default=0)
    if not largest or used > 65535 // 2:
        return ()
    white = 2 ** max(8, used.bit_length()) - 1
    return (
        f"warning: {count(len(largest), 'picture')} of 16 bits {'uses' if len(largest) == 1 else 'use'} 0 to "
        f"{used:,} of 65,535: {'almost black' if white < 8192 else 'dark'}; if {white:,} is white there, say so "
        f"(data.range={white}; --range {white} of prepare; pictures in colour have to be scaled before)",
    )
