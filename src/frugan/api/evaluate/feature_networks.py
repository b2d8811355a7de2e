"""Feature networks by name, the demo's digits among them."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from frugan.api.progress import Say
from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.folders import Folders
from frugan.metrics.digit_classifier import DigitClassifier
from frugan.metrics.feature_network import FeatureNetwork, Features, load_inception, load_named


@dataclass(frozen=True)
class DigitFeatures:
    """The demo's classifier as a feature network: its ten scores, as features alone.

    They are no logits, and no class probabilities are made of them for an inception score: taken as logits, unseen real
    digits score 9.4 and ten pictures that repeat 9.9; with a temperature that cross-validation inside the fit half
    chose, 9.7 and 9.99. Where a classifier is nearly always sure, that score rises with sameness.

    Attributes:
        classifier: fitted to the demo's training half.
        digest: of its weights.
    """

    classifier: DigitClassifier
    digest: str
    name: str = "digits"
    resizer: str = "area to 8"

    def __call__(self, pictures: Tensor) -> Features:
        """Features of uint8 pictures [N, 1 or 3, R, R]: scores [N, 10]."""
        return Features(self.classifier.scores(pictures.float() / 127.5 - 1).float(), None)


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
