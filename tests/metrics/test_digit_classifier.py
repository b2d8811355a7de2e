"""The judge of the demo's digits."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import frugan
from frugan.metrics.digit_classifier import DigitClassifier, class_accuracy, trained_on_generated

Digits = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def digits() -> Digits:
    """All digits [1797, 1, 8, 8] in [-1, 1], and labels [1797]."""
    with np.load(Path(frugan.__file__).parent / "data" / "digits_uci" / "digits.npz") as arrays:
        pictures, labels = arrays["pictures"], arrays["labels"]
    return torch.from_numpy(pictures).float()[:, None] / 8 - 1, torch.from_numpy(labels).long()


def halves(digits: Digits, seed: int = 0) -> tuple[Digits, Digits]:
    """Stratified: half of every digit, and the rest."""
    pictures, labels = digits
    random = torch.Generator().manual_seed(seed)
    fit = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(10):
        members = (labels == digit).nonzero().flatten()
        fit[members[torch.randperm(len(members), generator=random)[: len(members) // 2]]] = True
    return (pictures[fit], labels[fit]), (pictures[~fit], labels[~fit])


def enlarged(pictures: Tensor, channels: int = 3) -> Tensor:
    """As the demo sees them: 32x32, smooth, three equal channels."""
    large = F.interpolate(pictures, size=(32, 32), mode="bicubic", align_corners=False)
    return large.clamp(-1, 1).expand(-1, channels, -1, -1)


@pytest.mark.parametrize("seed", [1, 2])
def test_is_right_on_the_other_half(digits: Digits, seed: int) -> None:
    fit, other = halves(digits, seed)
    classifier = DigitClassifier.fit(*fit)
    assert class_accuracy(classifier, *other) >= 0.98
    assert class_accuracy(classifier, enlarged(other[0]), other[1]) >= 0.97
    large = DigitClassifier.fit(enlarged(fit[0]), fit[1])
    assert class_accuracy(large, enlarged(other[0]), other[1]) >= 0.98
    assert class_accuracy(large, *other) >= 0.97


def test_nearest_enlargement_changes_nothing(digits: Digits) -> None:
    fit, other = halves(digits)
    classifier = DigitClassifier.fit(*fit)
    large = other[0].repeat_interleave(4, 2).repeat_interleave(4, 3)
    assert torch.equal(classifier.predict(large), classifier.predict(other[0]))
    assert torch.equal(classifier.predict(large), DigitClassifier.fit(*fit).predict(large))


def test_wrong_classes_score_low(digits: Digits) -> None:
    fit, (pictures, labels) = halves(digits)
    classifier = DigitClassifier.fit(*fit)
    assert class_accuracy(classifier, pictures, (labels + 1) % 10) < 0.02
    noise = torch.rand(500, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert class_accuracy(classifier, noise, torch.arange(500) % 10) < 0.2


@pytest.mark.long
def test_poor_variety_is_punished(digits: Digits) -> None:
    (pictures, labels), other = halves(digits)
    classifier = DigitClassifier.fit(pictures, labels)
    whole = trained_on_generated(pictures, labels, *other)
    one_each = torch.stack([(labels == digit).nonzero()[0, 0] for digit in range(10)])
    again = one_each.repeat(200)
    collapsed = trained_on_generated(pictures[again], labels[again], *other)
    assert class_accuracy(classifier, pictures[again], labels[again]) == 1  # cannot see it
    assert whole > 0.98
    assert collapsed < 0.85
    few = labels < 5  # half of the classes never come
    assert trained_on_generated(pictures[few], labels[few], *other) < 0.55


def test_only_labels_that_were_seen_are_given(digits: Digits) -> None:
    pictures, labels = digits
    some = (labels == 3) | (labels == 7)
    classifier = DigitClassifier.fit(pictures[some], labels[some])
    assert set(classifier.predict(pictures).tolist()) == {3, 7}


def test_refusals_say_what_was_expected() -> None:
    good, labels = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
    for bad in (torch.zeros(4, 2, 8, 8), torch.zeros(4, 1, 8, 9), torch.zeros(4, 1, 4, 4), torch.zeros(4, 64)):
        with pytest.raises(ValueError, match="expected \\[N, 1 or 3, R, R\\]"):
            DigitClassifier.fit(bad, labels)
    with pytest.raises(ValueError, match="not finite"):
        DigitClassifier.fit(good / 0, labels)
    with pytest.raises(ValueError, match="one per picture"):
        DigitClassifier.fit(good, labels[:3])
    with pytest.raises(ValueError, match="one per picture"):
        DigitClassifier.fit(good, labels.float())
    with pytest.raises(ValueError, match="expected 1 to 10,000"):
        DigitClassifier.fit(good[:0], labels[:0])
    with pytest.raises(ValueError, match="at least one"):
        class_accuracy(DigitClassifier.fit(good, labels), good[:0], labels[:0])
