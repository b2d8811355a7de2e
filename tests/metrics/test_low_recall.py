"""A recall far below precision is said in words, and nothing else is."""

from typing import Any

import pytest

from frugan.metrics.scores import Provenance, low_recall


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
    assert line.startswith("recall 0.12 is far below precision 0.87: the pictures are good but show little")
    assert "docs/training-well.md" in line
    assert "runcation" not in line
    assert "Truncation 0.5 narrows variety by itself" in (
        low_recall({"precision": 0.87, "recall": 0.12}, provenance(truncation=0.5)) or ""
    )


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
