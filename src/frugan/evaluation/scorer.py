"""Scores the pictures of a generator against real ones, and says what they were measured with."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from frugan.accelerator.precision import resolve_precision
from frugan.data.digits import are_digits
from frugan.data.formats.picture_set import PictureSet
from frugan.errors import BadInput, checked
from frugan.evaluation.class_shares import class_counts, with_shares
from frugan.evaluation.equivariance import BY_MOVING, equivariance, refuse_unmovable
from frugan.evaluation.feature_collector import FeatureCollector, FeatureTask, GatheredFeatures
from frugan.evaluation.feature_scores import NEED_ROWS, measurable, measured, too_few
from frugan.evaluation.judged import MOST_FOR_PIXELS, ControlledTests, PixelTest, TwoSampleTest
from frugan.evaluation.path_length import path_length
from frugan.evaluation.reference import FEATURES_AT_ONCE, WITHOUT_FEATURES, Reference, reference_of
from frugan.files import Folders
from frugan.metrics.feature_network import FeatureNetwork, RowStore, temporary_rows
from frugan.metrics.moments_file import FileMoments
from frugan.metrics.provenance import ALIKE, AS_REAL, MOST_WITHOUT_REAL, NONE, Provenance
from frugan.metrics.scores import (
    DENSE_NEIGHBOURS,
    NEIGHBOURS,
    Moments,
    StreamingMoments,
    half_width,
)
from frugan.metrics.two_sample import MOST_PICTURES, Judge
from frugan.progress import METRIC_OF, METRICS, USUAL_METRICS, Say, quiet
from frugan.recipe.recipe import Recipe
from frugan.sampling.requests import DrawRequest, check_draw
from frugan.wording import nearest, neighbours_in_words

if TYPE_CHECKING:  # one process needs no torch.distributed
    from frugan.engine.ranks.group import RankGroup

WITHOUT_REAL = frozenset(("ppl", *BY_MOVING))
"""Metrics that nothing real is needed for."""
WITHOUT_PICTURES = frozenset(("fid", "is")) | WITHOUT_REAL
"""Metrics that moments of real pictures are enough for."""
LEAST_PICTURES = MappingProxyType({"fid": 2, "kid": 2, "cmmd": 2, "pr": NEIGHBOURS + 1, "dc": DENSE_NEIGHBOURS + 1})
"""Pictures that each metric needs: a covariance, a mean over pairs, and the neighbours of each picture need several."""
UNSEEN_BY_THE_DEMO = "unseen by the demo"
"""Split of the digits that the demo's own network was not fitted to."""
SAMPLES = 50_000
"""Generated pictures of published scores."""


@checked
@dataclass(frozen=True)
class EvaluationOptions:
    """Options of `evaluate`."""

    # some of `METRICS`; None: `USUAL_METRICS`, without the inception score where the feature network has no class
    # probabilities
    metrics: tuple[str, ...] | None = None
    samples: int = SAMPLES  # pictures to generate
    network: str = "inception"  # feature network, as --network names it
    network_file: Path | None = None  # file of the weights of the feature network
    # pictures to draw, and the statistics of batch normalisation
    draw: DrawRequest = field(default_factory=DrawRequest)
    ema: bool = True  # score the averaged networks; False: the trained ones
    split: str = "all"  # split of the real pictures, for the provenance
    device: str = "auto"  # "auto", "cpu", or a kind of card: "cuda", "cuda:1"
    # file of moments that the Fréchet distance is measured to; None: those of the real pictures
    reference: Path | None = None
    judge: Judge = field(default_factory=Judge)  # settings of two-sample
    # whether somebody asked for so many samples, and is told where fewer are judged; None: unless it is the default
    samples_asked: bool | None = None


def check_options(options: EvaluationOptions, draws: Sequence[DrawRequest], recipe: Recipe) -> None:
    """Refuse what makes no sense, before anything is opened.

    Raises:
        BadInput: an unknown metric or none, too few samples, moments that nothing is compared with, or a request that
            does not go with the recipe.
    """
    check_metrics(options)
    if options.reference is not None and options.metrics is not None and not {*options.metrics} - WITHOUT_FEATURES:
        raise BadInput(
            f"--reference {options.reference}: holds moments, which {','.join(options.metrics)} does not compare with; "
            "leave it out, or add fid to --metrics"
        )
    for draw in draws:
        check_draw(draw, recipe)


