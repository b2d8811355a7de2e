"""The embedded pictures of the demo: 1,797 handwritten digits. Their origin is in digits_uci/README.md."""

from importlib.resources import files

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from frugan.data.batches import random_order
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.data.survey import MOST_RESOLUTION
from frugan.errors import BadInput

INK_LEVELS = 16  # 0 (none) to 16 (all of the 4 x 4 pixels behind a cell)


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the digits as published: ink uint8 [1797, 8, 8], 0 to 16, and digit int64 [1797]."""
    with (files("frugan.data") / "digits_uci" / "digits.npz").open("rb") as file, np.load(file) as arrays:
        return arrays["pictures"], arrays["labels"].astype(np.int64)


SPLIT_SEED = 0
"""Of the demo's split: what it learns from, and what it keeps unseen."""


def digits_set(resolution: int, indices: NDArray[np.int64] | None = None) -> PictureSet:
    """Return digits as a labelled set: white strokes on black, enlarged smoothly (bicubic), the same in R, G and B.

    Args:
        resolution: side of the pictures in pixels, at least 8.
        indices: which of the 1,797, int64 [N]; all by default.

    Raises:
        BadInput: a resolution below 8 or above 8192.
    """
    if not 8 <= resolution <= MOST_RESOLUTION:
        raise BadInput(
            f"resolution {resolution}: the digits have 8 x 8 pixels; expected 8 to {MOST_RESOLUTION}, try 32"
        )
    ink, labels = load_digits()
    if indices is not None:
        ink, labels = ink[indices], labels[indices]
    grey = ((ink.astype(np.uint16) * 255 + INK_LEVELS // 2) // INK_LEVELS).astype(np.uint8)  # [N, 8, 8]
    pictures = np.empty((len(grey), 3, resolution, resolution), np.uint8)
    for picture, small in zip(pictures, grey, strict=True):
        picture[:] = np.asarray(Image.fromarray(small).resize((resolution, resolution), Image.Resampling.BICUBIC))
    names = tuple(str(digit) for digit in range(10))
    return PictureSet(pictures, labels, names, True, picture_digest(pictures, labels), len(pictures))


def as_tensors(pictures: PictureSet) -> tuple[Tensor, Tensor]:
    """Return pictures [N, 3, R, R] in [-1, 1], fp32, and labels [N]."""
    return torch.from_numpy(pictures.pictures.copy()).float() / 127.5 - 1, torch.from_numpy(pictures.labels)


def split_digits(seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return indices to fit on and to test on, int64, sorted: halves of every digit, the same for the same seed."""
    _, labels = load_digits()
    fit: list[NDArray[np.int64]] = []
    for digit in range(10):
        members = np.flatnonzero(labels == digit)
        half = (len(members) + digit % 2) // 2  # odd counts are rounded up for every other digit
        fit.append(members[random_order(f"{seed}/digits/{digit}", len(members))[:half]])
    chosen = np.sort(np.concatenate(fit))
    return chosen, np.setdiff1d(np.arange(len(labels)), chosen)


def are_digits(pictures: PictureSet) -> bool:
    """Return whether pictures are the embedded digits, all or the demo's training half, by their labels."""
    _, labels = load_digits()
    return any(np.array_equal(digits, pictures.labels) for digits in (labels, labels[split_digits(SPLIT_SEED)[0]]))
