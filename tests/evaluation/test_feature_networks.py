"""The demo's classifier as a feature network: by what it gives, real digits score above collapsed ones."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.evaluation.reference import choose_network
from frugan.metrics.feature_network import FeatureNetwork
from frugan.metrics.scores import Moments, frechet_distance, kernel_distance, precision_recall


@pytest.fixture(scope="module")
def network() -> FeatureNetwork:
    return choose_network("digits", None, torch.device("cpu"), lambda _: None)


def scores(rows: NDArray[np.float32], real: NDArray[np.float32]) -> dict[str, float]:
    """What `evaluate` measures by features alone; the distances negative, so that more is better."""
    both = [Moments.of(torch.from_numpy(each)) for each in (rows, real)]
    precision, recall = precision_recall(rows, real)
    return {
        "fid": -frechet_distance(*both),
        "kid": -kernel_distance(rows, real, subset_size=100)[0],
        "recall": recall,
        "f_score": 2 * precision * recall / (precision + recall),
    }


def test_real_digits_score_above_collapsed_ones(network: FeatureNetwork) -> None:
    """Above one good picture of each class, again and again: inception scores, even calibrated, had it otherwise."""
    unseen = digits_set(32, split_digits(SPLIT_SEED)[1])
    order = np.random.default_rng(0).permutation(len(unseen))
    half, other = order[:449], order[449:898]
    one_each = np.array([half[unseen.labels[half] == digit][0] for digit in range(10)]).repeat(45)[:449]

    def features(at: NDArray[np.int64], noise: float = 0.0) -> NDArray[np.float32]:
        pictures = torch.from_numpy(unseen.pictures[at]).float()
        pictures += noise * torch.randn(pictures.shape, generator=torch.Generator().manual_seed(1))
        return network(pictures.clamp(0, 255).round().to(torch.uint8)).pooled.numpy()

    real = features(other)
    varied, collapsed = scores(features(half), real), scores(features(one_each, noise=4.0), real)
    assert all(varied[name] > collapsed[name] for name in varied), (varied, collapsed)
    assert collapsed["recall"] < 0.5
    assert varied["recall"] > 0.8


def test_no_class_probabilities_are_made_of_its_scores(network: FeatureNetwork) -> None:
    features = network(torch.zeros(3, 3, 32, 32, dtype=torch.uint8))
    assert features.pooled.shape == (3, 10)
    assert features.logits is None
