"""Scores of a training while it goes on."""

import copy
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from frugan.accelerator.device import ran_out_of_memory, release_memory
from frugan.data.formats.picture_set import PictureSet
from frugan.engine.durations import EvaluationSettings
from frugan.engine.plan import Plan
from frugan.engine.state.state import TrainingState
from frugan.errors import BadInput, TrainingFailed
from frugan.evaluation.compared import HELD_OUT, OF_THE_RUN, TRAINED_ON, TRAINING_SET
from frugan.evaluation.feature_collector import FeatureCollector
from frugan.evaluation.judged import TwoSampleTest
from frugan.evaluation.reference import WITHOUT_FEATURES, missing_weights, network_for
from frugan.evaluation.score_cost import score_cost
from frugan.evaluation.scorer import Evaluation, EvaluationOptions, Scorer
from frugan.metrics.feature_network import FeatureNetwork, Features
from frugan.metrics.leave_one_out import FEWEST
from frugan.metrics.scores import low_recall
from frugan.metrics.two_sample import Judge
from frugan.recipe.recipe import Recipe
from frugan.sampling.requests import DrawRequest
from frugan.training.run import TrainRun
from frugan.wording import duration

if TYPE_CHECKING:  # one process needs no torch.distributed
    from frugan.engine.ranks.group import RankGroup

MOST_WHILE_TRAINING = 64
"""Samples in one forward beside a training, whose own micro-batch has shown that it fits; more are hardly faster."""
JUDGE_WHILE_TRAINING = Judge(networks=1, batch=16)
"""A fifth of the usual one's time: what it is for is noticed by far."""


HOST = torch.device("cpu")


@dataclass
class VisitingNetwork:
    """A feature network that is on the device only while in use: plans count on its memory being free."""

    network: FeatureNetwork
    device: torch.device
    _there: bool = False

    @property
    def name(self) -> str:
        """See `FeatureNetwork`."""
        return self.network.name

    @property
    def digest(self) -> str:
        """See `FeatureNetwork`."""
        return self.network.digest

    @property
    def resizer(self) -> str:
        """See `FeatureNetwork`."""
        return self.network.resizer

    def to(self, device: torch.device) -> None:
        """See `FeatureNetwork`."""
        self.network.to(device)
        self._there = device == self.device

    def __call__(self, pictures: Tensor) -> Features:
        """See `FeatureNetwork`."""
        if not self._there:
            self.to(self.device)
        return self.network(pictures)


