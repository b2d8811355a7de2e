"""The demo of faces, up to its training."""

import json
from pathlib import Path
from typing import Any

import pytest

from frugan.training import demo_faces
from frugan.training.run import TrainingResult

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_it_says_how_long_it_takes_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    def train(*_: Any, **__: Any) -> TrainingResult:
        said.append("training")
        return TrainingResult(tmp_path, 3, False, 1.0, 1, 0)

    monkeypatch.setattr(demo_faces, "train", train)
    demo_faces.demo_faces(tmp_path / "demo", say=said.append, show=lambda _: None)
    time, training = said[-2:]
    assert training == "training"
    assert time.startswith("time: 900 steps take 1 to 7 minutes on two idle cores, ")


def test_the_minutes_are_those_that_were_measured() -> None:
    files = sorted(RESULTS.glob("demo-faces-*.json"))
    minutes = [json.loads(file.read_text("utf-8"))["numbers"]["seconds"] / 60 for file in files]
    assert (round(min(minutes)), round(max(minutes))) == demo_faces.MINUTES
