"""The same pictures with their classes numbered as a run numbers them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np

from frugan.data.picture_set import PictureSet, label_bytes


def relabelled(pictures: PictureSet, names: Sequence[str], called: Mapping[str, str]) -> PictureSet:
    """Return the set with labels that are places in `names`.

    Where labels change, its digest does too: another one for other labels, though not the `picture_digest`, for which
    every picture would have to be read.

    Args:
        pictures: a labelled set.
        names: of the classes, in the order of their labels.
        called: class of the set -> which of `names` it is, for every class of the set.
    """
    numbers = {name: number for number, name in enumerate(names)}
    table = np.array([numbers[called[name]] for name in pictures.class_names], np.int64)  # [classes of the set]
    labels = table[pictures.labels]  # [N]
    digest = pictures.digest
    if not np.array_equal(labels, pictures.labels):
        digest = sha256(digest.encode() + label_bytes(labels)).hexdigest()
    return replace(pictures, labels=labels, class_names=tuple(names), digest=digest)
