"""Scores from features of generated and of real pictures, and which of them a feature network and counts allow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from frugan.errors import BadInput
from frugan.evaluation.feature_collector import GatheredFeatures
from frugan.evaluation.reference import Reference
from frugan.metrics.feature_network import FeatureNetwork, Features, RowStore
from frugan.metrics.scores import (
    SUBSET_SIZE,
    Moments,
    clip_distance,
    frechet_distance,
    kernel_distance,
    neighbour_scores,
)
from frugan.metrics.vision_transformers import CLIP
from frugan.progress import Say
from frugan.wording import BY_NEIGHBOURS

NEED_ROWS = frozenset(("kid", "pr", "dc", "intra-fid", "cmmd"))
"""Metrics that compare features one by one, and not their moments alone."""
NEED_COVARIANCE = frozenset(("fid", "intra-fid"))
"""Metrics that fewer pictures than features are too few for."""
LEAST_PER_CLASS = 2
"""Pictures of a class from which on it has a covariance."""


def measurable(
    wanted: tuple[str, ...], network: FeatureNetwork, side: int, say: Say, *, by_name: bool
) -> tuple[str, ...]:
    """Return the metrics that a feature network supports.

    Args:
        side: of the pictures in pixels.
        by_name: whether a person asked for them; else what cannot be measured is left out with a line.

    Raises:
        BadInput: what was asked for by name cannot be measured.
    """
    if "cmmd" in wanted and network.name != CLIP.name:
        raise BadInput(f"--metrics cmmd: is defined with CLIP's features, not {network.name}'s: --network {CLIP.name}")
    if "is" not in wanted or features_of(network, side).logits is not None:
        return wanted
    why = f"feature network {network.name} gives no class probabilities, which the inception score needs"
    if by_name:
        raise BadInput(f"{why}: leave `is` out of the metrics")
    say(f"no inception score: {why}")
    return tuple(name for name in wanted if name != "is")


def too_few(metrics: Sequence[str], counts: Mapping[str, int | None], dimensions: int) -> Iterator[str]:
    """A line for each kind of pictures of which there are too few for a covariance that a metric needs.

    Args:
        counts: None: nobody knows how many.
    """
    for what, count in counts.items() if NEED_COVARIANCE & {*metrics} else ():
        if count is not None and count <= dimensions:
            yield (
                f"{count:,} {what} pictures for {dimensions} feature dimensions: their covariance is singular and "
                "distances are far too high; nothing is shrunk to hide it. Compare only scores of the same counts"
            )


def measured(
    metrics: Sequence[str],
    drawn: GatheredFeatures,
    store: RowStore,
    reference: Reference,
    class_names: Sequence[str],
    warnings: list[str],
) -> tuple[dict[str, float], dict[str, float]]:
    """Scores by name, and the Fréchet distance within each class if that is among the metrics.

    Args:
        drawn, store: of the pictures that are scored.
        reference: of those that they are compared with.
        class_names: of these.
        warnings: is added to.

    Raises:
        BadInput: too few pictures.
    """
    scores: dict[str, float] = {}
    by_class: dict[str, float] = {}
    rows = store.rows() if NEED_ROWS & {*metrics} else np.empty((0, 0), np.float32)
    for metric in metrics:
        if metric == "fid":
            scores["fid"] = frechet_distance(drawn.moments, reference.moments)
        elif metric == "is" and drawn.inception is not None:
            scores["is_mean"], scores["is_std"] = drawn.inception.finish()
        elif metric == "kid":
            size = min(SUBSET_SIZE, len(rows), len(reference.rows))
            if size < SUBSET_SIZE:
                warnings.append(f"kid: subsets of {size} instead of {SUBSET_SIZE}: there are no more pictures")
            scores["kid_mean"], scores["kid_std"] = kernel_distance(rows, reference.rows, subset_size=size)
        elif metric in BY_NEIGHBOURS:
            radii = reference.radii if metric == "pr" else None
            scores |= neighbour_scores(metric, rows, reference.rows, real_radii=radii)
        elif metric == "intra-fid":
            by_class = _by_class(rows, drawn.labels, reference, class_names, warnings)
            scores["intra_fid"] = float(np.mean(list(by_class.values())))
        elif metric == "cmmd":
            scores["cmmd"] = clip_distance(rows, reference.rows)
    return scores, by_class


def _by_class(
    rows: "np.ndarray[Any, Any]",
    labels: "np.ndarray[Any, Any]",
    reference: Reference,
    class_names: Sequence[str],
    warnings: list[str],
) -> dict[str, float]:
    """Fréchet distance within each class that has pictures enough on both sides."""
    distances: dict[str, float] = {}
    least = len(rows)
    for number, name in enumerate(class_names):
        ours, real = rows[labels == number], reference.rows[reference.labels == number]
        if min(len(ours), len(real)) >= LEAST_PER_CLASS:
            both = (Moments.of(torch.from_numpy(np.array(class_rows))) for class_rows in (ours, real))
            distances[name] = frechet_distance(*both)
            least = min(least, len(ours), len(real))
    if not distances:
        raise BadInput("intra-fid: no class has two pictures on both sides; ask for more --samples")
    if left_out := len(class_names) - len(distances):
        warnings.append(f"intra-fid: too few pictures of {left_out} of the classes, which the mean leaves out")
    if least <= rows.shape[1]:
        warnings.append(
            f"intra-fid: down to {least} pictures in a class for {rows.shape[1]} feature dimensions: those "
            "distances are far too high; compare only scores of the same counts"
        )
    return distances


def features_of(network: FeatureNetwork, side: int) -> Features:
    """Return the features of two blank pictures, which show how many there are and whether classes are known."""
    return network(torch.zeros(2, 3, side, side, dtype=torch.uint8))
