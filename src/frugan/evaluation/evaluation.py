"""`evaluate`: how good a generator's pictures are, by scores that say what they were measured with."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frugan.accelerator.device import disable_reduced_precision
from frugan.data.formats.picture_set import PictureSet
from frugan.engine.ranks.place import Place
from frugan.engine.run.checkpoint import NETWORKS_FILE
from frugan.errors import checked
from frugan.evaluation.compared import (
    TRAINED_ON,
    TRAINING_SET,
    Compared,
    are_unseen_digits,
    compared_with,
    described,
    test_folder,
)
from frugan.evaluation.reference import network_for, refuse_others
from frugan.evaluation.scorer import (
    UNSEEN_BY_THE_DEMO,
    WITHOUT_REAL,
    Evaluation,
    EvaluationOptions,
    Scorer,
    check_options,
)
from frugan.metrics.scores import low_recall
from frugan.progress import Progress, Say, quiet
from frugan.sampling.generators import device_and_precision
from frugan.setup.devices import device_of_rank, ranks_in_words
from frugan.setup.networks import Weights, networks_from

if TYPE_CHECKING:
    from frugan.engine.ranks.group import RankGroup


@checked
def evaluate(
    source: str | Path | Weights,
    data: str | Path | PictureSet | None = None,
    options: EvaluationOptions | None = None,
    *,
    say: Say = print,
    progress: Progress | None = None,
    stage: Say = quiet,
) -> Evaluation:
    """Score a run's or a weights file's generator against real pictures.

    Started by torchrun, all the processes that it starts draw a part of the pictures each; the scores are those of one
    process, to rounding, and each of them returns these.

    Args:
        source: run, checkpoint or weights file, or what `Weights.open` made of one.
        data: the real pictures: anything that `train` takes, or an opened set; None: their moments alone, by the
            options' `reference`, or none where no metric compares with any, or else the folder of test pictures that
            the recipe names.
        options: how.
        say: is given a line for every automatic choice.
        progress: (pictures done, of how many), of real and of generated ones; of a judge, its steps.
        stage: is told what these are from now on.

    Raises:
        BadInput: no such weights, no feature network, data of another size, or a request that makes no sense.
    """
    return truncation_curve(source, data, (), options, say=say, progress=progress, stage=stage)[0]


def truncation_curve(
    source: str | Path | Weights,
    data: str | Path | PictureSet | None,
    truncations: Sequence[float],
    options: EvaluationOptions | None = None,
    *,
    say: Say = print,
    progress: Progress | None = None,
    stage: Say = quiet,
) -> list[Evaluation]:
    """Score a generator at several truncations; standing statistics are gathered anew for each.

    Args:
        truncations: standard deviations of the latents; none: that of the options alone.

    Raises:
        BadInput: as `evaluate`.
    """
    options = options or EvaluationOptions()
    place = Place.here()
    if place.alone:
        return _curve(source, data, truncations, options, say, progress, stage, None)
    from frugan.engine.ranks.joining import joined  # noqa: PLC0415  (one process needs no torch.distributed)

    device = device_of_rank(options.device, place)
    with joined(place, device) as ranks:
        options = replace(options, device=str(device))
        if ranks.rank != 0:
            return _curve(source, data, truncations, options, quiet, None, quiet, ranks)
        say(ranks_in_words(ranks))
        return _curve(source, data, truncations, options, say, progress, stage, ranks)


def is_first() -> bool:
    """Return whether this process prints and keeps scores: the only one, or the first of several ranks."""
    return Place.here().rank == 0


def _curve(
    source: str | Path | Weights,
    data: str | Path | PictureSet | None,
    truncations: Sequence[float],
    options: EvaluationOptions,
    say: Say,
    progress: Progress | None,
    stage: Say,
    ranks: "RankGroup | None",
) -> list[Evaluation]:
    """Score, alone or with other ranks, of which each draws a part and the first one has the real pictures.

    Raises:
        BadInput: as `evaluate`, or this rank has other weights or another feature network than the first one.
    """
    first = ranks is None or ranks.rank == 0
    weights = Weights.open(source, say)
    weights = weights if options.ema else weights.trained
    needless = options.metrics is not None and {*options.metrics} <= WITHOUT_REAL
    if data is None and options.reference is None and not needless:
        data = test_folder(weights.recipe, say)
    draws = [replace(options.draw, truncation=truncation) for truncation in truncations] or [options.draw]
    if first:
        check_options(options, draws, weights.recipe)
    device, _ = device_and_precision(weights, options.device, say)
    network = network_for(options.metrics, options.network, options.network_file, device, say)
    disable_reduced_precision()
    networks = networks_from(weights, device)  # at once: a run that goes on may delete the checkpoint
    if ranks is not None:
        refuse_others(ranks, weights.path, network, options.network)
    if data is not None:
        stage("reading real pictures")
    compared = compared_with(weights, data, options, network, say, progress) if first else Compared()
    if are_unseen_digits(data) and options.split == "all":
        options = replace(options, split=UNSEEN_BY_THE_DEMO)
    if options.split == "all":
        options = replace(options, split=compared.split)
    where = TRAINING_SET if options.split == TRAINED_ON else described(data)
    pictures, moments = compared.pictures, compared.file_moments
    scorer = Scorer(weights.recipe, network, pictures, options, where, say, progress, moments, ranks, stage)
    averaged = weights.path.name != NETWORKS_FILE
    scored = [
        scorer.score(lambda: networks, draw, device, str(weights.path), weights.step, ema=averaged) for draw in draws
    ]
    evaluations = [truncation for truncation in scored if truncation is not None]  # of the first rank alone
    if first:
        evaluations = _with_warnings(evaluations, compared.doubt, say)
    return evaluations if ranks is None else ranks.broadcast(evaluations)


def _with_warnings(evaluations: Sequence[Evaluation], doubt: str | None, say: Say) -> list[Evaluation]:
    """Add what to know of the real pictures, and of a recall far below precision.

    The latter is told aloud at the largest truncation alone: a smaller one narrows by itself.
    """
    lines = [low_recall(evaluation.scores, evaluation.provenance) for evaluation in evaluations]
    widest = max(range(len(evaluations)), key=lambda number: evaluations[number].provenance.truncation)
    if lines[widest] is not None:
        say(f"warning: {lines[widest]}")
    before = () if doubt is None else (doubt,)
    return [
        replace(evaluation, warnings=(*before, *evaluation.warnings, *(() if line is None else (line,))))
        for evaluation, line in zip(evaluations, lines, strict=True)
    ]
