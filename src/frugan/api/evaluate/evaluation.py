"""`evaluate`: how good a generator's pictures are, by scores that say what they were measured with."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frugan.api.data import open_real
from frugan.api.defaults import METRICS
from frugan.api.devices import device_of_rank, ranks_in_words
from frugan.api.evaluate.reference import choose_network
from frugan.api.evaluate.scorer import UNSEEN_BY_THE_DEMO, Evaluation, EvaluationOptions, Scorer, features_of
from frugan.api.networks import Weights, networks_from
from frugan.api.progress import Progress, Say, quiet
from frugan.api.sample.generation import DrawRequest, check_draw, known_classes
from frugan.api.sample.networks import device_and_precision
from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.data.picture_set import PictureSet
from frugan.data.run_data import other_classes
from frugan.engine.checkpoint import NETWORKS_FILE
from frugan.engine.device import pin_arithmetic
from frugan.engine.ranks.place import Place
from frugan.engine.run_folder import RunFolder
from frugan.engine.tensor_files import digest
from frugan.errors import BadInput
from frugan.metrics.feature_network import FeatureNetwork
from frugan.metrics.moments_file import FileMoments, read_moments
from frugan.metrics.scores import NONE, low_recall
from frugan.recipe.recipe import Recipe

if TYPE_CHECKING:
    from frugan.engine.ranks.group import RankGroup


def plot_truncation_curve(evaluations: Sequence[Evaluation], path: Path) -> None:
    """Draw inception score against Fréchet distance, or whichever of the two there is against truncation.

    Raises:
        BadInput: neither was measured, or matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise BadInput("--plot needs matplotlib: pip install 'frugan[report]'") from error
    has = [name for name in ("fid", "is_mean") if all(name in each.scores for each in evaluations)]
    if not has:
        raise BadInput("--plot draws fid and is: ask for one of them with --metrics")
    labels = {"fid": "Fréchet distance (lower is better)", "is_mean": "inception score (higher is better)"}
    truncations = [each.provenance.truncation for each in evaluations]
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    if len(has) == 2:
        across, up = ([each.scores[name] for each in evaluations] for name in ("fid", "is_mean"))
        axes.set_xlabel(labels["fid"])
        axes.set_ylabel(labels["is_mean"])
        for x, y, truncation in zip(across, up, truncations, strict=True):
            axes.annotate(f"{truncation:g}", (x, y), textcoords="offset points", xytext=(6, 4), fontsize=8)
    else:
        across, up = truncations, [each.scores[has[0]] for each in evaluations]
        axes.set_xlabel("truncation")
        axes.set_ylabel(labels[has[0]])
    axes.plot(across, up, marker="o")
    axes.grid(alpha=0.3)
    of = evaluations[0].provenance
    axes.set_title(
        f"{of.samples:,} samples at step {of.step:,}; statistics: {of.statistics}; {of.network}",
        fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


DIGITS = "digits"
"""Names the demo's unseen half where real pictures are asked for."""


def evaluate(
    source: str | Path | Weights,
    data: str | Path | PictureSet | None = None,
    options: EvaluationOptions | None = None,
    *,
    say: Say = print,
    progress: Progress | None = None,
) -> Evaluation:
    """Score a run's or a weights file's generator against real pictures.

    Started by torchrun, all the processes that it starts draw a part of the pictures each; the scores are those of one
    process, to rounding, and each of them returns these.

    Args:
        source: run, checkpoint or weights file, or what `Weights.open` made of one.
        data: the real pictures: anything that `train` takes, or an opened set; None: their moments alone are given, by
            the options' `reference`.
        options: how.
        say: is given a line for every automatic choice.
        progress: (pictures done, of how many), of real and of generated ones.

    Raises:
        BadInput: no such weights, no feature network, data of another size, or a request that makes no sense.
    """
    return truncation_curve(source, data, (), options, say=say, progress=progress)[0]


def truncation_curve(
    source: str | Path | Weights,
    data: str | Path | PictureSet | None,
    truncations: Sequence[float],
    options: EvaluationOptions | None = None,
    *,
    say: Say = print,
    progress: Progress | None = None,
) -> list[Evaluation]:
    """Score a generator at several truncations; standing statistics are gathered anew for each.

    Args:
        truncations: standard deviations of the latents; none: that of the options alone.

    Raises:
        BadInput: as `evaluate`.
    """
    options = options or EvaluationOptions()
    if data is None and options.reference is None:
        raise BadInput(
            "no real pictures to compare with: add --data PICTURES, or --reference FILE.npz of their moments"
        )
    place = Place.here()
    if place.alone:
        return _curve(source, data, truncations, options, say, progress, None)
    from frugan.engine.ranks.joining import joined  # noqa: PLC0415  (one process needs no torch.distributed)

    device = device_of_rank(options.device, place)
    with joined(place, device) as ranks:
        options = replace(options, device=str(device))
        if ranks.rank != 0:
            return _curve(source, data, truncations, options, quiet, None, ranks)
        say(ranks_in_words(ranks))
        return _curve(source, data, truncations, options, say, progress, ranks)


def is_first() -> bool:
    """Whether this process is the one that prints and keeps scores: the only one, or the first of several ranks."""
    return Place.here().rank == 0


def _curve(
    source: str | Path | Weights,
    data: str | Path | PictureSet | None,
    truncations: Sequence[float],
    options: EvaluationOptions,
    say: Say,
    progress: Progress | None,
    ranks: "RankGroup | None",
) -> list[Evaluation]:
    """Score, alone or with other ranks, of which each draws a part and the first one has the real pictures.

    Raises:
        BadInput: as `evaluate`, or this rank has other weights or another feature network than the first one.
    """
    first = ranks is None or ranks.rank == 0
    weights = _opened(source, options, say)
    recipe = weights.recipe
    asked = [replace(options.draw, truncation=each) for each in truncations] or [options.draw]
    if first:
        _check(options, asked, recipe)
    device, _ = device_and_precision(weights, options.device, say)
    network = choose_network(options.network, options.network_file, device, say)
    pin_arithmetic()
    networks = networks_from(weights, device)  # at once: a run that goes on may delete the checkpoint
    if ranks is not None:
        _refuse_others(ranks, weights.path, network, options)
    given = _given(options.reference, network, recipe, say) if first and options.reference is not None else None
    pictures = _pictures(recipe, data, say, progress) if first and data is not None else None
    doubt = None if pictures is None else other_classes(weights.class_names, pictures)
    if doubt is not None:
        say(f"warning: {doubt}")
    if str(data) == DIGITS and not Path(DIGITS).exists() and options.split == "all":
        options = replace(options, split=UNSEEN_BY_THE_DEMO)
    scorer = Scorer(recipe, network, pictures, options, _described(data), say, progress, given, ranks)
    file, step = weights.path, weights.step
    averaged = file.name != NETWORKS_FILE
    scored = [scorer.score(lambda: networks, draw, device, str(file), step, ema=averaged) for draw in asked]
    evaluations = [each for each in scored if each is not None]
    if doubt is not None:
        evaluations = [replace(each, warnings=(doubt, *each.warnings)) for each in evaluations]
    if first:
        evaluations = _in_words(evaluations, say)
    return evaluations if ranks is None else ranks.broadcast(evaluations)


def _opened(source: str | Path | Weights, options: EvaluationOptions, say: Say) -> Weights:
    """The weights that are scored."""
    weights = Weights.open(source, say)
    return weights if options.ema else weights.trained


def _refuse_others(ranks: "RankGroup", file: Path, network: FeatureNetwork, options: EvaluationOptions) -> None:
    """Refuse to draw by other weights than the first rank's, or to look by another network.

    Raises:
        BadInput: this rank has others.
    """
    own = (digest(file), network.digest)
    of_weights, of_network = ranks.broadcast(own)
    if own[0] != of_weights:
        raise BadInput(f"{ranks.name}: {file} holds other weights there than on the first rank")
    if own[1] != of_network:
        raise BadInput(f"{ranks.name}: --network {options.network} is another network there than on the first rank")


def _given(path: Path, network: FeatureNetwork, recipe: Recipe, say: Say) -> FileMoments:
    """Moments from a file, and a line about where they come from.

    Raises:
        BadInput: as `read_moments`, or another network made them.
    """
    blank = features_of(network, recipe)
    given = read_moments(path, blank.pooled.shape[1])
    if given.network_digest is None:
        say(
            f"reference: {path}, {given.digest[:8]}: it does not say which network made it; its scores mean something "
            f"if that was {network.name} (BigGAN-PyTorch's files are of torchvision's Inception, which is another one)"
        )
        return given
    if given.network_digest != network.digest:
        raise BadInput(
            f"--reference {path}: made with another feature network ({given.network_digest[:8]}; here {network.name} "
            f"{network.digest[:8]}); name that one with --network, or make the file again"
        )
    say(f"reference: {path}, {given.digest[:8]}: {given.pictures:,} pictures of {given.resolution} pixels")
    side = recipe.resolution
    if given.resolution != side:
        say(f"warning: those pictures have {given.resolution} pixels, generated ones {side}: the distance counts that")
    return given


def _in_words(evaluations: Sequence[Evaluation], say: Say) -> list[Evaluation]:
    """Warn of a recall far below precision; aloud at the largest truncation alone: a smaller one narrows by itself."""
    lines = [low_recall(each.scores, each.provenance) for each in evaluations]
    widest = max(range(len(evaluations)), key=lambda number: evaluations[number].provenance.truncation)
    if lines[widest] is not None:
        say(f"warning: {lines[widest]}")
    return [
        each if line is None else replace(each, warnings=(*each.warnings, line))
        for each, line in zip(evaluations, lines, strict=True)
    ]


def _check(options: EvaluationOptions, asked: Sequence[DrawRequest], recipe: Recipe) -> None:
    for name in options.metrics or ():
        if name not in METRICS:
            raise BadInput(f"--metrics {name}: expected some of {','.join(METRICS)}")
    if options.metrics == ():
        raise BadInput(f"--metrics: expected some of {','.join(METRICS)}")
    if options.samples < 10:
        raise BadInput(f"--samples {options.samples}: expected at least 10; published scores use 50000")
    for draw in asked:
        check_draw(draw, recipe)


def _pictures(recipe: Recipe, data: str | Path | PictureSet, say: Say, progress: Progress | None) -> PictureSet:
    if str(data) == DIGITS and not Path(DIGITS).exists():
        known_classes(recipe)
        (need,) = recipe.sources.values()
        _, unseen = split_digits(SPLIT_SEED)
        say(f"data: {len(unseen)} handwritten digits that the demo keeps unseen")
        data = digits_set(need.resolution, unseen)
    return open_real(recipe, data, say, progress)


def _described(data: str | Path | PictureSet | None) -> str:
    if data is None:
        return NONE
    return "given" if isinstance(data, PictureSet) else str(data)


def save_evaluations(evaluations: Sequence[Evaluation], file: Path) -> None:
    """Append evaluations to a file of JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8", newline="\n") as opened:
        for each in evaluations:
            opened.write(json.dumps(each.as_json(), ensure_ascii=False) + "\n")


def keep_in_run(evaluations: Sequence[Evaluation], say: Say = print) -> None:
    """Keep evaluations in the run whose weights they are of, for its report; nothing where they are no run's.

    Args:
        say: is told where they were kept, or why they were not.
    """
    run = RunFolder.holding(Path(evaluations[0].provenance.weights))
    if run is None:
        return
    try:
        save_evaluations(evaluations, run.scores)
    except OSError as error:
        say(f"not kept in {run.scores}, and not in the report: {error.strerror or error}")
    else:
        say(f"kept in {run.scores}: `frugan report` shows it")
