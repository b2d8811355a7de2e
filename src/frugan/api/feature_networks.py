"""Feature networks by name, the demo's digits among them."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from frugan.api.pictures import Say
from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.folders import Folders
from frugan.metrics.digit_classifier import DigitClassifier
from frugan.metrics.feature_network import FeatureNetwork, Features, load_inception, load_named

SHARPNESS = 5.0
"""Scores of the digit classifier lie between -1 and 1: so multiplied, a sure answer has nearly all the probability."""


@dataclass(frozen=True)
class DigitFeatures:
    """The demo's classifier as a feature network: its ten scores.

    Attributes:
        classifier: fitted to the demo's training half.
        digest: of its weights.
    """

    classifier: DigitClassifier
    digest: str
    name: str = "digits"
    resizer: str = "area to 8"

    def __call__(self, pictures: Tensor) -> Features:
        """Features of uint8 pictures [N, 1 or 3, R, R]: scores [N, 10], and the same sharpened as class scores."""
        scores = self.classifier.scores(pictures.float() / 127.5 - 1).float()
        return Features(scores, scores * SHARPNESS)


def choose_network(name: str, file: Path | None, device: torch.device, say: Say) -> FeatureNetwork:
    """A feature network by name.

    Raises:
        BadInput: there is none of this name, or its weights are missing or others.
    """
    if name == "inception":
        found: FeatureNetwork = load_inception(file, Folders.from_environment().cache, device)
    elif name == "digits":
        fit_on, _ = split_digits(SPLIT_SEED)
        digits = digits_set(32, fit_on)
        pictures = torch.from_numpy(digits.pictures.copy()).float() / 127.5 - 1
        classifier = DigitClassifier.fit(pictures, torch.from_numpy(digits.labels))
        found = DigitFeatures(classifier, sha256(digits.digest.encode()).hexdigest())
    else:
        found = load_named(name, device)
    say(f"features: {found.name}, {found.digest[:8]}, {found.resizer}")
    return found
