"""How many of 1,000 kinds of pictures a generator draws: three digits on top of each other, as red, green and blue.

    python benchmarks/equal_time.py RESULT.json --sets stacked-digits --side 32 --minutes 30 --recipes NAME,...
    python benchmarks/stacked_digits.py > benchmarks/results/stacked-digits-real.json

The first trains, counts and writes; the second counts the kinds of real pictures. Pictures have no labels: 20,000
random triples of the digits that ship, of the half that is trained on. Each channel of 10,000 samples is read by a
classifier that was fitted to that half. How many of the triples occur among clear pictures, and the Kullback-Leibler
divergence of their shares from equal ones: so Srivastava et al. 2017 (arXiv 1705.07761) count, on MNIST.
"""

import json

import numpy as np
import torch
from torch import Tensor

from frugan.data.digits import SPLIT_SEED, as_tensors, digits_set, split_digits
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.metrics.digit_classifier import DigitClassifier

NAME = "stacked-digits"
DIGITS = 10
KINDS = DIGITS**3
FITTED, UNSEEN = 20_000, 10_000
"""Triples to train on, and of the other half's digits."""
COUNTED = 10_000
UNCLEAR = 0.01
"""Of real digits, which are then not counted either."""
JUDGE_SIDE, JUDGED_SIDE = 8, 32


def stacked_digits(resolution: int) -> tuple[PictureSet, PictureSet]:
    """Triples of digits to train on, and of other digits."""
    halves = (digits_set(resolution, indices) for indices in split_digits(SPLIT_SEED))
    fit, unseen = (_stacked(half, count) for half, count in zip(halves, (FITTED, UNSEEN), strict=True))
    return fit, unseen


def _stacked(digits: PictureSet, count: int) -> PictureSet:
    triples = np.random.default_rng(0).integers(len(digits), size=(count, 3))
    pictures = np.ascontiguousarray(digits.pictures[triples, 0])  # uint8 [count, 3, R, R]
    labels = np.zeros(count, np.int64)
    return PictureSet(pictures, labels, ("pictures",), True, picture_digest(pictures, labels))


def count_kinds(pictures: Tensor) -> dict[str, float]:
    """Kinds among the clear ones of pictures [N, 3, R, R] in [-1, 1]; and how far their shares are from equal, in nats.

    A picture is clear if each channel looks like one digit as much as all but a hundredth of unseen digits do: whatever
    a classifier is given, it names a digit, so that mere noise would show hundreds of kinds.
    """
    fit, unseen = (as_tensors(digits_set(pictures.shape[-1], indices)) for indices in split_digits(SPLIT_SEED))
    judge = DigitClassifier.fit(*fit, JUDGE_SIDE)
    least = judge.scores(unseen[0]).amax(1).quantile(UNCLEAR)
    scores = torch.stack([judge.scores(pictures[:, [channel]]) for channel in range(3)], 1)  # [N, 3, DIGITS]
    clear = (scores.amax(2) >= least).all(1)
    red, green, blue = judge.labels[scores[clear].argmax(2)].unbind(1)
    counts = torch.bincount((red * DIGITS + green) * DIGITS + blue, minlength=KINDS).double()
    shares = counts / counts.sum().clamp(min=1)
    return {
        "kinds": int((counts > 0).sum()),
        "divergence": float(torch.xlogy(shares, shares * KINDS).sum()),
        "clear": float(clear.double().mean()),
    }


def main() -> None:
    """Count those of real triples."""
    _, unseen = stacked_digits(JUDGED_SIDE)
    real = {name: round(value, 4) for name, value in count_kinds(as_tensors(unseen)[0]).items()}
    print(json.dumps({"recipe": "real", "set": NAME, "side": JUDGED_SIDE, "counted": len(unseen)} | real))


if __name__ == "__main__":
    main()
