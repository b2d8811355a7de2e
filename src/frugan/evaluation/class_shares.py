"""Classes of generated pictures: as often as the real pictures have them that they are compared with."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from frugan.data.formats.picture_set import PictureSet
from frugan.sampling.requests import DrawRequest

MOST_DRAWS = 50_000
"""Longest list of classes to draw from; shares of more pictures are rounded to it."""
SURELY_APART = 4.0
"""Standard deviations from which on the shares of two sets are no random draw's."""


def with_shares(draw: DrawRequest, pictures: PictureSet | None, classes: int) -> DrawRequest:
    """Draw each class as often as pictures have it, for scores that compare with them.

    Otherwise a perfect generator would differ from a set with uneven classes by their shares alone.

    Args:
        draw: what was asked for; classes that it names stay, and are drawn alike.
        pictures: real ones; None, without classes or with another number of them: the request stays.
        classes: that the generator knows.
    """
    if draw.classes is not None or pictures is None or not pictures.labelled or len(pictures.class_names) != classes:
        return draw
    counts = class_counts(pictures)
    if counts.min() == counts.max():
        return draw
    counts = counts // np.gcd.reduce(counts)
    if counts.sum() > MOST_DRAWS:
        counts = np.rint(counts * (MOST_DRAWS / counts.sum())).astype(np.int64)
    return replace(draw, classes=tuple(np.repeat(np.arange(classes), counts).tolist()))


def class_counts(pictures: PictureSet) -> NDArray[np.int64]:
    """Return how many pictures each class has."""
    return np.bincount(pictures.labels, minlength=len(pictures.class_names))


def have_other_shares(one: PictureSet, other: PictureSet) -> bool:
    """Return whether the classes of two sets differ in their shares by more than random draws from one would."""
    classes = max(len(one.class_names), len(other.class_names))
    counts = np.stack([np.bincount(pictures.labels, minlength=classes) for pictures in (one, other)])  # [2, classes]
    counts = counts[:, counts.any(0)]
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
    apart = ((counts - expected) ** 2 / expected).sum()  # chi-squared, of as many degrees as these
    degrees = counts.shape[1] - 1
    return bool(apart > degrees + SURELY_APART * math.sqrt(2 * degrees))
