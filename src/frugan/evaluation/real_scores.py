"""Scores of real pictures, a part of them against others: what a perfect generator would have, and no less."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch

from frugan.accelerator.device import disable_reduced_precision
from frugan.contract.settings import DataSettings
from frugan.data.batches import random_order
from frugan.data.formats.picture_set import PictureSet
from frugan.data.formats.source import local_path
from frugan.data.survey import Fit
from frugan.engine.ranks.place import Place
from frugan.errors import BadInput, checked
from frugan.evaluation.class_shares import have_other_shares
from frugan.evaluation.compared import HELD_OUT, Compared, are_unseen_digits, compared_with, described, unseen_digits
from frugan.evaluation.feature_collector import GatheredFeatures
from frugan.evaluation.feature_scores import NEED_ROWS, features_of, measurable, measured, too_few
from frugan.evaluation.judged import ControlledTests, PixelTest, TwoSampleTest
from frugan.evaluation.reference import (
    FEATURES_AT_ONCE,
    MOST_ROWS,
    WITHOUT_FEATURES,
    Reference,
    network_for,
)
from frugan.evaluation.reference_file import pictures_at
from frugan.evaluation.scorer import UNSEEN_BY_THE_DEMO, WITHOUT_REAL, Evaluation, EvaluationOptions, check_metrics
from frugan.metrics.feature_network import FeatureNetwork, Features, RowStore, temporary_rows
from frugan.metrics.provenance import NONE, REAL, Provenance
from frugan.metrics.scores import Moments, StreamingInceptionScore, StreamingMoments
from frugan.progress import USUAL_METRICS, Progress, Say, quiet
from frugan.setup.devices import use_device
from frugan.setup.networks import Weights
from frugan.wording import count, neighbours_in_words

LEAST_REAL = 20
"""Pictures in all: ten on each side, as of generated ones."""
HALVES_HELD_OUT = "halves of those held out"
"""Split of real pictures of which a training saw none."""
DIGITS_SIDE = 32
"""Side in pixels of the bundled digits where neither a run nor the caller sets one."""


@checked
def evaluate_real(
    data: str | Path | PictureSet,
    options: EvaluationOptions | None = None,
    *,
    of: str | Path | Weights | None = None,
    resolution: int | None = None,
    fit: Fit = "crop",
    say: Say = print,
    progress: Progress | None = None,
    stage: Say = quiet,
) -> Evaluation:
    """Score a part of real pictures against others: the floor that scores of generated pictures are read against.

    The first part takes the place of the generated pictures: a half, but at most the options' `samples`, as distances
    depend on counts. Where they are those of a run that held some out, pictures that it was trained on are scored
    against these, as generated ones are, if both have their classes in the same shares. The inception score is that of
    all of them.

    Args:
        data: the pictures: anything that `train` takes, or an opened set.
        options: how; of those about weights and draws nothing is read.
        of: run, checkpoint or weights file whose pictures they are compared with: they are brought to its resolution
            and channels. None: no run's.
        resolution: side to which they are brought where there is no run; None: they are a prepared set, and have one.
        fit: "crop" or "pad": what becomes of pictures that are not square, where there is no run.
        say: is given a line for every automatic choice.
        progress: (pictures done, of how many); of a judge, its steps.
        stage: is told what these are from now on.

    Raises:
        BadInput: no such pictures, too few, no feature network, or a request that makes no sense.
    """
    if not Place.here().alone:
        raise BadInput("--real: runs in one process; start it without torchrun")
    options = options or EvaluationOptions()
    check_metrics(options)
    if of_generators := [name for name in options.metrics or () if name in WITHOUT_REAL]:
        raise BadInput(
            f"--metrics {','.join(of_generators)}: is about what a generator does, of which real pictures have none; "
            "leave it out"
        )
    weights = None if of is None else _compared_with(of, resolution, fit, say)
    device, why = use_device(options.device)
    say(f"device: {device} ({why})")
    network = network_for(options.metrics, options.network, options.network_file, device, say)
    disable_reduced_precision()
    stage("reading real pictures")
    if weights is not None:
        compared = compared_with(weights, data, options, network, say, progress)
    else:
        compared = Compared(_opened(data, resolution, fit, say, progress))
    parts = _Parts.of(compared, options.samples, described(data), say)
    wanted = USUAL_METRICS if options.metrics is None else options.metrics
    metrics = measurable(wanted, network, parts.against.resolution, say, by_name=options.metrics is not None)

    tests = parts.tests(metrics, network.name, options, stage, progress)
    judge = tests.judge  # too few pictures are refused before any features are taken
    scores: dict[str, float] = {}
    by_class: dict[str, float] = {}
    warnings: list[str] = [] if compared.doubt is None else [compared.doubt]
    rows = 0
    others = tuple(metric for metric in metrics if metric not in tests.by_pixels)
    if {*others} - WITHOUT_FEATURES:
        stage("features of real pictures")
        scores, by_class, found, rows = _part_against_others(network, parts, others, progress)
        warnings += found
    if tests.by_pixels:
        stage(f"{neighbours_in_words(tests.by_pixels)} of real pictures, and their control")
    for test in (tests.pixels, tests.two_sample):
        if test is not None and test.blind is None:
            scores |= test.of_others(parts.scored) if parts.held_out else test.of_real
    warnings += dict.fromkeys(tests.blind.values())  # a line may be about several
    for line in warnings:
        if line != compared.doubt:  # which was told when they were opened
            say(f"warning: {line}")
    split = UNSEEN_BY_THE_DEMO if are_unseen_digits(data) else parts.split
    provenance = Provenance(
        network=network.name,
        network_digest=network.digest,
        resizer=network.resizer,
        samples=len(parts.scored),
        data=described(data),
        data_digest=parts.given.digest,
        real=len(parts.against),
        rows=rows,
        classes="all",
        split=split if options.split == "all" else options.split,
        seed=0,
        ema=False,
        truncation=1.0,
        statistics=NONE,
        precision=NONE,
        weights=NONE if weights is None else str(weights.path),
        step=0,
        judge=judge,
        neighbours=tests.neighbours,
        control=tests.control,
        blind=",".join(tests.blind) or NONE,
        scored=REAL,
    )
    return Evaluation(scores, provenance, by_class, tuple(warnings))


def _compared_with(of: str | Path | Weights, resolution: int | None, fit: Fit, say: Say) -> Weights:
    """Open the run whose pictures the real ones are compared with.

    Raises:
        BadInput: it cannot be opened; or a resolution or a fit is given, which the run has.
    """
    weights = Weights.open(of, say)
    if resolution is not None:
        raise BadInput(f"--resolution {resolution}: the run has one; leave one of the two out")
    if fit != "crop":
        raise BadInput(f"--fit {fit}: pictures are fitted as the run's were; leave one of the two out")
    return weights


@dataclass(frozen=True)
class _Parts:
    """Real pictures, of which some take the place of generated ones."""

    scored: PictureSet  # these, in a random order that they decide
    against: PictureSet  # those that they are compared with
    given: PictureSet  # the set that generated ones are compared with
    # HELD_OUT: the training saw the former and none of the latter; HALVES_HELD_OUT: it saw none; "all": nobody knows
    split: str

    @property
    def held_out(self) -> bool:
        """Whether the training saw the scored ones and none of the others."""
        return self.split == HELD_OUT

    @classmethod
    def of(cls, compared: Compared, samples: int, where: str, say: Say) -> Self:
        """Divide what generated pictures are compared with, or put what was trained on beside what was held out.

        Raises:
            BadInput: too few.
        """
        given, trained_on = compared.pictures, compared.trained_on
        assert given is not None  # real pictures were named
        if trained_on is not None and have_other_shares(trained_on, given):
            say(
                f"compared: a half of the {len(given):,} pictures that were held out with the other half, and not the "
                f"{len(trained_on):,} that the run was trained on: their classes have "
                "other shares, which would count as a difference"
            )
        elif trained_on is not None:
            if min(len(given), len(trained_on)) < LEAST_REAL // 2:
                raise BadInput(
                    f"--real {where}: {count(len(trained_on), 'picture')} trained on and {len(given):,} held out; "
                    f"expected at least {LEAST_REAL // 2} of either"
                )
            order = random_order(f"real/{trained_on.digest}", len(trained_on))[:samples]
            say(
                f"compared: {count(len(order), 'picture')} that the run was trained on, in place of generated ones, "
                f"with the {len(given):,} that it held out"
            )
            return cls(trained_on.only(order), given, given, HELD_OUT)
        if len(given) < LEAST_REAL:
            raise BadInput(f"--real {where}: {len(given)} pictures; expected at least {LEAST_REAL}")
        order, first = random_order(f"real/{given.digest}", len(given)), min(len(given) // 2, samples)
        split = "all" if trained_on is None else HALVES_HELD_OUT
        return cls(given.only(order[:first]), given.only(order[first:]), given, split)

    def tests(
        self,
        metrics: Sequence[str],
        network: str,
        options: EvaluationOptions,
        stage: Say,
        progress: Progress | None,
    ) -> ControlledTests:
        """The tests among the metrics whose scores need a control, with no more pictures than are scored.

        Args:
            network: name of the feature network.
        """
        most = min(options.samples, len(self.scored)) if self.held_out else options.samples
        by_pixels = PixelTest.among(metrics, network)
        judged = TwoSampleTest(self.given, most, options.judge, stage, progress)
        return ControlledTests(
            pictures=len(self.given),
            two_sample=judged if "two-sample" in metrics else None,
            by_pixels=by_pixels,
            pixels=PixelTest.of(self.given, most, by_pixels) if by_pixels else None,
        )


def _part_against_others(
    network: FeatureNetwork, compared: _Parts, metrics: Sequence[str], progress: Progress | None
) -> tuple[dict[str, float], dict[str, float], list[str], int]:
    """Score the first part as if it had been generated.

    Returns:
        Scores, those of classes, warnings, and the real pictures whose features metrics by rows were compared with.
    """
    first, all_of_them = len(compared.scored), len(compared.scored) + len(compared.against)
    blank = features_of(network, compared.given.resolution)
    dimensions = blank.pooled.shape[1]
    inception = None
    if "is" in metrics and blank.logits is not None:
        inception = StreamingInceptionScore(all_of_them, blank.logits.shape[1])
    keeps_rows = bool(NEED_ROWS & {*metrics})
    with ExitStack() as opened:
        parts: list[tuple[Moments, RowStore]] = []
        for pictures, before in ((compared.scored, 0), (compared.against, first)):
            store = opened.enter_context(temporary_rows(min(len(pictures), MOST_ROWS) if keeps_rows else 0, dimensions))
            moments = StreamingMoments(dimensions)
            for done, features in _features(network, pictures):
                moments.update(features.pooled)
                store.append(features.pooled)
                if inception is not None and features.logits is not None:
                    inception.update(features.logits)
                if progress is not None:
                    progress(before + done, all_of_them)
            parts.append((moments.finish(), store))

        (part, rows), (others, other_rows) = parts
        scored = GatheredFeatures(part, inception, compared.scored.labels[:MOST_ROWS], 0, 0, 0)
        against = other_rows.rows() if keeps_rows else np.empty((0, dimensions), np.float32)
        reference = Reference(others, against, compared.against.labels[: len(against)])
        warnings = list(too_few(metrics, {"real": first}, dimensions))
        scores, by_class = measured(metrics, scored, rows, reference, compared.given.class_names, warnings)
    return scores, by_class, warnings, len(against)


def _features(network: FeatureNetwork, pictures: PictureSet) -> Iterator[tuple[int, Features]]:
    """Features of pictures as they come, each time with how many are done."""
    for start in range(0, len(pictures), FEATURES_AT_ONCE):
        indices = np.arange(start, min(start + FEATURES_AT_ONCE, len(pictures)))
        yield int(indices[-1]) + 1, network(torch.from_numpy(np.ascontiguousarray(pictures[indices])))


def _opened(
    data: str | Path | PictureSet, resolution: int | None, fit: Fit, say: Say, progress: Progress | None
) -> PictureSet:
    if isinstance(data, PictureSet):
        return data
    if are_unseen_digits(data):
        return unseen_digits(resolution or DIGITS_SIDE, say)
    return pictures_at(local_path(data), resolution, DataSettings(fit=fit), say, progress)
