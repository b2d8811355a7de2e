"""A recall far below precision is said in words, and nothing else is."""

from typing import Any

import pytest
import torch

from frugan.data.digits import as_tensors, digits_set
from frugan.metrics.feature_network import PixelFeatures
from frugan.metrics.scores import Provenance, low_recall, precision_recall


def provenance(**changed: Any) -> Provenance:
    values: dict[str, Any] = {
        "network": "n",
        "network_digest": "d",
        "resizer": "r",
        "samples": 2000,
        "data": "pictures",
        "data_digest": "d",
        "real": 899,
        "rows": 899,
        "classes": "all",
        "split": "all",
        "seed": 0,
        "ema": True,
        "truncation": 1.0,
        "statistics": "running",
        "precision": "fp32",
        "weights": "w",
        "step": 1200,
    }
    return Provenance.from_json(values | changed)


def test_the_collapse_that_was_measured_and_not_said() -> None:
    line = low_recall({"precision": 0.87, "recall": 0.12}, provenance()) or ""
    assert line.startswith("recall 0.12 is far below precision 0.87: the pictures show little of")
    assert "docs/training-well.md" in line
    assert "runcation" not in line
    assert "Truncation 0.5 narrows variety by itself" in (
        low_recall({"precision": 0.87, "recall": 0.12}, provenance(truncation=0.5)) or ""
    )


def test_pictures_that_are_told_apart_are_not_called_good() -> None:
    scores = {"precision": 0.9, "recall": 0.0}
    assert "pictures are good" in (low_recall(scores | {"two_sample": 0.6}, provenance()) or "")
    line = low_recall(scores | {"two_sample": 0.98}, provenance()) or ""
    assert "good" not in line
    assert "98 times in 100" in line


@pytest.mark.parametrize(
    ("precision", "recall"),
    [(0.9, 0.9), (0.9, 0.5), (0.1, 0.9), (0.15, 0.0), (0.0, 0.0), ("nan", 0.1), (0.9, "nan"), (None, None)],
)
def test_other_scores_say_nothing(precision: Any, recall: Any) -> None:
    scores = {name: value for name, value in (("precision", precision), ("recall", recall)) if value is not None}
    assert low_recall(scores, provenance()) is None


@pytest.mark.parametrize("changed", [{"samples": 60}, {"rows": 60}, {"classes": "0,3"}])
def test_too_few_pictures_or_some_classes_say_nothing(changed: dict[str, Any]) -> None:
    assert low_recall({"precision": 0.87, "recall": 0.12}, provenance(**changed)) is None


def test_pixels_tell_a_few_pictures_drawn_over_and_over_from_many() -> None:
    """A few digits, each a little changed: a judge of single pictures finds nothing wrong with them."""
    pictures, _ = as_tensors(digits_set(32))
    real, other = (((part + 1) * 127.5).to(torch.uint8) for part in (pictures[::2], pictures[1::2]))
    noise = torch.randn(len(other), 3, 32, 32, generator=torch.Generator().manual_seed(0))
    few = (other[:20].repeat(45, 1, 1, 1)[: len(other)] + 8 * noise).clamp(0, 255).to(torch.uint8)
    look = PixelFeatures()
    scores = {}
    for name, made in {"few": few, "many": other}.items():
        found = precision_recall(look(made).pooled.numpy(), look(real).pooled.numpy())
        scores[name] = dict(zip(("precision", "recall"), found, strict=True))
    assert low_recall(scores["many"], provenance()) is None
    assert (low_recall(scores["few"], provenance()) or "").startswith("recall 0.0")


def test_pixels_are_grey_and_sixteen_a_side() -> None:
    picture = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    picture[:, 0] = 255  # red: a third of white
    assert PixelFeatures()(picture).pooled.unique().tolist() == [pytest.approx(-1 / 3)]
    assert PixelFeatures()(torch.zeros(2, 1, 64, 64, dtype=torch.uint8)).pooled.shape == (2, 256)
