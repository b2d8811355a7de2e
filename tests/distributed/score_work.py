"""What the processes do that draw and score together, and feature networks that go wrong on one of them."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from frugan.errors import BadInput, TrainingFailed
from frugan.evaluation.evaluation import truncation_curve
from frugan.evaluation.scorer import Evaluation, EvaluationOptions
from frugan.metrics.two_sample import Judge
from frugan.training.run import TrainingOptions
from frugan.training.training import train

METRICS = ("fid", "is", "kid", "pr", "intra-fid", "two-sample")
TRUNCATIONS = (0.5, 1.0)
JUDGE = Judge(networks=2, steps=12, batch=16)
OPTIONS = EvaluationOptions(METRICS, 300, "distributed.score_work:colours", device="cpu", judge=JUDGE)
"""Five blocks of pictures: two for the first of two ranks, three for the second."""


def colours(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Means of quarters, and as class scores those of channels."""
    values = pictures.float() / 255
    return torch.nn.functional.adaptive_avg_pool2d(values, 2).flatten(1), values.mean((2, 3)) * 10


def fails_on_the_first(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """As where the first rank's card is too small for features of the real pictures, before anything is drawn."""
    if os.environ.get("RANK") == "0" and len(pictures) > 2:
        raise RuntimeError("no room for features")
    return colours(pictures)


def fails_on_the_second(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """As where the second rank's card is too small."""
    if os.environ.get("RANK") == "1" and len(pictures) > 2:  # two blank ones are for the number of features
        raise RuntimeError("no room for features")
    return colours(pictures)


def kills_the_second(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """As a machine that goes away."""
    if os.environ.get("RANK") == "1" and len(pictures) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return colours(pictures)


def curve(folder: Path, options: EvaluationOptions = OPTIONS, **more: object) -> list[Evaluation]:
    """Scores of the run in a folder."""
    return truncation_curve(folder / "run", folder / "pictures", TRUNCATIONS, options, **more)  # type: ignore[arg-type]


def main(words: Sequence[str]) -> None:
    """Score together, and train with scores; or go wrong."""
    work, name = words
    folder, rank = Path(name), os.environ["RANK"]
    if work == "training":
        train(
            str(folder / "scored.toml"), folder / "pictures", folder / "scored", options=TrainingOptions(device="cpu")
        )
        return
    if work != "together":
        try:
            curve(folder, replace(OPTIONS, network=f"distributed.score_work:{work}"))
        except (BadInput, TrainingFailed) as error:
            print(f"{type(error).__name__}: {error}")
            sys.exit(1)
        return
    said: list[str] = []
    evaluations = curve(folder, say=said.append)
    values = {"found": [each.as_json() for each in evaluations], "said": said}
    (folder / f"scores-{rank}.json").write_text(json.dumps(values))
