"""Predicts the seconds of a score from timed small pieces of it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from frugan.data.formats.picture_set import PictureSet
from frugan.evaluation.feature_collector import FeatureCollector, FeatureTask
from frugan.evaluation.judged import TwoSampleTest
from frugan.evaluation.reference import FEATURES_AT_ONCE, WITHOUT_FEATURES, is_kept
from frugan.evaluation.scorer import Scorer
from frugan.files import Folders
from frugan.metrics.control import DAMAGES
from frugan.metrics.feature_network import FeatureNetwork, temporary_rows
from frugan.sampling.requests import DrawRequest

FEW_PICTURES = 8
"""Pictures drawn for a timing, and twice as many for what each one more takes."""
FEW_STEPS = 8
"""Steps of a judge for a timing, and twice as many for what each one more takes."""


@dataclass(frozen=True)
class ScoreCost:
    """Seconds that scores of one training are predicted to take."""

    usual: float
    first: float  # that the first one takes besides, for what is kept: features of real pictures, and controls


def score_cost(scorer: Scorer, networks: Mapping[str, nn.Module], draw: DrawRequest, device: torch.device) -> ScoreCost:
    """Time small pieces of a score, in this process alone.

    What grows with neither pictures nor judges is left out; it is little.

    Raises:
        BadInput: as `Scorer.score`.
    """
    metrics, pictures, samples = scorer.metrics, scorer.pictures, scorer.drawn_samples
    test = scorer.test if "two-sample" in metrics else None
    has_features = bool({*metrics} - WITHOUT_FEATURES)
    usual, first = 0.0, 0.0

    collector = FeatureCollector(scorer.recipe, lambda: (networks, scorer.network), device)

    def drawn(count: int) -> None:
        collector.draw(FeatureTask(draw, count, 0, False, False, pictures=True), temporary)

    with temporary_rows(0, 0) as temporary:
        for count in (samples if has_features else 0, 0 if test is None else test.count):
            usual += _extrapolated(drawn, FEW_PICTURES, count) if count else 0.0
    if has_features and pictures is not None:
        of_features = _seconds(lambda: _look(scorer.network, pictures)) / FEATURES_AT_ONCE
        usual += of_features * samples
        if not is_kept(pictures, scorer.network, Folders.from_environment().moments):
            first += of_features * len(pictures)
    if test is not None:
        judged = _judge_seconds(test)
        damages = 0 if test.has_kept_control else sum(len(damage.strengths) for damage in DAMAGES.values())
        usual, first = usual + judged, first + (1 + damages) * judged
    return ScoreCost(usual, first)


def _judge_seconds(test: TwoSampleTest) -> float:
    """Seconds of one judgement."""
    if test.by_fixed_features:
        return _seconds(lambda: test.real)  # the first score needs it anyway
    judge = test.judge
    return judge.networks * _extrapolated(
        lambda steps: replace(test, judge=replace(judge, networks=1, steps=steps)).real, FEW_STEPS, judge.steps
    )


def _look(network: FeatureNetwork, pictures: PictureSet) -> None:
    """Look at as many real pictures as at once, and wait for what is seen."""
    some = pictures[np.arange(FEATURES_AT_ONCE) % len(pictures)]
    network(torch.from_numpy(np.ascontiguousarray(some))).pooled.cpu()


def _extrapolated(work: Callable[[int], object], few: int, many: int) -> float:
    """Seconds that much work will take, by little of it and twice as much."""
    work(1)  # what is loaded or compiled once
    once, twice = _seconds(partial(work, few)), _seconds(partial(work, 2 * few))
    per_piece = max(0.0, twice - once) / few
    return once + per_piece * max(0, many - few)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