def check_metrics(options: EvaluationOptions) -> None:
    """Refuse metrics and counts that make no sense.

    Raises:
        BadInput: an unknown metric or none, or too few samples.
    """
    for name in options.metrics or ():
        if name not in METRICS:
            hint = nearest(name.lower(), {**{metric: metric for metric in METRICS}, **METRIC_OF})
            raise BadInput(f"metrics: expected some of {','.join(METRICS)}, not {name}{hint}")
    if options.metrics is not None and not options.metrics:
        raise BadInput(f"metrics: expected some of {','.join(METRICS)}, not none")
    if options.samples < 10:
        raise BadInput(f"--samples {options.samples}: expected at least 10; published scores use 50000")


@dataclass(frozen=True)
class Evaluation:
    """Scores of one generator, with their provenance."""

    # "fid", "is_mean", "is_std", "kid_mean", "kid_std", "precision", "recall", "f_score", "density", "coverage",
    # "intra_fid", "cmmd", "ppl", "eqt", "eqt_frac", "eqr", "two_sample", density and the last five with
    # "…_half_width"; and
    # "two_sample_real", and by pixels "precision_real", "recall_real", "density_real", "coverage_real", of one half of
    # the real pictures against the other
    scores: Mapping[str, float]
    provenance: Provenance  # how they were measured
    # class name -> Fréchet distance within it; empty if not asked for
    by_class: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # reasons to doubt the scores

    def half_width(self, name: str) -> float | None:
        """Return half of a 95 % interval of a score; None: none is known."""
        return half_width(name, self.scores, self.provenance.as_json())

    def as_json(self) -> dict[str, Any]:
        """Return the evaluation as JSON values, for programs."""
        return {
            "scores": dict(self.scores),
            "half_widths": {name: width for name in self.scores if (width := self.half_width(name)) is not None},
            "by_class": dict(self.by_class),
            "provenance": asdict(self.provenance),
            "warnings": list(self.warnings),
        }