@dataclass
class TrainingScores:
    """Scores the networks of a training against its own pictures: those held out, if any are."""

    run: TrainRun  # is told when scores could not be taken: no reason to end a training
    recipe: Recipe  # recipe as it is at present, with its evaluation settings
    device: torch.device  # device that trains
    _recall_told: str | None = None

    @property
    def ranks(self) -> "RankGroup | None":
        """Ranks that train and draw together; None: there is a single process."""
        return cast("RankGroup", self.run.ranks) if self.run.ranks.size > 1 else None

    @cached_property
    def network(self) -> VisitingNetwork:
        """The feature network.

        Raises:
            BadInput: it is not there.
        """
        settings = self.recipe.evaluation
        network = network_for(settings.metrics, settings.network, None, HOST, self.run.choose)
        return VisitingNetwork(network, self.device)

    @cached_property
    def scorer(self) -> Scorer:
        """Scorer with its feature network loaded.

        Raises:
            BadInput: the network is not there.
        """
        settings = self.recipe.evaluation
        pictures, where, split = real_pictures(self.run)
        options = EvaluationOptions(
            metrics=settings.metrics,
            samples=settings.samples,
            samples_asked="evaluation.samples" in self.run.named,
            split=split,
            judge=JUDGE_WHILE_TRAINING,
        )
        say, ranks = self.run.choose, self.ranks
        return Scorer(self.recipe, self.network, pictures, options, where, say, ranks=ranks)

    def check(self) -> None:
        """Refuse a training that cannot be scored, before the first step.

        Raises:
            BadInput: the network is not there, or a metric cannot use it.
        """
        with self._network_kept_on_host():
            _ = self.scorer.metrics
        release_memory(self.device)

    @contextmanager
    def _network_kept_on_host(self) -> Iterator[None]:
        """Move the feature network to the host at the end, even if the device had no memory for all of it."""
        try:
            yield
        finally:
            if "network" in vars(self):  # it was loaded
                self.network.to(HOST)

    def take(self, state: TrainingState, plan: Plan) -> tuple[Mapping[str, float], Mapping[str, Any]] | None:
        """Score the averaged networks, and return scores and card; None if that failed and on other ranks."""
        if not self.run.is_first:
            self._draw_part(state, plan)
            return None
        try:
            with self._network_kept_on_host():
                scored = self._take(state, plan)
        except TrainingFailed:  # a rank is lost
            raise
        except (BadInput, ValueError, OSError) as error:
            self.run.warn(state.step, f"no scores: {error}")
            return None
        except RuntimeError as error:  # memory ran out, or a decomposition did not converge
            kind = "memory ran out" if ran_out_of_memory(error) else type(error).__name__
            self.run.warn(state.step, f"no scores, {kind}: {error}")
            return None
        assert scored is not None  # this is the first rank
        line = low_recall(scored.scores, scored.provenance)
        if line is not None and self._recall_told is None:
            self.run.warn(state.step, line)
            self._recall_told = line
        elif line is None and self._recall_told is not None:
            self.run.warning_over(state.step, self._recall_told)
            self._recall_told = None
        return scored.scores, scored.provenance.as_json()

    def predict(self, state: TrainingState, plan: Plan) -> tuple[float, float] | None:
        """Seconds that each score takes, and the first one besides; None: scores fail, or several ranks share them."""
        if self.ranks is not None:
            return None
        try:
            with self._network_kept_on_host():
                cost = score_cost(self.scorer, networks_to_score(state, plan), self._draw(plan), state.device)
        except (BadInput, ValueError, OSError, RuntimeError):  # `take` says why
            return None
        return cost.usual, cost.first

    def leave_to_end(self, seconds: float, at_end: bool) -> None:
        """Say that scores on the way take too much of the time that is kept."""
        promised = self.recipe.training.time
        evaluate = f"frugan evaluate {shlex.quote(str(self.run.folder.path))} --data PICTURES"
        left = "one is taken, at the end" if at_end else f"none is taken (afterwards: {evaluate})"
        self.run.choose(f"scores: the next would take about {duration(seconds)} of the run's {promised}: {left}")

    def _draw(self, plan: Plan) -> DrawRequest:
        settings = self.recipe.evaluation
        return DrawRequest(
            seed=self.recipe.training.seed,
            truncation=settings.truncation,
            statistics=settings.statistics,
            standing_batches=settings.standing_batches,
            standing_size=settings.standing_size,
            noise=settings.noise,
            micro_batch=min(plan.micro_batch, MOST_WHILE_TRAINING),
        )

    def _take(self, state: TrainingState, plan: Plan) -> Evaluation | None:
        averaged = bool(state.ema.networks)
        return self.scorer.score(
            lambda: networks_to_score(state, plan),
            self._draw(plan),
            state.device,
            str(self.run.folder.path),
            state.step,
            ema=averaged,
        )

    def _draw_part(self, state: TrainingState, plan: Plan) -> None:
        """Generate the samples that the first rank requests, in micro-batches that fit this rank."""

        def tools() -> tuple[Mapping[str, nn.Module], FeatureNetwork]:
            return networks_to_score(state, plan), self.network

        with self._network_kept_on_host():
            FeatureCollector(self.recipe, tools, state.device, ranks=self.ranks, most=plan.micro_batch).help()


def real_pictures(run: TrainRun) -> tuple[PictureSet, str, str]:
    """Return the pictures that a training is scored against, their place, and which of those there they are."""
    (pictures,) = run.sources.values()
    assert isinstance(pictures, PictureSet)
    if pictures.held_out is None:
        return pictures, TRAINING_SET, TRAINED_ON
    folder = run.recipe.data.holdout
    return pictures.held_out, folder if isinstance(folder, str) else OF_THE_RUN, HELD_OUT


def possible(run: TrainRun, settings: EvaluationSettings) -> tuple[EvaluationSettings | None, str | None]:
    """The scores that can be taken, and what to say of the others; None: none can, and all can.

    Recipes ask for scores by themselves, so that a training goes on without them.
    """
    few = None
    if "two-sample" in settings.metrics:
        pictures, _, which = real_pictures(run)
        few = TwoSampleTest.lacking(len(pictures), settings.samples)
        if few is not None and which == HELD_OUT:
            few = f"{few}; hold out as many (--holdout {2 * FEWEST}), or none, and all of them are compared"
    others = settings.metrics if few is None else tuple(metric for metric in settings.metrics if metric != "two-sample")
    settings = settings.model_copy(update={"metrics": others})
    lacks = few if not others else _missing(run, settings)
    return (settings, few) if lacks is None else (None, lacks)


def _missing(run: TrainRun, settings: EvaluationSettings) -> str | None:
    """Return where a feature network's weights are missing, on any rank; a collective call."""
    missing = missing_weights(settings.network) if {*settings.metrics} - WITHOUT_FEATURES else None
    if run.ranks.size == 1:
        return missing
    ranks = cast("RankGroup", run.ranks)
    everywhere = zip(ranks.watch.names, ranks.gather(missing), strict=True)
    return next((f"{name}: {line}" for name, line in everywhere if line is not None), None)


def networks_to_score(state: TrainingState, plan: Plan) -> Mapping[str, nn.Module]:
    """Return the networks that generate samples, on the training device."""
    if not plan.ema_on_host or not state.ema.networks:
        return state.shown
    # no activations live now, so there is room for them; a processor would take hours
    return {name: copy.deepcopy(network).to(state.device) for name, network in state.shown.items()}
