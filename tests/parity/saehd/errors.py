"""How far a run is from a recorded one. The recordings hold losses, and fingerprints of gradients and movements."""

from collections.abc import Mapping

import numpy as np

from parity.saehd.golden import Recording
from parity.saehd.runs import Run
from parity.saehd.weights import Array


def fingerprint(value: Array) -> Array:
    """Of a tensor laid out as in the files: sum, L2 norm, largest |v|, Σ v_i·cos(0.37·i)."""
    v = value.astype(np.float64).ravel()
    return np.array([v.sum(), np.linalg.norm(v), abs(v).max(), v @ _cosines(v.size)])


def _cosines(count: int) -> Array:
    cosines: Array = np.cos(0.37 * np.arange(count))
    return cosines


def _lengths(count: int) -> Array:
    """What a fingerprint is divided by to be comparable: the sums are projections on directions of these lengths."""
    return np.array([np.sqrt(count), 1.0, 1.0, np.linalg.norm(_cosines(count))])


def loss_error(recording: Recording, ours: Run, steps: int | None = None) -> float:
    """Largest relative error of any sample's loss in the first steps."""
    return max(
        float(abs(losses[:steps] / recording.trace[name][: len(losses)][:steps] - 1).max())
        for name, losses in ours.losses.items()
    )


def gradient_error(recorded: Mapping[str, Array], ours: Mapping[str, Array]) -> float:
    """Largest relative error of any of four numbers of any tensor; of a sum relative to the norm."""
    assert recorded.keys() == ours.keys()
    worst = 0.0
    for key, reference in recorded.items():
        scale = np.array([reference[1], reference[1], reference[2], reference[1]])
        difference = (fingerprint(ours[key]) - reference) / _lengths(ours[key].size)
        worst = max(worst, float(abs(difference / scale).max()))
    return worst


def joint_error(recorded: Mapping[str, Array], ours: Mapping[str, Array]) -> float:
    """Relative error of all tensors together (movements, statistics), as their norms and projections show it."""
    projected = np.concatenate([_projected(fingerprint(ours[key]), ours[key].size) for key in recorded])
    reference = np.concatenate([_projected(values, ours[key].size) for key, values in recorded.items()])
    return float(np.linalg.norm(projected - reference) / np.linalg.norm(reference))


def weight_error(recorded: Mapping[str, Array], ours: Mapping[str, Array]) -> float:
    """What 99 % of the weights differ by at the most."""
    assert recorded.keys() == ours.keys()
    return float(np.quantile(np.concatenate([abs(ours[key] - value).ravel() for key, value in recorded.items()]), 0.99))


def _projected(values: Array, count: int) -> Array:
    """Norm and projections; without the largest value, which is no part of a sum."""
    return np.delete(values / _lengths(count), 2)