@dataclass
class Scorer:
    """Scores networks of one recipe against one set of pictures, or against moments of one."""

    recipe: Recipe  # recipe of the networks
    network: FeatureNetwork
    pictures: PictureSet | None  # real pictures; None: there are moments alone
    options: EvaluationOptions
    where: str  # place of the real pictures, for the provenance
    say: Say  # see `evaluate`
    progress: Callable[[int, int], None] | None = None  # see `evaluate`
    file_moments: FileMoments | None = None  # moments from a file, for the Fréchet distance
    # ranks that draw a part of the pictures each, of which the first one scores them; None: this process draws all
    ranks: "RankGroup | None" = None
    stage: Say = quiet  # see `evaluate`
    _said: set[str] = field(default_factory=set)  # warnings that were told

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Metrics to measure.

        Raises:
            BadInput: as `measurable`, or what needs real pictures is asked for where there are none.
        """
        requested = self.options.metrics
        wanted = USUAL_METRICS if requested is None else requested
        if self.pictures is None:
            without = [name for name in wanted if name not in WITHOUT_PICTURES]
            compared = "pictures are compared one by one, and --reference holds their moments alone"
            why = f"{', '.join(without)}: {compared}"
            if without and requested is not None:
                raise BadInput(f"--metrics {why}; add --data PICTURES, or leave it out")
            if without:
                self.say(f"no {why}; --data PICTURES adds it")
            wanted = tuple(name for name in wanted if name in WITHOUT_PICTURES)
        refuse_unmovable(wanted, self.recipe)
        return measurable(wanted, self.network, self.recipe.resolution, self.say, by_name=requested is not None)

    def score(
        self,
        networks: Callable[[], Mapping[str, nn.Module]],
        draw: DrawRequest,
        device: torch.device,
        weights: str,
        step: int,
        *,
        ema: bool,
    ) -> Evaluation | None:
        """Draw pictures and score them; every rank calls it.

        Args:
            networks: gives those that draw; asked once there is something to draw.
            weights, step, ema: for the provenance: where the networks come from, and whether they are averages.

        Returns:
            None on all ranks but the first.
        """
        collector = FeatureCollector(self.recipe, lambda: (networks(), self.network), device, self.progress, self.ranks)
        if self.ranks is not None and self.ranks.rank != 0:
            collector.help()
            return None
        with ExitStack() as opened:
            opened.enter_context(collector.helped())
            metrics = self.metrics  # what cannot be measured is refused before anything is drawn
            test = self.test if "two-sample" in metrics else None
            self._refuse_few(metrics)
            reference = self.reference
            warnings = self._doubts(draw, reference)
            dimensions, samples = reference.rows.shape[1], self.drawn_samples

            # Draw, all ranks together, and measure what was drawn.
            scores: dict[str, float] = {}
            by_class: dict[str, float] = {}
            drawn: GatheredFeatures | None = None
            if {*metrics} - WITHOUT_FEATURES:
                store = opened.enter_context(temporary_rows(samples, dimensions))
                request = with_shares(draw, self.pictures, self.recipe.classes)
                task = FeatureTask(request, samples, dimensions, "is" in metrics, bool({*metrics} & NEED_ROWS))
                self.stage("drawing samples")
                drawn = _sound(collector.draw(task, store), samples)
                self.stage("comparing them with real pictures")
                names = () if self.pictures is None else self.pictures.class_names
                others = [metric for metric in metrics if metric not in self._by_pixels]
                scores, by_class = measured(others, drawn, store, reference, names, warnings)
                if self._by_pixels:
                    scores |= self._neighbour_scores(store, warnings)
            if test is not None:
                judged, apart = self._told_apart(test, collector, draw)
                scores, drawn = scores | apart, drawn or judged
            if "ppl" in metrics:
                self.stage("measuring path lengths")
                paths = min(self.options.samples, MOST_WITHOUT_REAL)
                scores |= path_length(self.recipe, networks(), draw, device, paths)
                drawn = drawn or _without_features(paths)
            if {*metrics} & {*BY_MOVING}:
                moved = min(self.options.samples, MOST_WITHOUT_REAL)
                self.stage("drawing samples that are moved")
                scores |= equivariance(self.recipe, networks(), metrics, draw, moved, self.progress)
                drawn = drawn or _without_features(moved)
            assert drawn is not None  # there is at least one metric
            warnings += dict.fromkeys(self._tests.blind.values())  # a line may be about several

        # Scores without what they were measured with would mean nothing.
        provenance = self._provenance(draw, drawn, reference, device, weights, step, ema=ema)
        for line in warnings:
            if line not in self._said:
                self.say(f"warning: {line}")
        self._said.update(warnings)
        return Evaluation(scores, provenance, by_class, tuple(warnings))

    def _neighbour_scores(self, store: RowStore, warnings: list[str]) -> dict[str, float]:
        """Scores by neighbours in pixels; none where they would say nothing.

        Args:
            store: features of the samples.
            warnings: is added to.
        """
        test = self._pixel_test
        self.stage(f"{neighbours_in_words(self._by_pixels)} of real pictures, and their control")
        if test is None or {*self._by_pixels} & {*self._tests.blind}:
            return {}
        scores = test.scores(store.rows())
        if (flatters := test.flatters(scores)) is not None:
            warnings.append(flatters)
        return scores

    def _told_apart(
        self, test: TwoSampleTest, collector: FeatureCollector, draw: DrawRequest
    ) -> tuple[GatheredFeatures, dict[str, float]]:
        """Draw the samples of two-sample, and score them; no scores where its judge sees nothing."""
        shared = with_shares(draw, test.compared_with, self.recipe.classes)
        task = FeatureTask(shared, test.count, 0, False, False, pictures=True)
        self.stage("two-sample: drawing samples")
        with temporary_rows(0, 0) as rows:
            judged = _sound(collector.draw(task, rows), test.count)
        assert judged.pictures is not None  # they were asked for
        return judged, {} if test.blind is not None else test.scores(judged.pictures)

    @cached_property
    def _tests(self) -> ControlledTests:
        """The tests among the metrics that have a control."""
        return ControlledTests(
            pictures=0 if self.pictures is None else len(self.pictures),
            two_sample=self.test if "two-sample" in self.metrics else None,
            by_pixels=self._by_pixels,
            pixels=self._pixel_test,
        )

    @cached_property
    def _pixel_test(self) -> PixelTest | None:
        """The real pictures of scores by neighbours in pixels; None: these are not measured, or there are too few."""
        if not self._by_pixels or self.pictures is None:
            return None
        test = PixelTest.of(self.pictures, self.options.samples, self._by_pixels)
        if test is not None:
            scores, most = neighbours_in_words(self._by_pixels), min(self.options.samples, MOST_FOR_PIXELS)
            self._tell_of_fewer(f"{scores} by pixels", test.count, most, "compared with")
        return test

    @property
    def drawn_samples(self) -> int:
        """Samples that features are taken of: no more than are looked at, where neighbours by pixels are all."""
        if self._pixel_test is None or {*self.metrics} - WITHOUT_FEATURES - {*self._by_pixels}:
            return self.options.samples
        return self._pixel_test.count

    def _tell_of_fewer(self, scores: str, count: int, most: int, put: str) -> None:
        """Say that fewer samples are looked at than somebody asked for, as there are not as many real pictures.

        Args:
            put: "judged against" or "compared with" a half of them.
        """
        asked = self.options.samples != SAMPLES if self.options.samples_asked is None else self.options.samples_asked
        if asked and count < most:
            assert self.pictures is not None
            half = f"a half of the {len(self.pictures):,} real pictures"
            self.say(f"{scores}: {count:,} samples in place of {most:,}, as they are {put} {half}")

    @property
    def _by_pixels(self) -> tuple[str, ...]:
        """Metrics that compare neighbours by pixels, for which one control decides."""
        return () if self.pictures is None else PixelTest.among(self.metrics, self.network.name)

    @cached_property
    def test(self) -> TwoSampleTest:
        """The real pictures of two-sample.

        Raises:
            BadInput: too few.
        """
        assert self.pictures is not None  # where there are moments alone, `metrics` has refused it
        test = TwoSampleTest(self.pictures, self.options.samples, self.options.judge, self.stage, self.progress)
        most = min(self.options.samples, MOST_PICTURES)
        if test.count < most // 2 * 2:
            self._tell_of_fewer("two-sample", test.count, most, "judged against")
        return test

    def _provenance(
        self,
        draw: DrawRequest,
        drawn: GatheredFeatures,
        reference: Reference,
        device: torch.device,
        weights: str,
        step: int,
        *,
        ema: bool,
    ) -> Provenance:
        standing: str = draw.statistics
        if draw.statistics == "standing":
            standing = f"standing, {draw.standing_batches} batches of {drawn.standing_size}"
        in_fp32 = {*self.metrics} <= WITHOUT_REAL  # half precision has too few digits for them
        return Provenance(
            network=self.network.name,
            network_digest=self.network.digest,
            resizer=self.network.resizer,
            samples=len(drawn.labels),
            data=self.where,
            data_digest=NONE if self.pictures is None else self.pictures.digest,
            real=0 if self.pictures is None else len(self.pictures),
            rows=len(reference.rows),
            classes=self._classes(draw),
            split=self.options.split,
            seed=draw.seed,
            ema=ema,
            truncation=draw.truncation,
            statistics=standing,
            precision="fp32" if in_fp32 else resolve_precision(self.recipe.training.precision, device).name,
            weights=weights,
            step=step,
            reference=NONE if self.file_moments is None else str(self.file_moments.path),
            reference_digest=NONE if self.file_moments is None else self.file_moments.digest,
            psi=draw.psi,
            psi_layers=draw.psi_layers,
            noise=draw.noise,
            rounding=draw.rounding,
            judge=self._tests.judge,
            neighbours=self._tests.neighbours,
            control=self._tests.control,
            blind=",".join(self._tests.blind) or NONE,
        )

    def _classes(self, draw: DrawRequest) -> str:
        """Generated classes, for the provenance."""
        if draw.classes is not None and tuple(draw.classes) != tuple(range(self.recipe.classes)):
            return ",".join(map(str, draw.classes))
        compares = not {*self.metrics} <= WITHOUT_REAL
        return AS_REAL if compares and with_shares(draw, self.pictures, self.recipe.classes) != draw else ALIKE

    def _refuse_few(self, metrics: Sequence[str]) -> None:
        """Refuse what so few pictures cannot be scored by, before any is drawn.

        Raises:
            BadInput: naming the metric.
        """
        for metric in (name for name in metrics if name in LEAST_PICTURES):
            by_moments = self.file_moments is not None and (metric == "fid" or self.pictures is None)
            real = None if by_moments or self.pictures is None else len(self.pictures)
            for what, count in {"generated": self.options.samples, "real": real}.items():
                if count is not None and count < LEAST_PICTURES[metric]:
                    least = LEAST_PICTURES[metric]
                    raise BadInput(f"--metrics {metric}: {count} {what} pictures; expected at least {least}")

    def _doubts(self, draw: DrawRequest, reference: Reference) -> list[str]:
        """Return warnings about scores of this request that are known before anything is drawn."""
        counts = {"generated": self.options.samples, "real": self._real(reference)}
        doubts = list(too_few(self.metrics, counts, reference.rows.shape[1]))
        if self.pictures is not None and self.network.name == "digits" and self.options.split != UNSEEN_BY_THE_DEMO:
            doubts.append(
                "digits: this classifier was fitted to the demo's training half, whose features are tighter than any "
                "other's: precision against those pictures is near 0; --data digits compares with the unseen half"
                if are_digits(self.pictures)
                else "digits: a classifier of 8 x 8 handwritten digits; of other pictures its scores say next to "
                "nothing, and a low FID is no sign of quality: use Inception, or a network of yours (docs/metrics.md)"
            )
        if draw.classes is None:
            return doubts
        if self._classes(draw) != ALIKE:
            doubts.append(
                "classes: some are generated, and compared with real pictures of all; for a fair score give a folder "
                "of those classes"
            )
        elif with_shares(replace(draw, classes=None), self.pictures, self.recipe.classes).classes is not None:
            assert self.pictures is not None  # else there were no shares
            fewest, most = (f"{number:,}" for number in sorted(class_counts(self.pictures))[:: self.recipe.classes - 1])
            doubts.append(
                f"classes: all are drawn alike, and the real pictures have from {fewest} to {most} of each: a perfect "
                "generator would differ from them by that alone. Without --classes they are drawn as often"
            )
        return doubts

    @cached_property
    def reference(self) -> Reference:
        """Reference statistics, computed, cached or read once; the same however many networks are scored."""
        if not {*self.metrics} - WITHOUT_FEATURES:
            return Reference.without_features()
        if self.pictures is None:
            assert self.file_moments is not None
            return Reference.of_file(self.file_moments)
        self.stage("features of real pictures")
        reference = reference_of(
            self.pictures,
            self.network,
            Folders.from_environment().moments,
            batch=FEATURES_AT_ONCE,
            progress=self.progress,
        )
        return reference if self.file_moments is None else replace(reference, moments=self.file_moments.normal)

    def _real(self, reference: Reference) -> int | None:
        """Real pictures whose moments the Fréchet distance is measured to; None: nobody knows."""
        if self.file_moments is not None:
            return self.file_moments.pictures
        return reference.moments.count if isinstance(reference.moments, Moments) else None


def _without_features(pictures: int) -> GatheredFeatures:
    """Return what is known of so many pictures at which no network has looked."""
    return GatheredFeatures(StreamingMoments(0).finish(), None, np.zeros(pictures, np.int64), 0, 0, 0)


def _sound(drawn: GatheredFeatures, samples: int) -> GatheredFeatures:
    """Return the gathered features unless the networks failed.

    Raises:
        BadInput: some of them hold values that are not finite.
    """
    if drawn.pictures_not_finite:
        raise BadInput(
            f"{drawn.pictures_not_finite} of {samples} pictures hold values that are not finite: the weights or their "
            "precision fail there, and a score would say nothing; look at the run's skipped steps, and try a "
            "checkpoint from before"
        )
    if drawn.features_not_finite:
        raise BadInput("features hold values that are not finite: the generator's pictures do; is it diverged?")
    return drawn
