"""`evaluate`: how good a generator's pictures are, by scores that say what they were measured with."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from frugan.api.data.sources import open_real
from frugan.api.defaults import METRICS
from frugan.api.devices import use_device
from frugan.api.evaluate.feature_networks import choose_network
from frugan.api.evaluate.scorer import Evaluation, EvaluationOptions, Scorer
from frugan.api.networks import EMA_FILE, NETWORKS_FILE, networks_from, read_weights, step_of, weights_file
from frugan.api.progress import Progress, Say
from frugan.api.sample.generation import DrawRequest, check_draw, known_classes
from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.data.picture_set import PictureSet
from frugan.engine.arithmetic import pin_arithmetic
from frugan.engine.precision import resolve_precision
from frugan.errors import BadInput
from frugan.metrics.low_recall import low_recall
from frugan.recipe import Recipe

DIGITS = "digits"
"""Names the demo's unseen half where real pictures are asked for."""


def evaluate(
    source: str | Path,
    data: str | Path | PictureSet,
    options: EvaluationOptions | None = None,
    *,
    say: Say = print,
    progress: Progress | None = None,
) -> Evaluation:
    """Score a run's or a weights file's generator against real pictures.

    Args:
        source: run, checkpoint or weights file.
        data: the real pictures: anything that `train` takes, or an opened set.
        options: how.
        say: is given a line for every automatic choice.
        progress: (pictures done, of how many), of real and of generated ones.

    Raises:
        BadInput: no such weights, no feature network, data of another size, or a request that makes no sense.
    """
    return truncation_curve(source, data, (), options, say=say, progress=progress)[0]


def truncation_curve(
    source: str | Path,
    data: str | Path | PictureSet,
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
    file = weights_file(Path(source), EMA_FILE if options.ema else NETWORKS_FILE, say)
    weights = read_weights(file)
    recipe = weights.recipe
    asked = [replace(options.draw, truncation=each) for each in truncations] or [options.draw]
    _check(options, asked, recipe)
    device, why = use_device(options.device)
    say(f"weights: {file}")
    say(f"device: {device} ({why})")
    precision = resolve_precision(recipe.training.precision, device)
    if precision.warning:
        say(f"precision {precision.name}: {precision.warning}")
    network = choose_network(options.network, options.network_file, device, say)
    pictures = _pictures(recipe, data, say, progress)
    pin_arithmetic()
    networks = networks_from(weights, device)
    if str(data) == DIGITS and options.split == "all":
        options = replace(options, split="unseen by the demo")
    scorer = Scorer(recipe, network, pictures, options, _described(data), say, progress)
    averaged = file.name != NETWORKS_FILE
    found = [scorer.score(networks, draw, device, str(file), step_of(file), ema=averaged) for draw in asked]
    return _in_words(found, say)


def _in_words(found: Sequence[Evaluation], say: Say) -> list[Evaluation]:
    """Warn of a recall far below precision; aloud at the largest truncation alone: a smaller one narrows by itself."""
    lines = [low_recall(each.scores, each.card) for each in found]
    widest = max(range(len(found)), key=lambda number: found[number].card.truncation)
    if lines[widest] is not None:
        say(f"warning: {lines[widest]}")
    return [
        each if line is None else replace(each, warnings=(*each.warnings, line))
        for each, line in zip(found, lines, strict=True)
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
        (need,) = recipe.kind.sources(recipe.networks, recipe.objective).values()
        _, unseen = split_digits(SPLIT_SEED)
        say(f"data: {len(unseen)} handwritten digits that the demo keeps unseen")
        data = digits_set(need.resolution, unseen)
    return open_real(recipe, data, say, progress)


def _described(data: str | Path | PictureSet) -> str:
    return "given" if isinstance(data, PictureSet) else str(data)


def save_evaluations(found: Sequence[Evaluation], file: Path) -> None:
    """Append evaluations to a file of JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8", newline="\n") as opened:
        for each in found:
            opened.write(json.dumps(each.as_json(), ensure_ascii=False) + "\n")
